"""The same layers with what surrounds a matrix product done in fewer passes over memory, for training on a GPU in half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.nn.backends import HAS_TRITON
from regard.nn.instead import starts
from regard.nn.layers import AddNorm, FeedForward
from regard.nn.tap import tap

WIDEST = 2048  # what of a row fits into the registers of one program
ADD_NORM, ACTIVATED = "a norm after a sum in training", "a product with its activation in training"


def fuse(model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
    """Gives a model's layers the faster forward where there is one; parameters and names stay what they are.

    On a GPU it is tried here, in the dtype that autocast will be of: compiled code has no way back.
    """
    for module in model.modules():
        if type(module) is AddNorm and not module.before and isinstance(module.norm, nn.LayerNorm) and module.norm.bias is not None:
            module.__class__ = FusedAddNorm
        elif type(module) is FeedForward and module.activation is F.relu and not module.gated and module.widen.bias is not None:
            module.__class__ = FusedFeedForward
        if isinstance(module, FusedAddNorm | FusedFeedForward) and next(module.parameters()).is_cuda:
            module.starts(dtype)


def halved(x: Tensor) -> bool:
    """Whether x is on a GPU in half precision, with autocast seeing to it that it stays so."""
    return x.is_cuda and torch.is_autocast_enabled("cuda") and x.dtype == torch.get_autocast_dtype("cuda")


class FusedAddNorm(AddNorm):
    """norm(x + dropout(f(x))) with everything after f in one kernel, and its gradients in another."""

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if not halved(x) or not self.starts(x.dtype):
            return super().forward(x, sublayer)
        from regard.nn.residual import add_norm  # loads kernels: only where they are used

        assert isinstance(self.norm, nn.LayerNorm)
        dropout = self.dropout.p if self.training else 0.0
        output, added = add_norm(x, sublayer(x), self.norm.weight, self.norm.bias, dropout=dropout, epsilon=self.norm.eps)
        tap(self, "added", added)
        return output

    def starts(self, dtype: torch.dtype) -> bool:
        weight = self.norm.weight
        assert isinstance(weight, Tensor)
        if weight.shape[0] > WIDEST or not HAS_TRITON:
            return False
        return starts(ADD_NORM, lambda: _try_add_norm(dtype, weight), dtype, weight.dtype, weight.device, weight.shape[0])


class FusedFeedForward(FeedForward):
    """max(0, xW₁ + b₁)W₂ + b₂ with bias and maximum applied before the first product is written down."""

    def forward(self, x: Tensor) -> Tensor:
        if not halved(x) or not self.starts(x.dtype):
            return super().forward(x)
        weight, bias = self.widen.weight.to(x.dtype), self.widen.bias.to(x.dtype)
        inner: Tensor = _LinearRelu.apply(x.flatten(0, -2), weight, bias)  # type: ignore[no-untyped-call]
        inner = inner.unflatten(0, x.shape[:-1])
        tap(self, "inner", inner)
        return self.narrow(self.dropout(inner))

    def starts(self, dtype: torch.dtype) -> bool:
        device = self.widen.weight.device
        return starts(ACTIVATED, lambda: _try_activated(dtype, device), dtype, device)


def _try_add_norm(dtype: torch.dtype, weight: Tensor) -> None:
    from regard.nn.residual import try_out

    try_out(dtype, weight)


def _try_activated(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.zeros(16, 16, dtype=dtype, device=device)
    torch.ops.aten._addmm_activation(x[0], x, x.t())


class _LinearRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch.ops.aten._addmm_activation(bias, x, weight.t())
        ctx.save_for_backward(x, weight, output)
        return output

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight, output = ctx.saved_tensors
        slope = torch.ops.aten.threshold_backward(slope, output, 0)
        return slope @ weight, slope.t() @ x, slope.sum(0)
