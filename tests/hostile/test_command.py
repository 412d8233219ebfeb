"""What the system or a number can do to a command: one sentence with a remedy, and no traceback."""

from __future__ import annotations

import os
import pwd
import time
from pathlib import Path

import pytest

from tests.cli.running import run

LONG = "a text in place of a name, " * 20

NAMES = [
    ("info", LONG),
    ("check", LONG),
    ("translate", "-m", LONG, "Hello."),
    ("evaluate", "-m", LONG, "--data", "rows.tsv"),
    ("evaluate", "-m", "translator", "--to", "de", "--data", LONG),
    ("score", "-m", LONG, "a", "b"),
    ("train", LONG, "--out", "run"),
    ("train", "--task", "lm", "--train", LONG, "--out", "run"),
    ("train", "--task", "lm", "--train", "lines.txt", "--out", LONG),
    ("train", "--task", "lm", "--train", "lines.txt", "--from", LONG, "--out", "run"),
    ("data", "check", LONG),
    ("export", LONG, "out", "--to", "onnx"),
    ("import", LONG, "out"),
    ("translate", "--to", "de", "--input", LONG),
    ("translate", "--to", "de", "--output", LONG, "Hello."),
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "lines.txt").write_text("a line\n" * 20)


def sentence(err: str) -> bool:
    """At the end, after whatever the command said before; not of a traceback."""
    return err.splitlines()[-1].startswith("regard: ") and "Traceback" not in err


@pytest.mark.parametrize("asked", NAMES, ids=" ".join)
def test_a_name_that_no_file_can_have(asked: tuple[str, ...]) -> None:
    done = run(*asked)
    assert (done.code, done.out) in ((1, ""), (2, "")), done.err
    assert sentence(done.err), done.err


@pytest.mark.parametrize("asked", [("check", "~nosuchuser/model"), ("data", "check", "~nosuchuser/rows.tsv")], ids=" ".join)
def test_a_home_of_nobody(asked: tuple[str, ...]) -> None:
    done = run(*asked)
    assert done.code == 1
    assert done.err == f"regard: nobody knows where the home in {asked[-1]} is; write the whole path\n"


def test_where_home_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a user without an entry, in many containers."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("REGARD_CACHE", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    done = run("train", "--task", "lm", "--train", "lines.txt", "--out", "run", "--set", "training.steps=1")
    assert done.code == 1
    assert done.err.endswith("regard: nobody knows where this user's home is; name a folder for the cache with REGARD_CACHE\n")
    told = run("doctor")
    assert told.code == 1, told.err  # it looks for trouble, and this is some
    assert "REGARD_CACHE names none, and no home is known" in told.out
    assert run("translate", "Hello.", "--to", "de").code == 0


@pytest.mark.parametrize("change", [("model.width=1048573",), ("model.width=1048573", "model.heads=65521")], ids=len)
def test_shapes_that_do_not_divide_are_no_endless_loop(change: tuple[str, ...]) -> None:
    begun = time.monotonic()
    sets = [word for one in change for word in ("--set", one)]
    done = run("train", "--task", "lm", "--train", "lines.txt", "--out", "run", *sets)
    assert done.code == 1
    assert "does not divide width" in done.err
    assert time.monotonic() - begun < 20


def test_what_nobody_has_put_into_words_names_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*given: object) -> None:
        raise OSError(5, "Input/output error", os.fsencode("a disk"))

    monkeypatch.setattr("regard.shipped.shipped", closed)
    done = run("models")
    assert (done.code, done.err) == (1, "regard: 'a disk': Input/output error; see that it is there and that you may use it\n")
