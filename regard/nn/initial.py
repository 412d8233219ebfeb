"""The weights that training starts from."""

from __future__ import annotations

from torch import nn

from regard.config import Transformer
from regard.nn.attention import Attention
from regard.nn.layers import Block, FeedForward


def initialise(model: nn.Module, config: Transformer) -> None:
    """xavier: each matrix keeps the variance of what passes it, as in the paper. normal: GPT-2's, the residual paths' sums kept at 1."""
    depth = 3 if any(isinstance(module, Block) and module.cross is not None for module in model.modules()) else 2
    layers = getattr(config, "decoder_layers", None) or config.layers
    for module in model.modules():
        if isinstance(module, nn.Linear):
            _fill(module, config.init, 0.02)
        if isinstance(module, Attention) and config.init == "xavier":
            rows = (module.query_rows, *[module.kv_heads * module.head_width] * 2)
            for part in module.project.weight.split(rows):  # three matrices that happen to be stored as one
                nn.init.xavier_uniform_(part)
    if config.init == "normal":
        for module in model.modules():
            if isinstance(module, Attention):
                _fill(module.join, config.init, 0.02 / (depth * layers) ** 0.5)
            if isinstance(module, FeedForward):
                _fill(module.narrow, config.init, 0.02 / (depth * layers) ** 0.5)


def _fill(linear: nn.Linear, init: str, deviation: float) -> None:
    if init == "xavier":
        nn.init.xavier_uniform_(linear.weight)
    else:
        nn.init.normal_(linear.weight, std=deviation)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
