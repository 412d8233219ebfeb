"""Disks that are full, damaged or gone, and kills: a training goes on to the same bits, or says in a sentence why not."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regard.data.store import Item, cached_store
from regard.errors import BundleError, ConfigError, TrainingError
from regard.storage import read_json, write_sums
from regard.training.checkpoint import Checkpoints
from regard.training.run import recipe_of, run_recipe
from regard.training.trainer import StoppedError, Trainer
from tests.hostile.faults import available
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


# Checkpoints and recipes


LONG = "9" * 5000


def test_a_number_of_thousands_of_digits_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(f'{{"step": {LONG}}}')
    with pytest.raises(BundleError, match=r"state\.json has a number of more digits than any setting; don't trust it"):
        read_json(tmp_path / "state.json")
    (tmp_path / "recipe.toml").write_text(f"task = 'lm'\ntraining.steps = {LONG}\n")
    with pytest.raises(ConfigError, match=r"recipe\.toml has a number of thousands of digits"):
        recipe_of(tmp_path)
    (tmp_path / "recipe.toml").write_text(f"task = {'[' * 20_000}")
    with pytest.raises(ConfigError, match=r"recipe\.toml is nested deeper than any setting"):
        recipe_of(tmp_path)


def stopped(wanted: Any, out: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> Path:
    """The checkpoint of a run that was stopped."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_anyone", lambda trainer, asked: trainer.progress.step == step)
        with pytest.raises(StoppedError):
            run_recipe(wanted, out, console=QUIET)
    return out / "checkpoints" / f"step-{step}"


def test_a_state_that_is_none_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checksums are right, and so it is taken for whole."""
    folder = stopped(recipe(tmp_path, "lm", training={"ema": 0.9}), tmp_path / "run", monkeypatch, 7)
    good = json.loads((folder / "state.json").read_text())
    whole = good["state"]
    states: list[Any] = [{}, {"state": {}}, {"state": 1}, {"state": []}, {"state": None}, {"step": 7}]
    states += [good | {"state": {key: value for key, value in whole.items() if key != left}} for left in whole if left != "settings"]
    states += [good | {"state": whole | {key: wrong}} for key in whole for wrong in (1, "x", [1], {"$tensor": "none"})]
    for state in states:
        (folder / "state.json").write_text(json.dumps(state))
        (folder / "SHA256SUMS").unlink()
        write_sums(folder)
        if state.get("state") == whole | {"ema": None}:
            continue
        with pytest.raises(TrainingError, match=r"step-7 is whole, but no checkpoint of this training \(.*\); move it away"):
            run_recipe(recipe_of(tmp_path / "run"), tmp_path / "run", resume=True, console=QUIET)


def test_another_vocabulary_is_no_resumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was learned anew, by another version say."""
    folder = stopped(recipe(tmp_path, "lm"), tmp_path / "run", monkeypatch, 7)
    checkpoint = Checkpoints(folder.parent, 1).all()[-1]
    state = checkpoint.state()
    state["made_for"]["vocabulary"][0] = "another"
    Checkpoints(folder.parent, 1).save(8, checkpoint.weights(), state)
    with pytest.raises(TrainingError, match="the vocabulary changed since step 8; put it back, or start again in another folder"):
        run_recipe(recipe_of(tmp_path / "run"), tmp_path / "run", resume=True, console=QUIET)


def test_settings_that_are_others_than_before_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On purpose, or by a damaged recipe: nobody else would notice."""
    stopped(recipe(tmp_path, "lm"), tmp_path / "run", monkeypatch, 7)
    console, written = said()
    run_recipe(recipe_of(tmp_path / "run", ["training.lr=0.004"]), tmp_path / "run", resume=True, console=console)
    assert "training.lr = 0.004, and was 0.005 up to step 7\n" in written.getvalue()
    assert written.getvalue().count(", and was ") == 1


# Kills, full disks and flips

ROOT = Path(__file__).parent.parent.parent
Trial = Callable[..., dict[str, Any]]


@contextmanager
def misbehaving(folder: Path) -> Iterator[tuple[list[str], Trial]]:
    """The calls of a whole training that write, and what tries a fault."""
    if (reason := available()) is not None:
        pytest.skip(reason)
    command = [sys.executable, "-W", "ignore", "-m", "tests.hostile.faults", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def trial(kind: str, at: int = 0, seed: int = 0) -> dict[str, Any]:
            print(json.dumps({"kind": kind, "at": at, "seed": seed}), file=process.stdin, flush=True)
            assert process.stdout is not None
            done: dict[str, Any] = json.loads(process.stdout.readline())
            return done

        yield json.loads(process.stdout.readline()), trial
        process.stdin.close()


def holds(done: dict[str, Any]) -> bool:
    """The same bits, or a sentence; after a kill or a full disk that was emptied, the same bits. And nothing else was touched."""
    fine = ["same bits"] if not done["kind"].startswith("flip") else ["same bits", "a sentence", "other bits, said"]
    return done["outcome"] in fine and not done["outside"]


def of_a_checkpoint(whole: list[str]) -> list[int]:
    return [number for number, call in enumerate(whole) if "/checkpoints" in call]


def test_a_few_faults(tmp_path: Path) -> None:
    with misbehaving(tmp_path) as (whole, trial):
        renames = [number for number in of_a_checkpoint(whole) if whole[number].startswith("rename")]
        begun = next(number for number, call in enumerate(whole) if ".tokenizer.json." in call)
        faults = [("kill", renames[1]), ("full", renames[0] - 5), ("full", len(whole) - 4), ("read-only", begun), ("flip checkpoint", 0)]
        for kind, at in faults:
            done = trial(kind, at)
            assert holds(done), json.dumps(done)


@pytest.mark.slow
def test_killed_at_every_call_of_a_checkpoint(tmp_path: Path) -> None:
    with misbehaving(tmp_path) as (whole, trial):
        for number in of_a_checkpoint(whole):
            done = trial("kill", number)
            assert holds(done), json.dumps(done)


@pytest.mark.slow
def test_kills_full_disks_and_flips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By chance; HOSTILE_SEED for others."""
    seed = int(os.environ.get("HOSTILE_SEED", "1"))
    chance, count = random.Random(seed), Counter[str]()
    with misbehaving(tmp_path) as (whole, trial):
        times = {"kill": 50, "full": 20, "read-only": 20}
        trials = [(kind, at, 0) for kind in times for at in chance.sample(range(len(whole)), times[kind])]
        flips = [f"flip {where}" for where in ("cache", "checkpoint", "recipe", "metrics")] * 20
        trials += [(kind, 0, chance.randrange(10**9)) for kind in flips]
        found = [trial(*each) for each in trials]
    for done in found:
        count[f"{done['kind']}: {done['outcome']}"] += 1
    with capsys.disabled():
        print(f"\nseed {seed}, of {len(whole)} calls that write: {dict(sorted(count.items()))}")
    assert [done for done in found if not holds(done)] == []
