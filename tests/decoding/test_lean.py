"""The decoder written out flat gives what the stack gives, for every kind of model, and steps aside for whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.lean import LeanAttention, LeanStack
from regard.decoding.pack import packed
from regard.decoding.products import FloatProduct, available
from regard.models import Generator, Seq2Seq
from regard.models.state import StackState
from regard.nn import record, using
from regard.nn.few import FEW
from tests.decoding.lively import KINDS, lively
from tests.families import VOCABULARY, sentences, small

pytestmark = pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")

TRANSFORMERS = [kind for kind in KINDS if not kind.startswith("rnn")]
# What none of these has: fewer keys than queries across, one key for all, no positions, a norm after embedding, gates and no biases.
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped-across": ("transformer-base", {"kv_heads": 2, "positions": "alibi"}),
    "one-key": ("llama-tiny", {"kv_heads": 1, "positions": "relative"}),
    "alibi-window": ("llama-tiny", {"positions": "alibi", "window": 3}),
    "nowhere": ("transformer-base", {"positions": "none", "embedding_norm": True}),
    "halves": ("gpt2", {"positions": "rotary", "position_layout": "halves"}),
    "gates": ("transformer-base", {"activation": "geglu-tanh", "bias": "none", "norm": "rms", "norm_place": "before"}),
    "narrow-heads": ("t5-small", {"head_width": 10, "attention_scale": 0.7, "decoder_layers": 3, "logit_scale": 1.0}),
}
SOURCES = {
    "padded": Tokens.pad(sentences(3, 7, 1, 5)),
    "on-the-left": Tokens.pad(sentences(3, 7, 1, 5)).map(lambda x: x.flip(1)),
    "of-one-length": Tokens(torch.tensor(sentences(4, 4, 4))),
}
POSITIONS, HYPOTHESES = 7, 3


def model_of(kind: str) -> Generator:
    if kind not in OTHERS:
        return lively(kind, torch.float32)
    preset, settings = OTHERS[kind]
    model = small(preset, **settings).float()
    assert isinstance(model, Generator)
    return model


@torch.inference_mode()
def read(model: Generator, source: Tokens, watching: Callable[[], AbstractContextManager[Any]] = nullcontext) -> list[Tensor]:
    """The logits of all that a search may ask for: the first words, several hypotheses that give way to each other, sources that leave,
    words in a row, and one more."""
    generator = torch.Generator().manual_seed(5)

    def chance(end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, generator=generator)

    with watching():
        memory, rows = model.encode(source), source.ids.shape[0]
        state, first = model.start(memory, room=20, hypotheses=HYPOTHESES)
        assert isinstance(state, StackState)
        logits = [first]
        state.select(torch.zeros(rows, HYPOTHESES, dtype=torch.long))
        for _ in range(POSITIONS):
            logits.append(model.step(chance(VOCABULARY, rows, HYPOTHESES), state))
            state.select(chance(HYPOTHESES, rows, HYPOTHESES))
        left = torch.tensor([0, 2])
        state.keep(left)
        logits.append(model.step(chance(VOCABULARY, 2, HYPOTHESES), state))
        state.select(chance(HYPOTHESES, 2, 1))
        logits.append(model.extend(chance(VOCABULARY, 2, 5), state))
        logits.append(model.step(chance(VOCABULARY, 2, 1), state))
    return logits


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each hypothesis had, for every layer that was passed the flat way."""
    seen: list[int] = []
    original = LeanAttention.of_itself

    def counted(self: LeanAttention, *given: Any) -> Tensor:
        seen.append(given[-1].queries)
        return original(self, *given)

    monkeypatch.setattr(LeanAttention, "of_itself", counted)
    return seen


def assert_close(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", [*TRANSFORMERS, *OTHERS])
def test_lean_is_the_stack(kind: str, source: str, passes: list[int]) -> None:
    model = model_of(kind)
    ready = packed(model, FloatProduct)
    layers = len(model.decoder.layers)  # type: ignore[union-attr, arg-type]
    wanted = read(model, SOURCES[source])
    assert not passes
    assert any(float(logits.std()) > 0.1 for logits in wanted)
    assert_close(read(ready, SOURCES[source]), wanted)
    prompt = 1 if isinstance(model, Seq2Seq) else SOURCES[source].ids.shape[1]
    assert passes == [queries for queries in (prompt, *[HYPOTHESES] * (POSITIONS + 1), 5, 1) for _ in range(layers)]


@pytest.mark.parametrize("kind", ["before", "relative", "grouped-across"])
def test_a_source_that_sees_nothing_is_left_to_the_stack_until_it_leaves(kind: str, passes: list[int]) -> None:
    model = model_of(kind)
    ready, layers = packed(model, FloatProduct), len(model.decoder.layers)  # type: ignore[arg-type]
    for sources, flat in (([[], [5, 6, 7], [8]], []), ([[5, 6, 7], [], [8]], [HYPOTHESES, 5, 1])):
        wanted = read(model, Tokens.pad(sources))
        assert all(bool(logits.isfinite().all()) for logits in wanted)
        assert_close(read(ready, Tokens.pad(sources)), wanted)
        assert passes == [queries for queries in flat for _ in range(layers)]
        passes.clear()


@pytest.mark.parametrize("kind", ["before", "relative", "gpt2", "window", "prefix"])
def test_whoever_watches_gets_the_stack(kind: str, passes: list[int]) -> None:
    model = model_of(kind)
    ready = packed(model, FloatProduct)
    wanted = read(model, SOURCES["padded"])
    taps: dict[str, set[str]] = {}
    for name, each in (("model", model), ("ready", ready)):
        with record(each) as taken:
            assert_close(read(each, SOURCES["padded"]), wanted)
        taps[name] = set(taken)
    assert taps["ready"] == taps["model"]
    assert "decoder.layers.1.attention.query" in taps["ready"]
    assert_close(read(ready, SOURCES["padded"], lambda: using("explicit")), wanted)
    assert not passes


@pytest.mark.parametrize("kind", ["learned", "alibi", "gpt2", "prefix"])
def test_many_words_at_once_are_for_the_stack(kind: str, passes: list[int]) -> None:
    model = model_of(kind)
    ready = packed(model, FloatProduct)
    words = torch.tensor(sentences(FEW + 1, FEW + 1, seed=3))

    @torch.inference_mode()
    def extended(each: Generator, count: int) -> Tensor:
        state, _ = each.start(each.encode(Tokens.pad(sentences(2, 4))), room=40)
        passes.clear()
        return each.extend(words[:, :count], state)

    assert_close([extended(ready, FEW + 1)], [extended(model, FEW + 1)])
    wanted = extended(model, FEW)
    assert not passes
    assert_close([extended(ready, FEW)], [wanted])
    assert passes == [FEW, FEW]
    extended(ready, FEW + 1)
    assert not passes


def test_recurrent_models_have_no_stack_to_flatten() -> None:
    assert not any(isinstance(module, LeanStack) for module in packed(lively("rnn-attention", torch.float32), FloatProduct).modules())
    lean = packed(lively("gpt2", torch.float32), FloatProduct).decoder
    assert isinstance(lean, LeanStack)
    assert len(lean.flat) == 2
