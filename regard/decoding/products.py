"""Matrix products on a CPU, y = xWᵀ + b, with the weights laid out once as the kernels want them instead of anew at every product.

In 8 bits weights are rounded once, a scale for each row of W, and the numbers that come in at every product, a scale for all of them: the
sums are of whole numbers, four times as many at once as of float32.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor


class Product(ABC):
    """One matrix, ready to be multiplied with."""

    @abstractmethod
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None: ...

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x (…, inputs) to (…, outputs)."""

    @abstractmethod
    def relu(self, x: Tensor) -> Tensor:
        """The same, and nothing below zero."""


class FloatProduct(Product):
    """In float32 or bfloat16, through oneDNN."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.laid: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.laid, self.bias, "none", [], "")
        return product

    def relu(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.laid, self.bias, "relu", [], "")
        return product


MANY = 96  # rows
LAYING = Lock()  # the engine is a setting of the whole process
# Without asking at each call which of several kernels of that name is meant.
LINEAR = torch.ops.quantized.linear_dynamic.default._op
LINEAR_RELU = torch.ops.quantized.linear_relu_dynamic.default._op


class Int8Product(Product):
    """In 8 bits: through FBGEMM, and for many rows through oneDNN, which lays the weights out otherwise."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight, self.bias = weight.detach().float().contiguous(), None if bias is None else bias.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        with LAYING, warnings.catch_warnings():  # PyTorch means to give up tensors of this kind; without them there is no int8 here
            warnings.simplefilter("ignore", UserWarning)
            self.rounded = torch.quantize_per_channel(weight, scale.double(), torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        self.few, self.halved = _laid("fbgemm", self.rounded, self.bias), not sums_in_32_bits()
        self.many_pay = max(weight.shape) >= 1024 and not self.halved
        self.many: dict[bool, Any] = {}

    def __call__(self, x: Tensor) -> Tensor:
        return self._multiplied(x, relu=False)

    def relu(self, x: Tensor) -> Tensor:
        return self._multiplied(x, relu=True)

    def _multiplied(self, x: Tensor, *, relu: bool) -> Tensor:
        try:
            product: Tensor = (LINEAR_RELU if relu else LINEAR)(x, self._for(x, relu=relu), self.halved)
        except RuntimeError:
            if not bool(x.isnan().any()):
                raise
            return x.new_full((*x.shape[:-1], len(self.rounded)), float("nan"))  # which has no scale: whoever runs the model will say so
        return product

    def _for(self, x: Tensor, *, relu: bool) -> Any:
        """The weights as so many rows are multiplied with them fastest."""
        if not self.many_pay or x.numel() < MANY * x.shape[-1]:
            return self.few
        if relu not in self.many:  # each its own: a layout keeps its first kernel, relu or not, for every input of that shape
            self.many[relu] = _laid("onednn", self.rounded, self.bias)
        return self.many[relu]


def _laid(engine: str, weight: Tensor, bias: Tensor | None) -> Any:
    with LAYING:
        before, torch.backends.quantized.engine = torch.backends.quantized.engine, engine
        try:
            return torch.ops.quantized.linear_prepack(weight, bias)
        finally:
            torch.backends.quantized.engine = before


@cache
def sums_in_32_bits() -> bool:
    """Whether this CPU adds products of bytes in 32 bits (VNNI). Others add pairs of them in 16 first, where 7 bits are all that fits."""
    return bool(torch.cpu._is_vnni_supported())


@cache
def available(kind: type[Product]) -> bool:
    """Whether this PyTorch has the kernels: builds for x86 do."""
    try:
        return bool(torch.allclose(kind(torch.ones(3, 4), None)(torch.ones(2, 4)), torch.full((2, 3), 4.0), atol=0.1))
    except (AttributeError, RuntimeError):
        return False
