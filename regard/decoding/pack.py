"""A model made ready for one CPU: every matrix a product of `products`, and the decoder written out flat."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import Tensor, nn

from regard.decoding.lean import LeanStack
from regard.decoding.products import Product
from regard.errors import BundleError
from regard.models import Network
from regard.nn.attention import Projection
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.layers import Stack

ALIGNED = 64  # rows
M = TypeVar("M", bound=Network)


def packed(model: M, product: type[Product]) -> M:
    """A copy for inference that shares everything but the packed weights."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    ready = copy.deepcopy(model, shared)
    for module in list(ready.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child, product))
            elif isinstance(child, Projection):
                setattr(module, name, PackedProjection(child, product))
            elif isinstance(child, Deembedder) and isinstance(embed := getattr(ready, "embed", None), Embedder):
                setattr(module, name, PackedDeembedder(child, embed, product))
    if isinstance(stack := getattr(ready, "decoder", None), Stack):
        ready.decoder = LeanStack(stack, ready.config.width, ready.config.context)
    ready._apply = _stay  # type: ignore[method-assign]  # before the parts that are shared have moved
    return ready


def _stay(fn: Any, recurse: bool = True) -> Any:
    raise BundleError("this model is packed for inference on a CPU and can't be moved or converted; load it anew as it should be")


def aligned(model: M) -> M:
    """A copy that shares everything, but for a vocabulary whose size matrix kernels on a GPU dislike: that is filled up."""
    if not isinstance(deembed := getattr(model, "deembed", None), Deembedder) or model.config.vocabulary % ALIGNED == 0:
        return model
    ready = copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})
    ready.deembed = AlignedDeembedder(deembed, ready.embed)  # type: ignore[arg-type]
    return ready


class Packed(nn.Module):
    """Weights in a layout of the kernels' own, which can neither be moved nor saved."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return _stay(fn, recurse)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise BundleError("this model is packed for inference on a CPU and can't be saved; load it with load_bundle() to train or save it")


class PackedLinear(Packed):
    def __init__(self, linear: nn.Linear, product: type[Product]) -> None:
        super().__init__()
        self.product = product(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class PackedProjection(Packed):
    """Several linear maps of one input; each part is laid out when it is first asked for."""

    def __init__(self, projection: Projection, product: type[Product]) -> None:
        super().__init__()
        self.weight, self.bias, self.kind = projection.weight, projection.bias, product
        self.parts: dict[tuple[int, int], Product] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.product(slice(None))(x)

    def part(self, x: Tensor, outputs: slice) -> Tensor:
        return self.product(outputs)(x)

    def product(self, outputs: slice) -> Product:
        start, end, _ = outputs.indices(self.weight.shape[0])
        if (start, end) not in self.parts:
            self.parts[start, end] = self.kind(self.weight[start:end], None if self.bias is None else self.bias[start:end])
        return self.parts[start, end]


class AlignedDeembedder(Packed):
    """Logits, by a matrix with some rows more than there are words."""

    def __init__(self, deembedder: Deembedder, embedder: Embedder) -> None:
        super().__init__()
        weight = (embedder.weight if deembedder.weight is None else deembedder.weight).detach()
        self.words, self.scale = weight.shape[0], deembedder.scale
        more = -self.words % ALIGNED
        self.rows = nn.functional.pad(weight, (0, 0, 0, more))
        self.bias = None if deembedder.bias is None else nn.functional.pad(deembedder.bias.detach(), (0, more))

    def forward(self, x: Tensor, embedder: Embedder) -> Tensor:
        logits = nn.functional.linear(x if self.scale == 1.0 else x * self.scale, self.rows, self.bias)
        return logits[..., : self.words]


class PackedDeembedder(Packed):
    """Logits; a tied matrix is laid out a second time beside that of the embedder."""

    def __init__(self, deembedder: Deembedder, embedder: Embedder, product: type[Product]) -> None:
        super().__init__()
        self.scale = deembedder.scale
        self.product = product(embedder.weight if deembedder.weight is None else deembedder.weight, deembedder.bias)

    def forward(self, x: Tensor, embedder: Embedder) -> Tensor:
        return self.product(x if self.scale == 1.0 else x * self.scale)
