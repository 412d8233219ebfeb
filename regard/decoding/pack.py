"""A model made ready for one CPU: every matrix a product of `products`, and the decoder written out flat."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn

from regard.decoding.lean import LeanStack, is_known
from regard.decoding.products import Product
from regard.errors import BundleError
from regard.models import Network
from regard.nn.attention import Projection
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.layers import Stack

ALIGNED = 64  # rows
M = TypeVar("M", bound=Network)


class Plain(Product):
    """Nothing laid out: PyTorch's own product, to tell whether a difference comes from the products or from what is around them."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def relu(self, x: Tensor) -> Tensor:
        return self(x).relu_()


class Laid:
    """Products of one kind by the weights that they are of, so that after an edit only those of the weights edited are laid out anew."""

    def __init__(self, kind: type[Product], before: Laid | None = None, edited: Iterable[Tensor] = ()) -> None:
        """`before`: what was laid out until now, of which all stay but those of weights that were edited since."""
        self.kind = kind
        stale = {id(tensor) for tensor in edited}
        old = before._found if before is not None and before.kind is kind else {}
        self._before = {key: found for key, found in old.items() if not stale & {key[0], key[1]}}
        # The tensors are kept with their products, so that no other tensor can have their id.
        self._found: dict[tuple[int, int, int, int], tuple[Product, Tensor, Tensor | None]] = {}

    def __call__(self, weight: Tensor, bias: Tensor | None, outputs: slice = slice(None)) -> Product:
        start, end, _ = outputs.indices(weight.shape[0])
        key = (id(weight), id(bias), start, end)
        if key not in self._found:
            if key in self._before:
                product = self._before[key][0].again()
            else:
                product = self.kind(weight[start:end], None if bias is None else bias[start:end])
            self._found[key] = product, weight, bias
        return self._found[key][0]

    def products(self) -> list[Product]:
        """Those that were laid out so far."""
        return [product for product, _, _ in self._found.values()]


def packed(model: M, product: type[Product] | Laid, *, flat: bool = True) -> M:
    """A copy for inference that shares everything but the packed weights. `flat`: with the decoder written out, where its types are known.

    Only exact types are replaced: what a subclass does is its own, and it is followed.
    """
    laid = product if isinstance(product, Laid) else Laid(product)
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    ready = copy.deepcopy(model, shared)
    for module in list(ready.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child, laid))
            elif type(child) is Projection:
                setattr(module, name, PackedProjection(child, laid))
            elif type(child) is Deembedder and isinstance(embed := getattr(ready, "embed", None), Embedder):
                setattr(module, name, PackedDeembedder(child, embed, laid))
    stack = getattr(ready, "decoder", None)
    if flat and isinstance(stack, Stack) and is_known(stack):
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
    """What a linear map has is still there for whoever reads it."""

    def __init__(self, linear: nn.Linear, laid: Laid) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.product = laid(linear.weight, linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class PackedProjection(Packed):
    """Several linear maps of one input; each part is laid out when it is first asked for."""

    def __init__(self, projection: Projection, laid: Laid) -> None:
        super().__init__()
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.weight, self.bias, self.laid = projection.weight, projection.bias, laid

    def forward(self, x: Tensor) -> Tensor:
        return self.product(slice(None))(x)

    def part(self, x: Tensor, outputs: slice) -> Tensor:
        return self.product(outputs)(x)

    def product(self, outputs: slice) -> Product:
        return self.laid(self.weight, self.bias, outputs)


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

    def __init__(self, deembedder: Deembedder, embedder: Embedder, laid: Laid) -> None:
        super().__init__()
        self.scale, self.tied, self.bias = deembedder.scale, deembedder.weight is None, deembedder.bias
        self.weight = embedder.weight if deembedder.weight is None else deembedder.weight
        self.product = laid(self.weight, deembedder.bias)

    def forward(self, x: Tensor, embedder: Embedder) -> Tensor:
        x = x if self.scale == 1.0 else x * self.scale
        if self.tied and embedder.weight is not self.weight:  # tied to another than that of the whole model
            return nn.functional.linear(x, embedder.weight, self.bias)
        return self.product(x)
