"""Parts decoded beside each other: the same words as one after the other, in order, and errors that come through."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from regard.decoding import crew, many
from regard.decoding.many import decode_many
from regard.decoding.settings import Beam, Sampling
from regard.nn import record, using
from tests.decoding.lively import SOURCES, assert_same, lively


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(crew, "ENOUGH", 4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", [Beam(size=4, n_best=2), Beam(size=1), Sampling(seed=3, samples=2)], ids=["beam", "greedy", "sampling"])
@pytest.mark.parametrize("kind", ["before", "gpt2", "rnn-attention"])
def test_the_same_words_in_the_same_order(kind: str, method: Beam | Sampling, three_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources = lively(kind, torch.float64), [[*source] for source in SOURCES[:23]]
    threads = set()
    plain = many.decode
    monkeypatch.setattr(many, "decode", lambda *given, **more: threads.add(threading.get_ident()) or plain(*given, **more))
    found = decode_many(model, sources, method)
    assert len(threads) > 1
    assert torch.get_num_threads() == 3
    monkeypatch.setattr(crew, "ENOUGH", 10**6)
    assert_same(found, decode_many(model, sources, method), 1e-5)


def test_errors_come_through(three_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **more: object) -> None:
        raise ValueError("spilt")

    monkeypatch.setattr(many, "decode", fails)
    with pytest.raises(ValueError, match="spilt"):
        decode_many(lively("gpt2", torch.float32), [[*source] for source in SOURCES[:12]])


def test_whoever_watches_has_it_all_in_one_thread(three_cores: None) -> None:
    assert crew.crew_for(12) == 3
    assert crew.crew_for(7) == 1
    with using("explicit"):
        assert crew.crew_for(12) == 1
    with record(lively("gpt2", torch.float32)):
        assert crew.crew_for(12) == 1


def test_new_threads_have_as_many_as_before(three_cores: None) -> None:
    decode_many(lively("gpt2", torch.float32), [[*source] for source in SOURCES[:12]])
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [3]
