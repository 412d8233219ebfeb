"""Sub-layers on a GPU with the sum on the path around each and the norm after it as one kernel: for inference alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from regard.nn import backends
from regard.nn.backends import HAS_TRITON
from regard.nn.tap import recording

WIDEST = 2048  # what of a row fits into the registers of one program
FEW = 256  # rows, beyond which the time is elsewhere

SubLayer = Callable[[Tensor], Tensor]


def joins(norm: nn.Module, x: Tensor) -> bool:
    """Whether norms of this kind can be joined for x (rows, length, width), and nobody wants to see what is left out."""
    if not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16) or not HAS_TRITON or torch.is_grad_enabled() or norm.training:
        return False
    fits = x.shape[0] * x.shape[1] <= FEW and x.shape[2] <= WIDEST
    watched = recording() or backends.overridden() or torch.compiler.is_compiling()
    return fits and not watched and isinstance(norm, nn.LayerNorm) and norm.bias is not None


def run(x: Tensor, steps: Sequence[tuple[nn.Module, SubLayer]], last: nn.Module | None) -> Tensor:
    """x through sub-layers that each have a norm: before it, with a `last` one after all; or after it, where there is none."""
    from regard.nn.residual import add_norm_alone  # loads kernels: only where they are used

    norms = [norm for norm, _ in steps]
    # Where norms stand before the sub-layers, the one that follows a sum is that of the next sub-layer.
    following = norms if last is None else [*norms[1:], last]
    normed = x if last is None else norms[0](x)
    for (_, sublayer), norm in zip(steps, following, strict=True):
        assert isinstance(norm, nn.LayerNorm)
        normed, x = add_norm_alone(normed if last is None else x, sublayer(normed), norm)
    return normed
