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
ROOMY = 1.5  # times the largest number of a usual row: what nearly all rows fit into
HEAVY = 2.5  # times that: where some rows are larger still, one scale for all would leave too little of a usual one
SPARE = 1.25, 1.5  # times the largest number of all that was seen: room for what was not, and more where all levels are above zero


class Int8Product(Product):
    """In 8 bits, through FBGEMM.

    How a row is rounded depends on that row alone. Until a range is given, each has a scale of its own. With a range all have the one that
    goes with it, which costs nothing, and what is beyond is cut off. Where some rows are many times as large as usual ones, or where a CPU
    adds in 16 bits, which what is beyond could overflow, rows that don't fit are looked for each time and have a scale of their own again.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        weight, self.bias = weight.detach().float().contiguous(), None if bias is None else bias.detach().float()
        scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        with LAYING, warnings.catch_warnings():  # PyTorch means to give up tensors of this kind; without them there is no int8 here
            warnings.simplefilter("ignore", UserWarning)
            rounded = torch.quantize_per_channel(weight, scale.double(), torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        self.laid = _laid("fbgemm", rounded, self.bias)
        self.levels = 127 if sums_in_32_bits() else 63
        self.range: float | None = None
        self.cuts = False  # what is beyond the range, instead of looking for it
        self.positive = False  # after a ReLU: nothing is spent on numbers below 0
        self.seen: list[tuple[Tensor, Tensor]] | None = None  # the smallest and the largest number of rows, while they are looked at
        self.forget()

    def forget(self) -> None:
        """Every row has a scale of its own."""
        self.range, self.cuts, self.positive, self.seen = None, False, False, None
        self._unit, self._zero = 1 / self.levels, self.levels + 1  # whole numbers from -levels to levels, moved to be above 0

    def look(self) -> None:
        """At every row from now on, until a range is made of them."""
        self.forget()
        self.seen = []

    def fit(self) -> None:
        """A range that rows such as those which came fit into; none where there is nothing to go by."""
        seen, least = torch.zeros(0), 0.0
        if self.seen:
            seen = torch.cat([torch.maximum(high, -low).flatten() for low, high in self.seen])
            least = min(float(low.amin()) for low, _ in self.seen if low.numel())
        self.forget()
        usual = float(seen.median()) if seen.numel() else 0.0
        if not 0 < usual < float("inf"):
            return
        largest = float(seen.max())
        self.cuts = sums_in_32_bits() and largest <= HEAVY * usual
        self.positive = self.cuts and least >= 0
        self.range = max(ROOMY * usual, SPARE[self.positive] * largest) if self.cuts else ROOMY * usual
        self._unit = self.range / self.levels
        if self.positive:
            self._unit, self._zero = self._unit / 2, 0

    def again(self) -> Product:
        """Without a range: that of this one stays as it is, since another thread may be at work with it."""
        other = copy.copy(self)
        other.forget()
        return other

    def __call__(self, x: Tensor) -> Tensor:
        if self.cuts or self._fits(x):
            product: Tensor = LINEAR(x, self._unit, self._zero, self.laid)
            return product
        return self._by_row(x)

    def relu(self, x: Tensor) -> Tensor:
        if self.cuts or self._fits(x):
            product: Tensor = LINEAR_RELU(x, self._unit, self._zero, self.laid)
            return product
        return self._by_row(x).relu_()

    def _fits(self, x: Tensor) -> bool:
        if not x.numel():
            return True
        if self.range is None:
            return False
        low, high = ENDS(x)
        return bool(high.item() <= self.range and low.item() >= -self.range)

    def _by_row(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True)
        if self.seen is not None:
            self.seen.append((x.amin(-1), x.amax(-1)))
        # So many times the usual scale for each row; a row that fits is as it would be without: / 1 and * 1 change nothing.
        times = largest if self.range is None else (largest / self.range).clamp_(min=1.0)
        # A row of zeros is 0 / 0 here, and whatever that becomes is multiplied by 0.
        product: Tensor = LINEAR(x / times, self._unit, self._zero, self.laid)
        return product.mul_(times) if self.bias is None else torch.lerp(self.bias, product, times)


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
