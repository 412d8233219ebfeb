"""In int8 what becomes of a source is the same to the last bit, whatever is read and written beside it."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from regard.data.batch import Tokens
from regard.decoding import reading
from regard.decoding.many import decode_many
from regard.decoding.products import Int8Product, available
from regard.decoding.settings import Beam, Method, Rules, Sampling
from regard.door import Model, load
from regard.models import Seq2Seq
from tests.closeness import assert_close
from tests.door.test_company import TEXTS

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
