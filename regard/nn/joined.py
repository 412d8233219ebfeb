"""What a GPU does in one kernel, for inference alone: the sum on the path around a sub-layer with the norm after it; a product with the
non-linearity after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from regard.nn import backends
from regard.nn.backends import HAS_TRITON
from regard.nn.instead import give_up, given_up
from regard.nn.tap import recording

WIDEST = 2048  # what of a row fits into the registers of one program
FEW = 256  # rows, beyond which the time is elsewhere
ACTIVATED = {"relu": False, "gelu-tanh": True}  # what a product's kernel can do at its end, and whether that is the latter

JOINED, ENDED = "a norm after a sum", "a product with its activation"

SubLayer = Callable[[Tensor], Tensor]


def joins(norms: Sequence[nn.Module], x: Tensor) -> bool:
    """Whether all these norms can be joined with the sums before them, for x (rows, length, width)."""
    if not HAS_TRITON or given_up(JOINED):
        return False
    fits = x.shape[0] * x.shape[1] <= FEW and x.shape[2] <= WIDEST
    return fits and all(isinstance(norm, nn.LayerNorm) and norm.bias is not None for norm in norms)


def alone(module: nn.Module, x: Tensor) -> bool:
    """Whether nobody wants more than the result, in half precision on a GPU."""
    if not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16) or torch.is_grad_enabled() or module.training:
        return False
    return not (recording() or backends.overridden() or torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda"))


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


def activates(activation: str, linear: nn.Module, x: Tensor) -> bool:
    """Whether the product for x can have this non-linearity at its end."""
    if activation not in ACTIVATED or type(linear) is not nn.Linear or linear.bias is None or not alone(linear, x):
        return False
    return not given_up(ENDED) and linear.weight.dtype == linear.bias.dtype == x.dtype


def activated(activation: str, linear: nn.Linear, x: Tensor) -> Tensor | None:
    """None where it turns out that it can't be started here."""
    try:
        flat = torch._addmm_activation(linear.bias, x.flatten(0, -2), linear.weight.t(), use_gelu=ACTIVATED[activation])
    except Exception as error:
        give_up(ENDED, error)
        return None
    return flat.view(*x.shape[:-1], -1)
