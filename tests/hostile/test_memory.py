"""Too little memory: PyTorch says so in another way on a CPU than on a GPU, and it is met in the same."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.decoding.many import in_batches
from regard.errors import RegardError, given_up_without_memory, out_of_memory
from regard.training.objective import Objective
from regard.training.run import run_recipe
from tests.cli.running import run
from tests.training.test_run import QUIET, _own_cache, losses, recipe  # noqa: F401


def too_much() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def python_too() -> None:
    raise MemoryError


def on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


EACH = pytest.mark.parametrize("fail", [too_much, python_too, on_a_gpu])


@EACH
def test_it_is_known_for_what_it_is(fail: Callable[[], None]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        fail()
    assert out_of_memory(raised.value)
    assert not out_of_memory(RuntimeError("shapes don't fit"))
    with given_up_without_memory():
        fail()
    with pytest.raises(RuntimeError, match="shapes"), given_up_without_memory():
        raise RuntimeError("shapes don't fit")


@EACH
def test_a_batch_that_is_too_large_is_halved(fail: Callable[[], None]) -> None:
    sizes = []

    def work(part: Sequence[int]) -> list[int]:
        sizes.append(len(part))
        if len(part) > 2:
            fail()
        return [number * number for number in part]

    assert in_batches([1] * 8, lambda count, longest: True, work) == [number * number for number in range(8)]
    assert sizes[0] == 8
    machine = "the GPU" if fail is on_a_gpu else "this machine"
    with pytest.raises(RegardError, match=f"{machine} has too little memory for one text; allow shorter outputs, a smaller beam"):
        in_batches([1], lambda count, longest: True, lambda part: fail() or [0])  # type: ignore[func-returns-value]


def test_a_training_works_in_smaller_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_recipe(recipe(tmp_path), tmp_path / "room", console=QUIET)
    forward = Objective.forward

    def cramped(self: Objective, batch: Any) -> torch.Tensor:
        if batch.target.ids.numel() > 200:
            too_much()
        return forward(self, batch)

    monkeypatch.setattr(Objective, "forward", cramped)
    written = io.StringIO()
    run_recipe(recipe(tmp_path), tmp_path / "cramped", console=Console(file=written, width=1000))
    assert "out of memory: each batch is now worked through in 4 parts, with the same result" in written.getvalue()
    assert losses(tmp_path / "cramped") == pytest.approx(losses(tmp_path / "room"), abs=1e-5)


@EACH
def test_a_verb_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], None]) -> None:
    monkeypatch.setattr("regard.view.summary.summarise", lambda config: fail())
    done = run("info", "gpt2")
    assert (done.code, done.err) == (1, "regard: out of memory; ask for less at once, or let nothing else run beside it\n")
