"""A model made ready for a CPU: in int8 where that is asked for or pays, nearly as good, and otherwise as it was."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.bundle import save_bundle
from regard.data.batch import Tokens
from regard.decoding import ready
from regard.decoding.fitting import products_of
from regard.decoding.lean import LeanStack
from regard.decoding.pack import packed
from regard.decoding.products import FloatProduct, Int8Product, available, sums_in_32_bits
from regard.decoding.ready import CLOSE, WrittenIn, lost, made_ready, prepare, uses_int8
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Beam, Method, Sampling
from regard.errors import BundleError, ConfigError, RegardError
from regard.models import Generator, Network, build
from regard.presets import preset
from tests.decoding.lively import END, SOURCES, Kind, assert_lively, decoded, lively, made_lively
from tests.decoding.plain import log_probabilities
from tests.families import sentences, small

needs_int8 = pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")
needs_gain = pytest.mark.skipif(not sums_in_32_bits() or not available(Int8Product), reason="int8 gains nothing on this CPU")
needs_float = pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")

SHAPE = {"width": 256, "heads": 4, "feedforward": 512}
WIDE = {
    "before": Kind("transformer-base", SHAPE | {"norm_place": "before"}, 0.1, 4, 2),
    "after": Kind("transformer-base", SHAPE, 0.0, 3, 6),
    "gpt2": Kind("gpt2", SHAPE, 0.1, 2, 2),
    "grouped": Kind("llama-tiny", SHAPE, 0.1, 2, 3),
}


@cache
def wide(kind: str) -> Generator:
    """Shared by all tests, so left as it is."""
    model = made_lively(WIDE[kind]).float()
    with torch.no_grad():
        model.deembed.weight.mul_(0.3)  # longer vectors make larger logits: so no word is certain
    return model


@cache
def rounded(kind: str) -> Generator:
    return packed(wide(kind), Int8Product)


def apart(one: Tensor, other: Tensor) -> float:
    """KL divergence of what is expected next, in nats a word."""
    first, second = one.double().log_softmax(-1), other.double().log_softmax(-1)
    return float((first.exp() * (first - second)).sum(-1).mean())


def rate(model: Generator, found: list[list[Hypothesis]]) -> float:
    """What a model thinks of the best outputs: log P a word, in one pass without a cache."""
    total = words = 0.0
    for source, outputs in zip(SOURCES, found, strict=False):
        chosen = [*outputs[0].tokens, END] if outputs[0].ended else outputs[0].tokens
        own = log_probabilities(model, source, outputs[0].tokens)
        total, words = total + sum(float(own[place, word]) for place, word in enumerate(chosen)), words + len(chosen)
    return total / words


@torch.inference_mode()
def followed(model: Generator, sources: list[list[int]], words: Tensor) -> Tensor:
    """The logits (sources, words, vocabulary) behind each of the words, position by position through the cache."""
    state, first = model.start(model.encode(Tokens.pad(sources)), room=words.shape[1])
    return torch.stack([first, *(model.step(words[:, place : place + 1], state)[:, 0] for place in range(words.shape[1] - 1))], 1)


# In int8


@needs_int8
@pytest.mark.parametrize("kind", WIDE)
def test_all_that_is_worked_out_at_every_word_gets_a_range(kind: str) -> None:
    """Or else every row would be rounded by itself, which is slower. What is made of a source once, and read at every word, is."""
    made = prepare(wide(kind), "int8").network
    products = list(products_of(made))
    assert len(set(map(id, products))) == len(products)
    assert all(product.seen is None for product in products)
    without = {product for product in products if product.range is None}
    assert len(without) < len(products)
    with torch.inference_mode():
        state, _ = made.start(made.encode(Tokens.pad(SOURCES[:4])), room=3)
        for product in products:
            product.look()
        made.step(torch.full((4, 1), 5), state)
    at_every_word = {product for product in products if product.seen}
    assert at_every_word
    assert not at_every_word & without


@needs_int8
@pytest.mark.parametrize("method", [Beam(size=1), Beam(size=4), Beam(size=4, groups=2)], ids=["greedy", "beam", "groups"])
@pytest.mark.parametrize("kind", WIDE)
def test_what_int8_writes_is_nearly_as_likely(kind: str, method: Method) -> None:
    """Judged by the model itself. Greedy search follows one near tie anywhere, up or down."""
    model = wide(kind)
    found, exact = decoded(rounded(kind), SOURCES, method), decoded(model, SOURCES, method)
    assert_lively([outputs[0] for outputs in exact])
    assert rate(model, found) > rate(model, exact) - 0.06
    assert rate(model, decoded(model, SOURCES, Sampling(seed=1))) < rate(model, exact) - 0.3  # which says something


@needs_int8
@pytest.mark.parametrize("kind", WIDE)
def test_int8_cached_is_uncached_and_alone_as_in_a_batch(kind: str) -> None:
    model, words = rounded(kind), torch.tensor(sentences(*[12] * 32, seed=9))
    together = followed(model, SOURCES[:32], words)
    alone = torch.cat([followed(model, [source], words[place : place + 1]) for place, source in enumerate(SOURCES[:32])])
    whole = torch.stack([log_probabilities(model, source, tuple(row[:-1])) for source, row in zip(SOURCES, words.tolist(), strict=False)])
    exact = followed(wide(kind), SOURCES[:32], words)
    for other in (alone, whole):
        assert apart(other, together) < CLOSE
    assert 1e-6 < apart(exact, together) < CLOSE
    mixed_up = followed(model, SOURCES[1:33], words)
    assert apart(mixed_up, together) > 3 * CLOSE


@needs_int8
@pytest.mark.parametrize("kind", WIDE)
def test_int8_scores_are_nearly_the_same_in_any_company(kind: str) -> None:
    model, method = rounded(kind), Beam(size=4)
    together = decoded(model, SOURCES[:24], method)
    alone = [decoded(model, [source], method)[0] for source in SOURCES[:24]]
    differences = [abs(one[0].score - other[0].score) for one, other in zip(alone, together, strict=True)]
    assert sum(differences) / len(differences) < 0.08
    assert all(one[0].score == pytest.approx(sum(one[0].log_probabilities) / len(one[0].log_probabilities)) for one in together)


# What is chosen


@needs_gain
@pytest.mark.parametrize("kind", WIDE)
def test_auto_is_int8_for_wide_models_that_write(kind: str) -> None:
    made = made_ready(wide(kind))
    assert uses_int8(made)
    assert isinstance(made.decoder, LeanStack)
    assert 0 < lost(wide(kind), made) <= CLOSE


@needs_float
def test_auto_is_float32_for_the_others() -> None:
    reader = small("bert-base", width=256, heads=4).float()
    for model in (lively("before", torch.float32), lively("gpt2", torch.float32), small("rnn-attention", width=256).float(), reader):
        made = made_ready(model)
        assert not uses_int8(made)
        assert any(isinstance(getattr(module, "product", None), FloatProduct) for module in made.modules())
    tokens = Tokens.pad(sentences(3, 9, 1))
    with torch.inference_mode():
        torch.testing.assert_close(made_ready(reader)(tokens), reader(tokens), atol=1e-4, rtol=1e-4)


@needs_float
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "auto"])
def test_int8_is_not_for_those_who_ask_for_another(precision: WrittenIn, monkeypatch: pytest.MonkeyPatch) -> None:
    if precision == "auto":
        monkeypatch.setattr(ready, "sums_in_32_bits", lambda: False)
    assert not uses_int8(made_ready(wide("before"), precision))


@needs_gain
def test_auto_is_float32_where_much_is_lost() -> None:
    """A few numbers that are far larger than all the others take the whole scale. In float32 this is the same function as before."""
    model = copy.deepcopy(wide("before"))
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "widen"):
                for parameter in (module.widen.weight, module.widen.bias):
                    parameter[:4] *= 4096
                module.narrow.weight[:, :4] /= 4096
    words = torch.tensor(sentences(*[12] * 4, seed=9))
    assert apart(followed(wide("before"), SOURCES[:4], words), followed(model, SOURCES[:4], words)) < 1e-6
    assert lost(model, packed(model, Int8Product)) > CLOSE
    assert not uses_int8(made_ready(model))
    assert uses_int8(made_ready(model, "int8"))  # who asks for it gets it


@pytest.mark.parametrize("precision", ["auto", "float32", pytest.param("int8", marks=needs_int8)])
def test_weights_that_are_not_numbers_are_said(precision: WrittenIn) -> None:
    for damaged in ("embed.weight", "decoder.layers.0.attention.project.weight"):
        model = copy.deepcopy(wide("before"))
        with torch.no_grad():
            model.get_parameter(damaged).fill_(float("nan"))
        made = made_ready(model, precision)
        assert not uses_int8(made)  # which would hide it
        with pytest.raises(RegardError, match="the model gave scores that are not numbers; its weights are damaged"):
            decoded(made, SOURCES[:4], Beam(size=2))


def test_on_a_gpu_there_is_no_int8_and_nothing_else_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "device", torch.device("cuda"))
    model = wide("before")
    with pytest.raises(ConfigError, match="int8 is for CPUs; on a GPU take bfloat16, or leave the precision out"):
        made_ready(model, "int8")
    for precision in ("auto", "float32", "float16", "bfloat16"):
        assert made_ready(model, precision) is model  # type: ignore[arg-type]


def test_without_kernels_the_model_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "available", lambda _: False)
    model = wide("before")
    with pytest.raises(ConfigError, match="this PyTorch has no int8 kernels for this CPU; take float32, or leave the precision out"):
        made_ready(model, "int8")
    assert made_ready(model) is made_ready(model, "float32") is model


def test_half_precision_stays_as_it_is() -> None:
    model = copy.deepcopy(wide("gpt2")).bfloat16()
    assert made_ready(model) is made_ready(model, "bfloat16") is model


# Ready models stay where they are


@pytest.mark.parametrize("kind", [pytest.param(FloatProduct, marks=needs_float), pytest.param(Int8Product, marks=needs_int8)])
def test_packed_models_are_neither_saved_nor_moved(kind: type[FloatProduct] | type[Int8Product], tmp_path: Path) -> None:
    model = lively("gpt2", torch.float32)
    made = packed(model, kind)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for move in (lambda: made.to(torch.bfloat16), made.half, made.double, lambda: made.to("meta")):
        with pytest.raises(BundleError, match="packed for inference on a CPU and can't be moved or converted; load it anew"):
            move()
    for save in (made.state_dict, lambda: save_bundle(made, tmp_path / "bundle")):
        with pytest.raises(BundleError, match="packed for inference on a CPU and can't be saved; load it with load_bundle"):
            save()
    after = model.state_dict()  # what both share is as it was
    assert all(after[name].dtype == tensor.dtype and torch.equal(after[name], tensor) for name, tensor in before.items())
    assert_lively([outputs[0] for outputs in decoded(made, SOURCES, Beam(size=1))])


@needs_int8
def test_a_model_with_little_room_and_few_words_to_read_is_tried_too() -> None:
    config = preset(
        "transformer-small", layers=1, decoder_layers=1, width=256, heads=4, feedforward=64, vocabulary=31, source_vocabulary=10, context=8
    )
    model = build(config).eval()
    assert 0 <= lost(model, made_ready(model, "int8")) < 1


def test_int8_is_made_from_float32() -> None:
    model = build(preset("gpt-small", layers=1, width=64, heads=2, feedforward=64, vocabulary=31)).eval()
    with pytest.raises(ConfigError, match="bfloat16; load it in float32"):
        made_ready(model.to(torch.bfloat16), "int8")
