"""A run's folder is one training's own: another is refused before it writes anything, and what a killed one left behind stops nobody."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from regard.errors import TrainingError
from regard.training import lock
from regard.training.lock import LOCK, owned
from tests.cli.running import run as command
from tests.training.test_run import _own_cache, _steps_done, _wait, finish, losses, recipe, same_weights, start, toml  # noqa: F401

HOLD = """
import sys, time
from pathlib import Path
from regard.training.lock import owned
with owned(Path(sys.argv[1]), print):
    print("mine", flush=True)
    time.sleep(600)
"""


def quiet(message: str) -> None:
    raise AssertionError(message)


def holder(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    return process


def test_another_is_told_whose_it_is_and_a_killed_ones_lock_is_no_lock(tmp_path: Path) -> None:
    process = holder(tmp_path / "run")
    try:
        whose = rf"run is being trained in by process {process.pid} on {socket.gethostname()}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d; "
        for _ in range(2):  # having asked changes nothing
            with (
                pytest.raises(TrainingError, match=whose + "wait for its end or stop it, or choose another --out"),
                owned(tmp_path / "run", quiet),
            ):
                pass
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == process.pid
    with owned(tmp_path / "run", quiet):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()
    assert not (tmp_path / "run").exists() or not (tmp_path / "run" / LOCK).exists()


@pytest.mark.parametrize("verb", [("import",), ("export", "--to", "onnx")], ids=["import", "export"])
@pytest.mark.parametrize("place", ["run", "run/bundle", "run/new/deep", "link"])
def test_other_verbs_write_into_no_run_that_is_trained_in(tmp_path: Path, verb: tuple[str, ...], place: str) -> None:
    """Nor beside its lock, nor deep in it, nor through a link; what a killed one left behind stops none of them."""
    run_folder = tmp_path / "run"
    (tmp_path / "link").symlink_to(run_folder / "bundle")
    arguments = (verb[0], tmp_path / "nowhere", tmp_path / place, *verb[1:])
    with owned(run_folder, quiet):
        done = command(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
        assert done.err.startswith(f"regard: {run_folder} is being trained in by process {os.getpid()} on {socket.gethostname()}, since ")
        assert done.err.endswith("; wait for its end or stop it, or choose a folder that does not lie in it\n")
        assert [path.name for path in run_folder.iterdir()] == [LOCK]
        beside = command(verb[0], tmp_path / "nowhere", tmp_path / "run2", *verb[1:])
        assert ("nowhere" in beside.err, "being trained" in beside.err) == (True, False)
    run_folder.mkdir(exist_ok=True)
    (run_folder / LOCK).write_text("{}")
    done = command(*arguments)
    assert ("nowhere" in done.err, "being trained" in done.err) == (True, False)  # on to the next trouble


def test_nothing_is_left_where_nothing_came_of_it(tmp_path: Path) -> None:
    with owned(tmp_path / "new", quiet):
        pass
    assert not (tmp_path / "new").exists()
    with owned(tmp_path / "used", quiet):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_an_owner_that_wrote_nothing_down_is_one_all_the_same(tmp_path: Path) -> None:
    with owned(tmp_path, quiet):
        (tmp_path / LOCK).write_text("")
        with pytest.raises(TrainingError, match="by another process; wait"), owned(tmp_path, quiet):
            pass


def test_a_lock_that_was_taken_away_in_between_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the file and locking it, its owner may end and another begin: then the file is no longer the one of that name."""
    lock_it, times = lock._lock, []

    def late(file: int) -> None:
        if not times:
            (tmp_path / LOCK).unlink()
        times.append(file)
        lock_it(file)

    monkeypatch.setattr(lock, "_lock", late)
    with owned(tmp_path, quiet):
        assert len(times) == 2
        assert (tmp_path / LOCK).is_file()


def test_where_the_system_keeps_no_locks_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(file: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock, "_lock", without)
    said: list[str] = []
    with owned(tmp_path, said.append):
        pass
    assert said == [f"{tmp_path} is on a file system without locks; see that nothing else is trained there"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match=r"can't write to .*; choose another --out"), owned(tmp_path / "file" / "run", quiet):
        pass


def test_two_trainings_in_one_folder(tmp_path: Path) -> None:
    """The second, resuming or not, alone or of two processes, is refused; the first ends as if alone."""
    wanted = recipe(tmp_path, training={"steps": 120, "checkpoint_every": 1000, "validate_every": 60}, model={"dropout": 0.2})
    path = toml(tmp_path, wanted)
    finish(start(tmp_path / "alone", path))
    out = tmp_path / "run"
    first = start(out, path)
    _wait(lambda: _steps_done(out) > 2)
    first.send_signal(signal.SIGSTOP)  # so that it is there until all have asked
    try:
        before = _contents(out)
        for arguments, processes in (((path, "--set", "training.lr=1e-3"), 1), (("--resume",), 1), ((path,), 2)):
            said = finish(start(out, *arguments, processes=processes), 1)
            assert f"is being trained in by process {first.pid} on " in said
            assert "Traceback" not in said.split("torch")[0]
            assert _contents(out) == before
    finally:
        first.send_signal(signal.SIGCONT)
    finish(first)
    assert same_weights(tmp_path / "alone", out)
    assert losses(tmp_path / "alone") == losses(out)
    assert not (out / LOCK).exists()


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
