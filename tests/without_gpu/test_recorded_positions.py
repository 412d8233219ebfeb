"""Positions on a tape: what is replayed, with no Python between its operations, writes what is written without."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.decoding.lively import KINDS
from tests.without_gpu.recording import METHODS, RULES, decoding_law
from tests.without_gpu.tape import RecordingError, Tapes

STACKS = [kind for kind in KINDS if not kind.startswith("rnn")]


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_a_batch_that_shrinks(kind: str, name: str, rules: str) -> None:
    decoding_law(kind, name, rules)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", ["before", "window"])
def test_sources_come_and_go(kind: str, name: str) -> None:
    decoding_law(kind, name, "plain", rows=16)


@pytest.mark.parametrize("kind", STACKS)
def test_kept_tables(kind: str) -> None:
    """The second time everything is there, and nothing is recorded again."""
    decoding_law(kind, "beam", "plain", kept=True)


@pytest.mark.parametrize("name", METHODS)
def test_kept_tables_of_every_method(name: str) -> None:
    decoding_law("relative", name, "all", kept=True)


def test_recording_runs_nothing() -> None:
    total = torch.zeros(3)

    def work() -> None:
        total.add_(torch.ones(3) * 2)

    graph = Tapes().record(work)
    assert not total.any()
    for turn in range(1, 3):
        graph.replay()
        assert torch.equal(total, torch.full((3,), 2.0 * turn))


WAITING: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda x: float(x.sum()),
    "places": lambda x: x.nonzero(),
    "a choice": lambda x: x[x > 0],
    "the host's numbers": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
}


@pytest.mark.parametrize("what", WAITING)
def test_what_the_host_waits_for_is_refused(what: str) -> None:
    def work() -> None:
        WAITING[what](torch.ones(3))

    with pytest.raises(RecordingError):
        Tapes().record(work)
