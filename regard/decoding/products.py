"""Matrix products on a CPU, y = xWᵀ + b, with the weights laid out once as the kernels want them instead of anew at every product.

In 8 bits weights are rounded once, a scale for each row of W, and the numbers that come in at every product, by a scale that depends on
nothing but their own row of x: the sums are of whole numbers, four times as many at once as of float32, and the same in any company.
"""

from __future__ import annotations

import copy
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

    def again(self) -> Product:
        """One of the same matrix, for another copy of a model."""
        return self


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


LAYING = Lock()  # the engine is a setting of the whole process
# Without asking at each call which of several kernels of that name is meant.
LINEAR = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default._op
LINEAR_RELU = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_relu_output_fp32.default._op
ENDS = torch.ops.aten.aminmax.default._op
ROOMY = 2.0  # times the largest number of a usual row: what nearly all rows fit into


class Int8Product(Product):
    """In 8 bits, through FBGEMM.

    How a row is rounded depends on that row alone. Those that fit into `range` all have the one scale that goes with it, and cost no more
    than a look at the smallest and the largest number of all; any other has a scale of its own. So has every row until a range is given.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight, self.bias = weight.detach().float().contiguous(), None if bias is None else bias.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        with LAYING, warnings.catch_warnings():  # PyTorch means to give up tensors of this kind; without them there is no int8 here
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight, scale.double(), torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        self.laid = _laid("fbgemm", rounded, self.bias)
        # Whole numbers from -levels to levels, moved by zero to be above 0.
        self.levels, self.zero = (127, 128) if sums_in_32_bits() else (63, 64)
        self.range: float | None = None
        self.seen: Tensor | None = None  # the largest number of each row that came last, while there is no range
        self._top, self._bottom, self._unit = -1.0, 1.0, 1 / self.levels

    def fit(self) -> None:
        """A range that rows such as those which came last fit into."""
        self.range = None if self.seen is None or not self.seen.numel() else ROOMY * float(self.seen.median())
        if self.range is not None and not 0 < self.range < float("inf"):
            self.range = None
        width = self.range or 1.0
        self._unit = width / self.levels
        self._top, self._bottom = (-1.0, 1.0) if self.range is None else (width, -width)
        self.seen = None

    def forget(self) -> None:
        """Every row has a scale of its own again."""
        self.seen = None
        self.fit()

    def again(self) -> Product:
        """Without a range: that of this one stays as it is, since another thread may be at work with it."""
        other = copy.copy(self)
        other.forget()
        return other

    def __call__(self, x: Tensor) -> Tensor:
        if self._fits(x):
            product: Tensor = LINEAR(x, self._unit, self.zero, self.laid)
            return product
        return self._by_row(x)

    def relu(self, x: Tensor) -> Tensor:
        if self._fits(x):
            product: Tensor = LINEAR_RELU(x, self._unit, self.zero, self.laid)
            return product
        return self._by_row(x).relu_()

    def _fits(self, x: Tensor) -> bool:
        if not x.numel():
            return True
        low, high = ENDS(x)
        return bool(high.item() <= self._top and low.item() >= self._bottom)

    def _by_row(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True)
        if self.range is None:
            self.seen = largest
            return self._scaled(x, largest)
        large = ~(largest <= self.range).squeeze(-1)  # or no number
        if bool(large.all()):
            return self._scaled(x, largest / self.range)
        product: Tensor = LINEAR(x, self._unit, self.zero, self.laid)
        product[large] = self._scaled(x[large], largest[large] / self.range)
        return product

    def _scaled(self, x: Tensor, times: Tensor) -> Tensor:
        """By a scale so many times the usual one for each row."""
        # A row of zeros is 0 / 0 here, and whatever that becomes is multiplied by 0 below.
        product: Tensor = LINEAR(x / times, self._unit, self.zero, self.laid)
        return product * times if self.bias is None else (product - self.bias) * times + self.bias


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
