"""The weights that training starts from."""

from __future__ import annotations

from torch import nn

from regard.config import Transformer
from regard.nn.attention import Attention
from regard.nn.embedding import Deembedder
from regard.nn.layers import FeedForward, Stack

DEVIATION = 0.02


def initialise(model: nn.Module, config: Transformer) -> None:
    """xavier: each matrix keeps the variance of what passes it, as in the paper. normal: GPT-2's."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _fill(module, config.init, DEVIATION)
        if isinstance(module, Attention) and config.init == "xavier":
            rows = (module.query_rows, *[module.kv_heads * module.head_width] * 2)
            for part in module.project.weight.split(rows):  # three matrices that happen to be stored as one
                nn.init.xavier_uniform_(part)
        if isinstance(module, Deembedder) and module.weight is not None and config.init == "normal":
            nn.init.normal_(module.weight, std=DEVIATION)
    for module in model.modules():
        if isinstance(module, Stack) and config.init == "normal":
            _quiet(module)


def _quiet(stack: Stack) -> None:
    """Every sub-layer adds to one sum, so that the more there are, the less each may add."""
    last = [
        module.join if isinstance(module, Attention) else module.narrow
        for module in stack.modules()
        if isinstance(module, Attention | FeedForward)
    ]
    for linear in last:
        _fill(linear, "normal", DEVIATION / len(last) ** 0.5)


def _fill(linear: nn.Linear, init: str, deviation: float) -> None:
    if init == "xavier":
        nn.init.xavier_uniform_(linear.weight)
    else:
        nn.init.normal_(linear.weight, std=deviation)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
