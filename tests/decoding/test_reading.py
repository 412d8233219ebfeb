"""In int8 what becomes of a source is the same to the last bit, whatever is read and written beside it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from regard.data.batch import Tokens
from regard.decoding import reading
from regard.decoding.many import decode_many
from regard.decoding.products import Int8Product, available
from regard.decoding.ready import prepare
from regard.decoding.settings import Beam, Method, Rules, Sampling
from regard.door import Model, load
from regard.errors import RegardError
from regard.models import LanguageModel, Memory, Seq2Seq, State, build
from regard.presets import preset
from tests.closeness import assert_close
from tests.door.test_company import TEXTS
from tests.families import sentences, small

pytestmark = pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")

SOME = [*TEXTS[::9], f"{TEXTS[3]} {TEXTS[40]}", TEXTS[0][:4]]  # lengths in one, two and three whole steps
METHODS = {"greedy": Beam(size=1), "beam": Beam(size=4), "sampling": Sampling(temperature=1.0)}


@pytest.fixture(scope="module", params=["translator", "everyday"])
def model(request: pytest.FixtureRequest) -> Model:
    return load(request.param, device="cpu", precision="int8")


def sources(model: Model) -> list[list[int]]:
    reads, tag = model._source_tokenizer or model.tokenizer, ("de",) if isinstance(model.network, Seq2Seq) else ()
    ends = [reads.end_id] if tag else []
    return [[*reads.encode(text, *tag), *ends] for text in SOME]


def found(model: Model, ids: list[list[int]], which: list[int], method: Method) -> list[Any]:
    """All of a source's hypotheses, with the log-probability of each token."""
    return decode_many(model.writer, [ids[index] for index in which], method, Rules(max_length=12), numbers=which)  # type: ignore[arg-type]


def differing(model: Model, method: Method, sizes: tuple[int, ...]) -> int:
    """How many sources have something else in some company than alone."""
    ids = sources(model)
    alone, different = [found(model, ids, [index], method)[0] for index in range(len(ids))], set()
    for seed, size in enumerate(sizes):
        order = random.Random(seed).sample(range(len(ids)), len(ids))
        for start in range(0, len(order), size):
            part = order[start : start + size]
            different |= {index for index, own in zip(part, found(model, ids, part, method), strict=True) if own != alone[index]}
    return len(different)


@pytest.mark.parametrize("method", METHODS)
def test_to_the_last_bit(model: Model, method: str) -> None:
    assert differing(model, METHODS[method], (2, 5, len(SOME))) == 0


def test_at_tables_where_others_come_and_go(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes later stands in other slots, and slots that nobody sees are cleared away."""
    monkeypatch.setattr("regard.decoding.many.ENOUGH", 8)
    monkeypatch.setattr("regard.models.state.CLEAR_EVERY", 4)
    for method in ("greedy", "beam"):
        assert differing(model, METHODS[method], (len(SOME),)) == 0


def test_it_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as in float32, all together, some sources have other bits than alone."""
    model = load("translator", device="cpu", precision="int8")
    ids = sources(model)

    def read(which: list[int]) -> list[torch.Tensor]:
        with torch.inference_mode():
            memory = reading.encode(model.writer, Tokens.pad([ids[index] for index in which]))  # type: ignore[arg-type]
        assert memory.states is not None
        return [states[: len(ids[index])] for states, index in zip(memory.states, which, strict=True)]

    def different() -> int:
        together = read(list(range(len(ids))))
        return sum(not torch.equal(read([index])[0], together[index]) for index in range(len(ids)))

    assert different() == 0
    monkeypatch.setattr(reading, "uses_int8", lambda model: False)
    assert different() > 0


def test_what_is_read_is_what_the_definition_reads(model: Model) -> None:
    """Padding on the left is as good as on the right."""
    ids = sources(model)
    definition = model.network
    right = Tokens.pad(ids)
    width = right.ids.shape[1]
    left = Tokens(
        torch.tensor([[0] * (width - len(each)) + each for each in ids]),
        torch.tensor([[False] * (width - len(each)) + [True] * len(each) for each in ids]),
    )
    with torch.inference_mode():
        memories = [reading.encode(model.writer, tokens) for tokens in (right, left)]  # type: ignore[arg-type]
        if isinstance(definition, Seq2Seq):
            wanted = definition.encode(right)
            for memory in memories:
                for row, each in enumerate(ids):
                    assert memory.states is not None
                    assert wanted.states is not None
                    own = memory.states[row, : len(each)]
                    assert memory.tokens.ids[row, : len(each)].tolist() == each
                    assert float((own - wanted.states[row, : len(each)]).norm() / own.norm()) < 0.1
                assert_close(memory.states, memories[0].states, definition)
        for memory in memories[:1]:
            _, logits = reading.start(model.writer, memory, 5, 2)  # type: ignore[arg-type]
            _, alone = zip(
                *[reading.start(model.writer, reading.encode(model.writer, Tokens.pad([each])), 5, 2) for each in ids], strict=True
            )
            assert bool((logits == torch.cat(alone)).all())


def test_as_long_as_the_context() -> None:
    """Which is no whole step: the last of them is as wide as the context."""
    translator = load("translator", device="cpu", precision="int8")
    long = " ".join(["Oh"] * 127)
    assert len(translator.tokenizer.encode(long, "de")) + 1 == translator.config.context == 129
    alone, among = translator.translate(long, "de", max_length=8), translator.translate(["I like it.", long], "de", max_length=8)[1]
    assert (alone.text, alone.log_probabilities) == (among.text, among.log_probabilities)
    config = preset("transformer-base", layers=1, width=32, heads=2, feedforward=64, vocabulary=40, context=20)
    network = prepare(build(config).eval(), "int8").network
    for lengths in ([20], [17, 18, 19, 20], [3, 20, 16]):
        given = [list(range(5, 5 + length)) for length in lengths]
        for ids, own in zip(given, decode_many(network, given, Beam(size=2), Rules(max_length=5)), strict=True):
            assert own == decode_many(network, [ids], Beam(size=2), Rules(max_length=5))[0]


@pytest.mark.parametrize("name", ["rnn-attention", "rnn-plain"])
def test_what_has_a_memory_of_its_own_is_read_as_it_is_defined(name: str) -> None:
    network = prepare(small(name).float(), "int8").network
    found = decode_many(network, sentences(3, 20, 16), Beam(size=2), Rules(max_length=5))  # type: ignore[arg-type]
    assert len(found) == 3
    assert all(each for each in found)


def test_an_encoder_that_gives_more_is_followed() -> None:
    @dataclass(frozen=True)
    class Louder(Memory):
        gain: float = 0.0

    class Own(Seq2Seq):
        def encode(self, source: Tokens) -> Memory:
            plain = super().encode(source)
            return Louder(plain.tokens, plain.states, gain=2.0)

        def start(self, memory: Memory, room: int, hypotheses: int = 1) -> tuple[State, torch.Tensor]:
            state, logits = super().start(memory, room, hypotheses)
            return state, logits * memory.gain  # type: ignore[attr-defined]

    network = small("transformer-base").float()
    network.__class__ = Own
    ready = prepare(network, "int8").network
    assert len(decode_many(ready, sentences(5, 20), Beam(size=2), Rules(max_length=5))) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_damaged_weights_are_not_hidden(value: float) -> None:
    """A number that is none has no place among whole ones."""
    network = small("gpt2", tied=False).float()
    assert isinstance(network, LanguageModel)
    with torch.no_grad():
        network.embed.weight[7, 0] = value
    prepared = prepare(network, "int8")
    assert "some weights are not finite numbers" in prepared.notes[0]
    with pytest.raises(RegardError, match="scores that are not numbers"):
        decode_many(prepared.network, [[5, 7, 6]], Beam(size=1), Rules(max_length=4))
