"""A prepared copy is compared with the definition before it is used: mistakes planted in it are found in every precision, and said."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batch import Tokens
from regard.decoding import pack, ready
from regard.decoding.lean import LeanAttention, LeanLayer, LeanStack, is_known
from regard.decoding.pack import PackedLinear, packed
from regard.decoding.products import FloatProduct, Int8Product, available
from regard.decoding.ready import WrittenIn, made_ready, prepare
from regard.decoding.verify import MEAN_KL, SPREAD, verify
from regard.models import Generator, Network
from regard.nn.attention import Attention
from regard.nn.layers import Block, FeedForward
from regard.nn.masks import Mask
from tests.decoding.test_lean import OTHERS, SOURCES, model_of, read
from tests.decoding.test_ready import WIDE, wide
from tests.families import FAMILIES, small

pytestmark = pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
INT8 = pytest.param("int8", marks=pytest.mark.skipif(not available(Int8Product), reason="no int8 kernels for this CPU"))
ON_A_CPU: list[Any] = ["float32", "auto", INT8]


def lively_biases(model: Network) -> Network:
    """A copy whose biases and norms say something, each its own."""
    model, chance = copy.deepcopy(model), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=chance) * (0.3 if "norm" in name else 0.2))
    return model


def assert_same(wanted: list[Tensor], found: list[Tensor], precision: WrittenIn) -> None:
    """But for rounding."""
    for one, other in zip(wanted, found, strict=True):
        divergence = (one.softmax(-1) * (one.log_softmax(-1) - other.log_softmax(-1))).sum(-1).mean()
        assert float(divergence) < (1e-6 if precision == "float32" else 3 * MEAN_KL)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_is_verified(name: str) -> None:
    model = small(name).float()
    found = prepare(model, "float32")
    assert found.network is not model
    assert found.verification is not None
    assert found.verification.passed
    assert not found.notes
    parts = [part.part for part in found.verification.parts]
    if name == "bert-base":
        assert parts == ["encode", "fill", "classify"]
    else:
        assert parts == [*(["encode"] if model.config.kind != "lm" else []), "prefill", "decode", "append", "score"]


@pytest.mark.parametrize("kind", [*OTHERS, "window", "prefix", "learned"])
def test_so_is_every_other_kind(kind: str) -> None:
    found = prepare(model_of(kind), "float32")
    assert found.verification is not None
    assert found.verification.passed
    assert isinstance(found.network.decoder, LeanStack)


@pytest.mark.parametrize("context", [3, 4, 6, 8])
def test_a_model_with_little_room_is_tried_as_far_as_it_goes(context: int) -> None:
    for name in ("gpt2", "transformer-base"):
        found = verify(model := small(name, context=context).float(), made_ready(model))
        assert found.passed
        assert "prefill" in [part.part for part in found.parts]


# Mistakes in what is written out a second time


def qk_norm(patch: pytest.MonkeyPatch) -> None:
    """The definition normalises queries and keys; the flat decoder has never heard of it."""
    original = Attention._split

    def split(self: Attention, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = original(self, projected)
        return F.rms_norm(query, query.shape[-1:]), F.rms_norm(key, key.shape[-1:]), value

    patch.setattr(Attention, "_split", split)


def dropped_bias(patch: pytest.MonkeyPatch) -> None:
    original = LeanAttention._mixed

    def mixed(self: LeanAttention, *given: Any, **how: Any) -> Tensor:
        bias = self.join.bias  # type: ignore[attr-defined]
        made = original(self, *given, **how)
        return made if bias is None else made - bias

    patch.setattr(LeanAttention, "_mixed", mixed)


def mask_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = LeanAttention.hidden

    def hidden(self: LeanAttention, mask: Any, bias: Tensor | None, like: Tensor) -> Tensor:
        return original(self, mask, bias, like).roll(1, 1)

    patch.setattr(LeanAttention, "hidden", hidden)


def another_layers_norm(patch: pytest.MonkeyPatch) -> None:
    original = LeanStack.__init__

    def begin(self: LeanStack, *given: Any) -> None:
        original(self, *given)
        self.flat[1].feedforward.norm = self.flat[0].feedforward.norm

    patch.setattr(LeanStack, "__init__", begin)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [qk_norm, dropped_bias, mask_off_by_one, another_layers_norm]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("precision", ON_A_CPU)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_mistakes_of_the_flat_decoder_are_found(
    kind: str, precision: WrittenIn, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lively_biases(wide(kind))
    plant(monkeypatch)
    found = prepare(model, precision)
    assert found.notes[0].startswith("the flat decoder differs from the definition at ")
    assert "so the model runs layer by layer, which is right and slower" in found.notes[0]
    assert not any(isinstance(module, LeanStack) for module in found.network.modules())
    assert found.network is not model  # the products are good
    assert_same(read(model, SOURCES["padded"]), read(found.network, SOURCES["padded"]), precision)


# Mistakes in the products, or in what is packed


def without_bias(patch: pytest.MonkeyPatch) -> None:
    original = PackedLinear.forward
    patch.setattr(PackedLinear, "forward", lambda self, x: original(self, x) - (0 if self.bias is None else self.bias))


def without_bias_in_8_bits(patch: pytest.MonkeyPatch) -> None:
    original = Int8Product.__init__
    patch.setattr(Int8Product, "__init__", lambda self, weight, bias: original(self, weight, None))


def a_norm_of_another_layer(patch: pytest.MonkeyPatch) -> None:
    original = pack.packed

    def swapped(model: Any, *given: Any, **more: Any) -> Any:
        made = original(model, *given, **more)
        layers = made.decoder.layers
        layers[1].attention_add.norm = layers[0].attention_add.norm
        made.decoder.flat = [LeanLayer(layer) for layer in layers]
        return made

    patch.setattr(ready, "packed", swapped)


@pytest.mark.parametrize(
    ("plant", "precision"),
    [
        *[(without_bias, each) for each in ("float32", "auto")],
        *[(a_norm_of_another_layer, each) for each in ("float32", "auto")],
        *[pytest.param(plant, "int8", marks=INT8.marks) for plant in (without_bias, without_bias_in_8_bits, a_norm_of_another_layer)],
    ],
)
def test_mistakes_of_packing_are_found(plant: Callable[..., None], precision: WrittenIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the definition is used."""
    model = lively_biases(wide("after"))
    plant(monkeypatch)
    found = prepare(model, precision)
    assert found.network is model
    assert "runs as it is defined, which is right and slower" in found.notes[-1]
    if plant is without_bias_in_8_bits:
        assert "where the product of " in found.notes[-1]
    assert found.known is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_a_gpu_runs_is_verified_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision here, on what a CPU has for it."""
    model = small("transformer-base", tied=False, output_bias=True, logit_scale=1.0).to(dtype)
    with torch.no_grad():
        model.deembed.bias.normal_()  # type: ignore[union-attr]
    found = ready._on_a_gpu(model)
    assert found.network is not model
    assert found.verification is not None
    assert found.verification.passed
    original = pack.AlignedDeembedder.forward
    monkeypatch.setattr(pack.AlignedDeembedder, "forward", lambda self, *given: original(self, *given) - self.bias[: self.words])
    found = ready._on_a_gpu(model)
    assert found.network is model
    assert "the vocabulary filled up for a GPU differs from the definition at prefill" in found.notes[0]


def test_bounds() -> None:
    """What is said to be the same is within a ten-thousandth of the spread; in int8 within the nats allowed."""
    model = wide("after")
    exact = verify(model, packed(model, FloatProduct))
    assert all(0 < part.spread < SPREAD for part in exact.parts)
    if available(Int8Product):
        rounded = verify(model, packed(model, Int8Product), "int8")
        assert rounded.passed
        assert 0 < rounded.mean_kl < MEAN_KL
        assert not verify(model, packed(model, Int8Product)).passed  # as float32 it would not do
    assert verify(model, model).passed
    assert verify(model, model).why == "is as the definition"


# Definitions that no fast path has ever seen


class Normalised(Attention):
    """With queries and keys of length one."""

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super()._split(projected)
        return F.normalize(query, dim=-1) * 3, F.normalize(key, dim=-1) * 3, value


class Halved(Block):
    """Every layer adds half as much."""

    def forward(self, x: Tensor, *given: Any, **more: Any) -> Tensor:
        return (x + super().forward(x, *given, **more)) / 2


class Chosen(FeedForward):
    """As much of the inner numbers as the token itself says; a matrix is read, and not called."""

    def forward(self, x: Tensor) -> Tensor:
        inner = F.linear(x, self.widen.weight, self.widen.bias).relu()
        made: Tensor = self.narrow(inner[..., : self.narrow.in_features] * x[..., :1].sigmoid())
        return made


class Unlike(nn.Module):
    """In a place of a feed-forward, with nothing in common."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x.roll(1, -1) * self.weight


def turned_into(model: Network, old: type[nn.Module], new: type[nn.Module]) -> None:
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is old:
                other = new.__new__(new)
                other.__dict__.update(vars(child))
                setattr(module, name, other)


@pytest.mark.parametrize("own", [Normalised, Halved, Chosen, Unlike])
@pytest.mark.parametrize("precision", ON_A_CPU)
@pytest.mark.parametrize("kind", WIDE)
def test_a_definition_of_ones_own_is_followed(kind: str, precision: WrittenIn, own: type[nn.Module]) -> None:
    model = copy.deepcopy(wide(kind))
    if own is Unlike:
        for layer in model.decoder.layers:  # type: ignore[union-attr]
            layer.feedforward = Unlike(model.config.width)  # type: ignore[operator]
    else:
        turned_into(model, own.__bases__[0], own)
    found = prepare(model, precision)
    assert not is_known(model.decoder)  # type: ignore[arg-type]
    assert not any(isinstance(module, LeanStack) for module in found.network.modules())
    assert sum(isinstance(module, own) for module in found.network.modules()) == sum(isinstance(module, own) for module in model.modules())
    wanted, ours = read(model, SOURCES["padded"]), read(found.network, SOURCES["padded"])
    assert max(float((one - other).abs().max()) for one, other in zip(wanted, read(wide(kind), SOURCES["padded"]), strict=True)) > 0.1
    assert_same(wanted, ours, precision)


def test_a_model_that_can_not_be_copied_runs_as_it_is() -> None:
    model = copy.deepcopy(wide("gpt2"))
    model.counted = (number for number in range(3))  # type: ignore[assignment]
    found = prepare(model, "float32")
    assert found.network is model
    assert "cannot pickle 'generator' object" in found.notes[0]


def test_a_deembedder_that_is_given_another_embedder_uses_it() -> None:
    model = small("gpt2", tied=True).float()
    made = packed(model, FloatProduct)
    other = copy.deepcopy(model.embed)
    with torch.no_grad():
        other.weight.neg_()  # type: ignore[union-attr]
        x = torch.randn(2, 3, model.config.width)
        assert isinstance(model, Generator)
        torch.testing.assert_close(made.deembed(x, other), model.deembed(x, other))  # type: ignore[operator]
        assert bool(made(Tokens.pad([[3, 4, 5]])).isfinite().all())


# The same mistakes in a copy in half precision, whose rounding would hide what is smaller than itself


Spoil = Callable[[Network], None]


def with_normed_queries(copied: Network) -> None:
    turned_into(copied, Attention, Normalised)


def with_a_bias_dropped(copied: Network) -> None:
    with torch.no_grad():
        copied.get_parameter("decoder.layers.1.attention.join.bias").zero_()


def with_a_mask_off_by_one(copied: Network) -> None:
    """What is hidden is what stands one place further on."""

    def moved(module: nn.Module, given: Any, more: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        mask = more.get("mask")
        assert mask is None or isinstance(mask, Mask)
        return given, more | ({} if mask is None or mask.visible is None else {"mask": Mask(mask.visible.roll(1, -1))})

    copied.get_submodule("decoder").register_forward_pre_hook(moved, with_kwargs=True)


def with_the_norm_of_another_layer(copied: Network) -> None:
    layers = copied.decoder.layers  # type: ignore[union-attr]
    layers[1].feedforward_add.norm = layers[0].feedforward_add.norm  # type: ignore[index, union-attr]


SPOILED: list[Spoil | None] = [None, with_normed_queries, with_a_bias_dropped, with_a_mask_off_by_one, with_the_norm_of_another_layer]


@pytest.mark.parametrize("spoil", SPOILED)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_each_mistake_is_red_in_bfloat16(kind: str, spoil: Spoil | None) -> None:
    model = lively_biases(wide(kind))
    with torch.no_grad():
        model.get_parameter("decoder.layers.1.attention.join.bias").mul_(5)
    copied = copy.deepcopy(model)
    if spoil is not None:
        spoil(copied)
    found = verify(model, copied.to(torch.bfloat16), "bfloat16")
    assert found.passed == (spoil is None), found
    assert (found.wrong is None) == (spoil is None)
