"""Trainings in folders and on disks that are not as they should be: said before the first step, or gone on with."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from regard.errors import RegardError, TrainingError
from regard.recipe import Recipe, load_recipe, parse_recipe, to_toml
from regard.training.ending import _history
from regard.training.figures import METRICS, Figures
from regard.training.folder import check_folder, check_recipe
from regard.training.report import Report
from regard.training.run import recipe_of, run_recipe
from regard.training.trainer import StoppedError, Trainer, _stop_requested
from regard.training.validate import Validation
from tests.training.test_run import (  # noqa: F401
    QUIET,
    _own_cache,
    _steps_done,
    _wait,
    finish,
    losses,
    recipe,
    same_weights,
    start,
    toml,
    write_data,
)


def said() -> tuple[Console, io.StringIO]:
    written = io.StringIO()
    return Console(file=written, width=1000), written


def never(*_: object, **__: object) -> None:
    raise AssertionError("a step was taken")


# Recipes


def test_no_clipping_is_read_back(tmp_path: Path) -> None:
    """The one setting that may be infinite."""
    (tmp_path / "recipe.toml").write_text("task = 'lm'\ndata.train = ['a.txt']\n")
    wanted = load_recipe(tmp_path / "recipe.toml", ["training.clip=inf"])
    check_recipe(wanted)
    (tmp_path / "again.toml").write_text(to_toml(wanted))
    assert to_toml(load_recipe(tmp_path / "again.toml")) == to_toml(wanted)
    assert "clip = inf\n" in to_toml(wanted)


@pytest.mark.parametrize("name", ["a\x7fb", "a\x1fb\n", "ünï \U0001f9ac", 'a"b\\c', "\x80\x85\u2028"])
def test_odd_names_are_read_back(name: str) -> None:
    wanted = Recipe.model_validate({"task": "lm", "data": {"train": [{"path": name, "only": {name: [name]}}]}})
    check_recipe(wanted)
    again = parse_recipe({"task": "lm", "data": {"train": [{"path": name, "only": {name: [name]}}]}})
    assert to_toml(again) == to_toml(wanted)


def test_a_recipe_that_could_not_be_read_back_is_refused_before_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(tmp_path, "lm")
    folder = tmp_path / "caf\udce9"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this disk takes no names that are not UTF-8")
    named = wanted.model_copy(update={"data": wanted.data.model_copy(update={"train": (wanted.data.train[0].model_copy(
        update={"path": shutil.copy(write_data(tmp_path, "lm"), folder)}),)})})  # fmt: skip
    monkeypatch.setattr(Trainer, "train", never)
    with pytest.raises(TrainingError, match="which is not UTF-8 and could not be read back; rename it"):
        run_recipe(named, tmp_path / "run", console=QUIET)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr("regard.training.folder.to_toml", lambda recipe: "task = 'lm'\nnothing")
    with pytest.raises(TrainingError, match=r"this recipe could not be read back, and so its training not be resumed: Expected '='"):
        run_recipe(wanted, tmp_path / "run", console=QUIET)


def test_without_clipping_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """clip = inf is what people write for none; it is none, and the run goes on from its own recipe."""
    wanted = recipe(tmp_path, "lm", training={"clip": math.inf, "steps": 20, "validate_every": 20})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    none = recipe(tmp_path, "lm", training={"clip": 0, "steps": 20, "validate_every": 20})
    run_recipe(none, tmp_path / "none", console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "none")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_anyone", lambda trainer, asked: trainer.progress.step == 13)
        with pytest.raises(StoppedError):
            run_recipe(wanted, tmp_path / "stopped", console=QUIET)
    assert recipe_of(tmp_path / "stopped").training.clip == math.inf
    run_recipe(recipe_of(tmp_path / "stopped"), tmp_path / "stopped", resume=True, console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")


# The folder


def contents(folder: Path) -> dict[Path, bytes]:
    """Of all files but TensorBoard's, whose thread may still be writing what it has."""
    paths = sorted(path for path in folder.rglob("*") if "tfevents" not in path.name)
    return {path: path.read_bytes() if path.is_file() else b"" for path in paths}


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "recipe.toml", "test.tsv", "checkpoints", "tensorboard", "bundle", "checkpoints/step-40"]
)
def test_a_link_in_a_run_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    out, precious = tmp_path / "run", tmp_path / "precious"
    run_recipe(recipe(tmp_path, "lm", training={"steps": 20}), out, console=QUIET)
    wanted = recipe_of(out)
    if (out / name).is_dir():
        (out / name).rename(precious)
    elif (out / name).exists():
        precious.write_text("1,000 lines of mine\n")
        (out / name).unlink()
    else:
        precious.mkdir()
        (precious / "mine").write_text("")
    (out / name).symlink_to(precious)
    before = contents(tmp_path)
    monkeypatch.setattr(Trainer, "train", never)
    with pytest.raises(TrainingError, match=rf"{name} is a link to .*precious, and a training writes nothing outside its folder; put what"):
        run_recipe(wanted, out, resume=True, console=QUIET)
    assert contents(tmp_path) == before


def test_a_pipe_in_a_run_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / METRICS)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl is no file, and a training writes one there; move it away"):
        check_folder(tmp_path)


def test_the_run_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    run_recipe(recipe(tmp_path, "lm", training={"steps": 2}), tmp_path / "run", console=QUIET)
    assert (tmp_path / "disk" / "bundle").is_dir()


@pytest.mark.parametrize("resume", [False, True])
def test_a_bundle_folder_that_is_someone_elses_is_said_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    (tmp_path / "run" / "bundle").mkdir(parents=True)
    (tmp_path / "run" / "bundle" / "mine").write_text("")
    monkeypatch.setattr(Trainer, "train", never)
    with pytest.raises(TrainingError, match="bundle exists and is not just a bundle; choose a new or empty folder"):
        run_recipe(recipe(tmp_path, "lm"), tmp_path / "run", resume=resume, console=QUIET)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["bundle"]


@pytest.mark.parametrize("name", ["", "checkpoints"])
def test_a_folder_that_can_t_be_written_is_said_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    out, access = tmp_path / "run", os.access
    (out / "checkpoints").mkdir(parents=True)
    # Root may write everywhere, and tests may be root's.
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not (Path(path) == out / name and mode & os.W_OK))
    monkeypatch.setattr(Trainer, "train", never)
    with pytest.raises(TrainingError, match=rf"{out / name} may not be written to; change its permissions, or choose another --out"):
        run_recipe(recipe(tmp_path, "lm"), out, console=QUIET)


# Figures


def test_a_bad_line_among_the_figures_is_left_out(tmp_path: Path) -> None:
    wanted = recipe(tmp_path, "lm", training={"steps": 40})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    run_recipe(wanted, tmp_path / "run", console=QUIET)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-40")
    metrics = tmp_path / "run" / METRICS
    lines = metrics.read_bytes().splitlines(keepends=True)
    bad = [b"\xff\n", b"[" * 100_000 + b"\n", b'{"step": "3"}\n', b'{"step": NaN}\n', b'{"step": ' + b"9" * 5000 + b"}\n", b"\n"]
    metrics.write_bytes(b"".join([*lines[:3], *bad, *lines[3:], b'{"step": 1']))
    console, written = said()
    run_recipe(recipe_of(tmp_path / "run"), tmp_path / "run", resume=True, console=console)
    assert f"{metrics}, line 4: no figures of a step; left out, and 4 lines like it\n" in written.getvalue()
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert same_weights(tmp_path / "whole", tmp_path / "run")


def test_the_last_line_may_be_cut_short_without_a_word(tmp_path: Path) -> None:
    console, written = said()
    (tmp_path / METRICS).write_bytes(b'{"step": 1, "loss": 1.0}\n{"step": 2, "lo')
    Report(tmp_path, 10, 1, console).forget_after(5)
    assert (tmp_path / METRICS).read_bytes() == b'{"step": 1, "loss": 1.0}\n'
    assert written.getvalue() == ""


def test_what_is_said_at_the_end_survives_them_too(tmp_path: Path) -> None:
    bad = [b"\xff", b"[" * 100_000, b'{"kind": "dev", "loss": 1.0}', b'{"kind": "dev", "loss": 1.0, "step": "x"}']
    (tmp_path / METRICS).write_bytes(b"\n".join([*bad, b'{"kind": "dev", "loss": 1.5, "step": 7}\n']))
    assert _history(tmp_path, "loss") == [(7, 1.5)]


def failing(error: OSError) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), PermissionError(13, "Permission denied")])
def test_figures_that_can_t_be_written_stop_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    wanted = recipe(tmp_path, "lm")
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    add = Figures.add
    monkeypatch.setattr(Figures, "add", lambda figures, step, given: failing(error)() if 10 <= step < 30 else add(figures, step, given))
    console, written = said()
    run_recipe(wanted, tmp_path / "run", console=console)
    warning = f"figures are missing from {tmp_path / 'run' / METRICS}: {error.strerror}; the training goes on without them\n"
    assert written.getvalue().count("figures are missing") == written.getvalue().count(warning) == 1
    assert same_weights(tmp_path / "whole", tmp_path / "run")
    whole = losses(tmp_path / "whole")
    assert losses(tmp_path / "run") == [*whole[:9], *whole[29:]]  # and it goes on with them as soon as it can


class Board:
    """A TensorBoard whose disk is full."""

    def __init__(self, *_: object) -> None:
        self.closed = False

    def add_scalar(self, *_: object) -> None:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("board", [Board, failing(PermissionError(13, "Permission denied"))])
def test_a_board_that_can_t_be_written_stops_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, board: Callable[..., Board]
) -> None:
    monkeypatch.setattr("regard.training.report._board", board)
    console, written = said()
    run_recipe(recipe(tmp_path, "lm"), tmp_path / "run", console=console)
    assert written.getvalue().count(f"figures are missing from {tmp_path / 'run' / 'tensorboard'}: ") == 1
    assert len(losses(tmp_path / "run")) == 40


def test_tensorboard_itself_on_a_full_disk(small_disk: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It writes in a thread, whose error comes out anywhere, and as a traceback."""
    pytest.importorskip("tensorboard", reason="needs the extra train")
    console, written = said()
    figures = {f"{number}": 1.0 for number in range(100)}
    with Report(small_disk, 1000, 1, console) as report:
        for step in range(200):
            report.validation(step, Validation(0.0, {"loss": 1.0, **figures}), False)
    assert written.getvalue().count("figures are missing from") == 2
    assert f"{small_disk / 'tensorboard'}: " in written.getvalue()
    assert "Traceback" not in capfd.readouterr().err
    for line in (small_disk / METRICS).read_bytes().splitlines()[:-1]:
        json.loads(line)


def test_a_folder_that_is_renamed_stops_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, settle = tmp_path / "run", Trainer._settle

    def renaming(trainer: Trainer) -> None:
        if trainer.progress.step == 15 and out.exists():
            out.rename(tmp_path / "moved")
        settle(trainer)

    console, written = said()
    monkeypatch.setattr(Trainer, "_settle", renaming)
    with pytest.raises(RegardError):  # the tokenizer that the bundle needs has moved too
        run_recipe(recipe(tmp_path, "lm"), out, console=console)
    assert f"figures are missing from {out / METRICS}: No such file or directory" in written.getvalue()
    assert (out / "checkpoints" / "step-40").is_dir()


def test_a_line_cut_short_by_a_full_disk_takes_no_other_with_it(tmp_path: Path) -> None:
    figures = Figures(tmp_path / METRICS)
    figures.add(1, {"loss": 1.0})
    with figures.path.open("a") as file:
        file.write('{"step": 2, "lo')
    figures.torn = True
    figures.add(3, {"loss": math.inf})
    assert [(record["step"], record["loss"]) for record in figures.read()] == [(1, 1.0), (3, None)]


def test_a_terminal_that_is_gone_stops_no_training(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    run_recipe(recipe(tmp_path, "lm"), tmp_path / "run", console=Console(file=Gone()))
    assert (tmp_path / "run" / "bundle").is_dir()


# Signals


@pytest.mark.parametrize("ignored", [True, False])
def test_a_signal_that_was_ignored_stays_ignored(ignored: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    try:
        with _stop_requested() as requested:
            signal.raise_signal(signal.SIGINT)
            assert requested() is not ignored
        assert signal.getsignal(signal.SIGINT) is (signal.SIG_IGN if ignored else signal.default_int_handler)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_training_in_the_background_is_not_meant_by_ctrl_c(tmp_path: Path) -> None:
    """As under nohup, and for what a script starts with &: it begins with Ctrl-C ignored."""
    path, out = toml(tmp_path, recipe(tmp_path, "lm", training={"steps": 200})), tmp_path / "run"
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-m", "regard", "train", path, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    _wait(lambda: _steps_done(out) > 10)
    os.kill(process.pid, signal.SIGINT)
    assert "the bundle is in" in finish(process)
