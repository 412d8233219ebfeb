"""Half precision in training: weights, their gradients and their updates stay in float32, what flows between layers does not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.nn.layers import Stack


def keep_half(model: nn.Module) -> None:
    """Within autocast, what passes from layer to layer is in half precision.

    Autocast gives that to matrix products, but embeddings and norms come out of it in float32, and so does every sum with them: most of
    what is written to memory. Norms still compute in float32 what they then round.
    """
    for module in model.modules():
        if isinstance(module, Stack):
            module.dropout.register_forward_hook(_halve)  # the last to touch embeddings and positions
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.register_forward_pre_hook(_widen)  # autocast does that for one of the two, and the other wants it
            module.register_forward_hook(_halve)


def _widen(module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    x = inputs[0]
    return (x.float() if torch.is_autocast_enabled(x.device.type) else x,)


def _halve(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    kind = output.device.type
    return output.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else output
