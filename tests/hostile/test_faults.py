"""Disks that are full, damaged or gone, and kills: a training goes on to the same bits, or says in a sentence why not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regard.data.store import Item, cached_store
from regard.errors import TrainingError
from regard.training.run import run_recipe
from regard.training.trainer import Trainer
from tests.hostile.test_training import said
from tests.training.test_run import QUIET, _own_cache, recipe, same_weights  # noqa: F401

# The cache


def flip(path: Path, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[bit // 8 % len(content)] ^= 1 << bit % 8
    path.write_bytes(content)


def nothing() -> Iterator[Item]:
    raise AssertionError("made again")
    yield


GROUPS = [[Item([1, 2, 3], [4, 5], given=1), Item([6, 7], [8], given=2)], [Item([9] * 40, [1], given=3)]]


def made_again(folder: Path) -> list[str]:
    """What is said when a store is opened, with which it is as it should be, and so is the next one."""
    told: list[str] = []
    store = cached_store(folder, "k", 10, GROUPS, told.append)
    for number, item in enumerate(item for group in GROUPS for item in group):
        assert store.target[number].tolist() == item.target
        assert store.source is not None
        assert store.source[number].tolist() == item.source
    assert store.given is not None
    assert store.given.tolist() == [1, 2, 3]
    assert store.groups is not None
    assert store.groups.edges.tolist() == [0, 2, 3]
    cached_store(folder, "k", 10, [nothing()], told.append)
    assert [path.name for path in folder.iterdir()] == ["k"]  # nothing of the old is left
    return told


NAMES = ["about.json", "given.npy", "source.edges.npy", "source.tokens", "target.edges.npy", "target.tokens", "SHA256SUMS"]


@pytest.mark.parametrize("name", NAMES)
def test_examples_that_are_damaged_are_made_again(tmp_path: Path, name: str) -> None:
    assert made_again(tmp_path) == []
    path, damages = tmp_path / "k" / name, dict[str, Callable[[], object]]()
    assert sorted(NAMES) == sorted(path.name for path in path.parent.iterdir())
    size = path.stat().st_size
    for bit in (0, 8 * size - 1, 8 * (size // 2) + 3):
        damages[f"bit {bit}"] = lambda bit=bit: flip(path, bit)  # type: ignore[misc]
    damages |= {
        "cut": lambda: os.truncate(path, size // 2),
        "empty": lambda: os.truncate(path, 0),
        "longer": lambda: path.write_bytes(path.read_bytes() + b"\0"),
        "gone": path.unlink,
        "a folder": lambda: (path.unlink(), path.mkdir()),
    }
    for what, damage in damages.items():
        damage()
        told = made_again(tmp_path)
        assert len(told) == 1, what
        assert str(path.parent) in told[0], what
        assert told[0].endswith("; it is made again"), what


def test_examples_without_checksums_are_made_again(tmp_path: Path) -> None:
    """As an earlier version left them."""
    made_again(tmp_path)
    (tmp_path / "k" / "SHA256SUMS").unlink()
    assert made_again(tmp_path) == [f"{tmp_path / 'k' / 'SHA256SUMS'} is missing or damaged; it is made again"]


@pytest.mark.parametrize("name", ["examples/*-train/target.tokens", "examples/*-dev/about.json", "tokenizers/*/target.json"])
def test_a_training_with_a_damaged_cache_is_the_same(tmp_path: Path, name: str) -> None:
    wanted = recipe(tmp_path, "lm", training={"steps": 10})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    (path,) = (tmp_path / "cache").glob(name)
    flip(path, 8 * (path.stat().st_size // 2))
    console, written = said()
    run_recipe(wanted, tmp_path / "run", console=console)
    assert written.getvalue().startswith(f"{path} is damaged: its checksum differs; it is made again\n")
    assert same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_file_that_is_cut_short_while_it_is_mapped_is_no_bus_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read what was cut off would end the process without a word."""
    wanted = recipe(tmp_path, "lm", training={"steps": 20})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    (path,) = (tmp_path / "cache").glob("examples/*-train/target.tokens")
    settle = Trainer._settle

    def cutting(trainer: Trainer) -> None:
        if trainer.progress.step == 12 and path.stat().st_size:
            os.truncate(path, 0)
        settle(trainer)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_settle", cutting)
        with pytest.raises(TrainingError, match=rf"{path} was cut short while it was read; see what writes there, and go on with --resume"):
            run_recipe(wanted, tmp_path / "run", console=QUIET)
    run_recipe(wanted, tmp_path / "run", resume=True, console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
