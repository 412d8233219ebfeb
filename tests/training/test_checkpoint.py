"""Checkpoints: what is saved is what is loaded, bit for bit, and there is always a whole one, whatever happens to the newest."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.errors import BundleError, RegardError, TrainingError
from regard.recipe import TrainingSettings
from regard.training.average import Ema
from regard.training.checkpoint import Checkpoint, Checkpoints
from regard.training.optim import make_optimizer
from tests.families import outputs, sentences, small

TENSORS = {
    "float32": torch.tensor([1.5, -0.0, math.nan, math.inf, 1e-45]),
    "bfloat16": torch.randn(3, 2).bfloat16(),
    "float16": torch.randn(3).half(),
    "float64": torch.randn(2, 3, dtype=torch.double),
    "int64": torch.tensor([-(2**63), 2**63 - 1]),
    "uint8": torch.get_rng_state(),
    "bool": torch.tensor([True, False]),
    "single": torch.tensor(7.0),
    "empty": torch.empty(0, 4),
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "part": torch.arange(10)[2:7:2],
    "spread": torch.tensor([[1.0], [2.0]]).expand(2, 3),
    "learned": torch.nn.Parameter(torch.randn(2)),
}


def same(a: Any, b: Any) -> bool:
    """Equal in value, type and every bit."""
    if isinstance(a, Tensor):
        bits = [tensor.detach().contiguous().flatten().view(torch.uint8).tolist() for tensor in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and bits[0] == bits[1]
    if isinstance(a, dict):
        return type(b) is dict and list(a) == list(b) and all(type(k) is type(m) and same(a[k], b[k]) for k, m in zip(a, b, strict=True))
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b)) and str(a) == str(b)  # -0.0 is not 0.0


def no_warning(message: str) -> None:
    raise AssertionError(message)


def found(folder: Path) -> Checkpoint:
    checkpoint = Checkpoints(folder, keep=9).newest(no_warning)
    assert checkpoint is not None
    return checkpoint


def filled(step: int, count: int = 64) -> dict[str, Tensor]:
    return {"weight": torch.full((count,), float(step))}


@pytest.mark.parametrize("name", TENSORS)
def test_every_kind_of_tensor_comes_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    Checkpoints(tmp_path, 1).save(1, {"w": TENSORS[name]}, {"t": TENSORS[name]})
    assert same(found(tmp_path).weights(), {"w": TENSORS[name].detach()})
    assert same(found(tmp_path).state(), {"t": TENSORS[name].detach()})


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    state = {
        "numbers": [1, -(2**80), 0.1, -0.0, 1e-320, math.nan, math.inf, -math.inf],
        "rest": (True, False, None, "", "ä\n\u2028\ud800", (), [], {}),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "lr": 0.5}, 10: {}, -1: []}},
        "mixed": {1: "number", "1": "text"},
        "$tensor": "0",
        "tricky": [{"$tuple": [1]}, {"$dict": []}, {"$float": "nan"}],
        "dots": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}},
        "random": random.Random(3).getstate(),
    }
    Checkpoints(tmp_path, 1).save(1, {}, state)
    assert same(found(tmp_path).state(), state)


def test_tensors_that_share_memory_are_written_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    Checkpoints(tmp_path, 1).save(1, {"a": whole, "b": whole, "c": whole[2:4]}, {"a": whole, "again": [whole, whole[1:]]})
    assert same(found(tmp_path).weights(), {"a": whole, "b": whole, "c": whole[2:4]})
    assert same(found(tmp_path).state(), {"a": whole, "again": [whole, whole[1:]]})


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"a": [{"b": {1, 2}}]}, r"can't hold a value of type set at 'state\.a\.0\.b'"),
        ({"a": {(1, 2): 3}}, r"can't have the key \(1, 2\) at 'state\.a'"),
        ({"a": object()}, r"can't hold a value of type object at 'state\.a'; make it a tensor, number or text"),
    ],
)
def test_what_can_not_be_saved_is_named(state: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=says):
        Checkpoints(tmp_path, 1).save(1, {}, state)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_training_goes_on_exactly_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    settings = TrainingSettings(optimizer=kind, lr=0.01)
    model = small("gpt2").float()
    optimizer, ema = make_optimizer(model, settings, fused=False), Ema(model.state_dict(), 0.9)

    def train(steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            outputs(model, Tokens.pad(sentences(3)), Tokens.pad(sentences(4, 7, seed=step))).logsumexp(-1).sum().backward()
            optimizer.step()
            ema.update(model.state_dict())

    train(range(3))
    Checkpoints(tmp_path, 1).save(3, model.state_dict(), {"optimizer": optimizer.state_dict(), "ema": ema.state_dict()})
    train(range(3, 6))
    whole = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    averages = ema.weights()
    model = small("gpt2").float()
    optimizer, ema = make_optimizer(model, settings, fused=False), Ema(model.state_dict(), 0.9)
    model.load_state_dict(found(tmp_path).weights())
    optimizer.load_state_dict(found(tmp_path).state()["optimizer"])
    ema.load_state_dict(found(tmp_path).state()["ema"])
    train(range(3, 6))
    assert same(whole, dict(model.state_dict()))
    assert same(averages, ema.weights())


def steps(folder: Path) -> list[int]:
    return [checkpoint.step for checkpoint in Checkpoints(folder, keep=9).all()]


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", keep=2)
    assert checkpoints.all() == []
    assert checkpoints.newest(no_warning) is None
    scores = {8: 1.0, 9: 3.5, 10: None, 11: math.nan, 100: 3.5, 101: -1.0}
    for step, score in scores.items():
        path = checkpoints.save(step, filled(step), {"step": step}, score=score)
        assert path == checkpoints.folder / f"step-{step}"
    assert [(checkpoint.step, checkpoint.score) for checkpoint in checkpoints.all()] == [(9, 3.5), (100, 3.5), (101, -1.0)]
    best, newest = checkpoints.best(no_warning), checkpoints.newest(no_warning)
    assert best is not None
    assert newest is not None
    assert (best.step, newest.step) == (9, 101)
    assert same(best.weights(), filled(9))
    assert newest.state() == {"step": 101}
    checkpoints.save(102, filled(102), {}, score=4.0)
    assert steps(checkpoints.folder) == [101, 102]
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["step-101", "step-102"]


def test_the_files_check_out_with_the_usual_tool(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, 1).save(5, filled(5), {"a": torch.ones(2)})
    assert sorted(file.name for file in path.iterdir()) == ["SHA256SUMS", "model.safetensors", "state.json", "state.safetensors"]
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=path, check=True)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a bit flipped": (lambda folder: flip(folder / "model.safetensors"), r"step-3/model\.safetensors is damaged: its checksum differs"),
    "cut short": (lambda folder: os.truncate(folder / "state.safetensors", 9), r"step-3/state\.safetensors is damaged"),
    "emptied": (lambda folder: os.truncate(folder / "state.json", 0), r"step-3/state\.json is damaged"),
    "missing": (lambda folder: (folder / "state.json").unlink(), r"step-3/state\.json is missing"),
    "no sums": (lambda folder: (folder / "SHA256SUMS").unlink(), r"step-3/SHA256SUMS is missing or damaged"),
    "no lines": (lambda folder: os.truncate(folder / "SHA256SUMS", 0), r"step-3/SHA256SUMS lacks model\.safetensors"),
    "half a line": (lambda folder: os.truncate(folder / "SHA256SUMS", 40), r"step-3/SHA256SUMS is missing or damaged"),
    "not text": (lambda folder: (folder / "SHA256SUMS").write_bytes(b"\xff\xfe"), r"step-3/SHA256SUMS is missing or damaged"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(kind: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, filled(step), {"step": step}, score=step)
    damage, says = DAMAGES[kind]
    damage(tmp_path / "step-3")
    messages: list[str] = []
    newest = checkpoints.newest(messages.append)
    assert newest is not None
    assert newest.step == 2
    assert newest.state() == {"step": 2}
    assert len(messages) == 1
    with pytest.raises(AssertionError, match=says + r".*; step-2 is used instead"):
        checkpoints.newest(no_warning)
    best = checkpoints.best(lambda message: None)
    assert best is not None
    assert best.step == 2
    checkpoints.save(3, filled(3), {"step": 3})
    assert found(tmp_path).step == 3


def test_all_damaged(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (1, 2):
        flip(checkpoints.save(step, filled(step), {}) / "model.safetensors")
    messages: list[str] = []
    assert checkpoints.newest(messages.append) is None
    assert [message.split("/")[-2] for message in messages] == ["step-2", "step-1"]
    assert all(message.endswith("; and no other checkpoint is whole") for message in messages)


def test_a_damaged_later_one_does_not_push_out_what_is_saved(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    flip(checkpoints.save(300, filled(300), {}) / "model.safetensors")
    checkpoints.save(250, filled(250), {})
    newest = checkpoints.newest(lambda message: None)
    assert newest is not None
    assert newest.step == 250


def test_reading_what_is_damaged_says_so(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, 1).save(1, filled(1), {"a": torch.ones(3)})
    os.truncate(path / "state.safetensors", 20)
    os.truncate(path / "model.safetensors", 20)
    with pytest.raises(TrainingError, match=r"can't read .*step-1/state\.safetensors"):
        Checkpoint(1, path).state()
    with pytest.raises(BundleError, match=r"model\.safetensors is damaged or cut short"):
        Checkpoint(1, path).weights()


def test_leftovers_and_strangers_are_not_taken_for_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(1, filled(1), {})
    for name in (".step-2.x7_a", ".step-1.removed", ".step-3.abc.removed", "step-", "step-2.bak", "notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("half a mod")
    (tmp_path / "step-9").write_text("a file")
    assert steps(tmp_path) == [1]
    assert found(tmp_path).step == 1
    checkpoints.save(4, filled(4), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "step-", "step-2.bak", "step-4", "step-9"]


def test_a_checkpoint_set_aside_for_one_that_never_came_is_found(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(7, filled(7), {})
    (tmp_path / "step-7").rename(tmp_path / ".step-7.abc.old")
    assert found(tmp_path).step == 7
    assert same(found(tmp_path).weights(), filled(7))
    checkpoints.save(8, filled(8), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-7", "step-8"]


def test_a_full_disk_leaves_the_earlier_checkpoint(small_disk: Path) -> None:
    checkpoints = Checkpoints(small_disk / "run", keep=3)
    checkpoints.save(1, filled(1), {"a": torch.ones(4)})
    for weights, state in [(filled(2, 200_000), {}), (filled(2), {"a": torch.ones(200_000)}), (filled(2), {"a": "x" * 800_000})]:
        with pytest.raises(RegardError, match=r"could not write .*step-2: .*free some space, or choose another folder"):
            checkpoints.save(2, weights, state)
        assert found(small_disk / "run").step == 1
        assert same(found(small_disk / "run").state(), {"a": torch.ones(4)})
        assert [path.name for path in (small_disk / "run").iterdir()] == ["step-1"]
    checkpoints.save(2, filled(2), {})
    assert steps(small_disk / "run") == [1, 2]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from regard.training.checkpoint import Checkpoints

torch.set_num_threads(1)
checkpoints = Checkpoints(Path(sys.argv[1]), keep=1)  # each save also removes the one before, or replaces the one of its step
chance, last, midway = random.Random(5), 0, 0
for _ in range(25):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        for step in range(last, 10**9):
            checkpoints.save(step, {"w": torch.full((100_000,), float(step))}, {"step": step, "t": torch.full((50_000,), step)})
            os.write(writing, b".")
    os.close(writing)
    os.read(reading, 1)  # the first is saved, which replaces the one it began from
    time.sleep(chance.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    midway += any(checkpoints.folder.glob(".step-*"))
    warnings = []
    newest = checkpoints.newest(warnings.append)
    assert newest is not None and not warnings, warnings
    assert newest.step >= last
    assert newest.state()["step"] == newest.step and (newest.state()["t"] == newest.step).all()
    assert (newest.weights()["w"] == newest.step).all()
    last = newest.step
assert midway, "no save was interrupted"
"""


def test_killed_at_any_moment_a_whole_checkpoint_is_found(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_the_best_are_kept_besides_the_last(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2, keep_best=2)
    for step, score in ((1, 5.0), (2, 9.0), (3, 8.0), (4, 1.0), (5, 2.0), (6, 3.0)):
        checkpoints.save(step, filled(step), {}, score=score)
    assert steps(tmp_path) == [2, 3, 5, 6]


def test_one_in_passing_takes_no_place_and_goes_with_the_next(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, filled(1), {})
    checkpoints.save(2, filled(2), {})
    checkpoints.save(3, filled(3), {}, passing=True)
    assert steps(tmp_path) == [1, 2, 3]
    assert found(tmp_path).step == 3
    assert found(tmp_path).passing
    checkpoints.save(4, filled(4), {})
    assert steps(tmp_path) == [2, 4]
