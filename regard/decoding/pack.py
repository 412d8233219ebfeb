"""A model made ready for one CPU: its weights laid out once as the matrix kernels want them, instead of anew at every product.

The products are the same; for a few rows, as in decoding, they take about half the time.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import BundleError
from regard.models import Network
from regard.nn.attention import Projection
from regard.nn.embedding import Deembedder, Embedder

M = TypeVar("M", bound=Network)


def packed(model: M) -> M:
    """A copy for inference that shares everything but the packed weights; the model itself where packing gains nothing."""
    if model.device.type != "cpu" or model.dtype != torch.float32 or not available():
        return model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    ready = copy.deepcopy(model, shared)
    for module in list(ready.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
            elif isinstance(child, Projection):
                setattr(module, name, PackedProjection(child))
            elif isinstance(child, Deembedder) and isinstance(embed := getattr(ready, "embed", None), Embedder):
                setattr(module, name, PackedDeembedder(child, embed))
    return ready


@cache
def available() -> bool:
    """Whether this PyTorch has the kernels: builds for x86 do."""
    try:
        x = torch.ones(2, 4)
        return bool(torch.allclose(_product(x, _pack(torch.ones(3, 4)), None), torch.full((2, 3), 4.0)))
    except (AttributeError, RuntimeError):
        return False


def _pack(weight: Tensor) -> Tensor:
    laid: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    return laid


def _product(x: Tensor, laid: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, laid, bias, "none", [], "")
    return product


class Packed(nn.Module):
    """Weights in a layout of the kernels' own, which can neither be moved nor saved."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        raise BundleError("this model is packed for inference on a CPU and can't be moved or converted; load it anew as it should be")

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise BundleError("this model is packed for inference on a CPU and can't be saved; load it with load_bundle() to train or save it")


class PackedLinear(Packed):
    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.laid, self.bias = _pack(linear.weight), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return _product(x, self.laid, self.bias)


class PackedProjection(Packed):
    """Several linear maps of one input; each part is laid out when it is first asked for."""

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self.weight, self.bias = projection.weight, projection.bias
        self.parts: dict[tuple[int, int], Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x, slice(None))

    def part(self, x: Tensor, outputs: slice) -> Tensor:
        start, end, _ = outputs.indices(self.weight.shape[0])
        if (start, end) not in self.parts:
            self.parts[start, end] = _pack(self.weight[start:end])
        return _product(x, self.parts[start, end], None if self.bias is None else self.bias[start:end])


class PackedDeembedder(Packed):
    """Logits; a tied matrix is laid out a second time beside that of the embedder."""

    def __init__(self, deembedder: Deembedder, embedder: Embedder) -> None:
        super().__init__()
        self.scale, self.bias = deembedder.scale, deembedder.bias
        self.laid = _pack(embedder.weight if deembedder.weight is None else deembedder.weight)

    def forward(self, x: Tensor, embedder: Embedder) -> Tensor:
        return _product(x if self.scale == 1.0 else x * self.scale, self.laid, self.bias)
