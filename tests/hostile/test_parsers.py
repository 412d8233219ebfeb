"""Damaged files of every kind that is read: each is read all the same or refused with a sentence, soon and in little memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from regard.errors import RegardError
from tests.hostile.formats import HERE
from tests.hostile.trying import outcome

pytest.importorskip("resource", reason="needs limits of memory and time, as Linux has them")
ROOT = Path(__file__).parents[2]
Case = tuple[str, int]


def outcomes(cases: list[Case], seed: int, folder: Path) -> dict[Case, str]:
    """What became of each file, read in a process that may die of one; the next then goes on after it."""
    found: dict[Case, str] = {}
    command = [sys.executable, "-m", "tests.hostile.trying"]
    while left := cases[len(found) :]:
        place = folder / str(len(found))
        place.mkdir()
        with (folder / "errors").open("w+") as errors:
            done = subprocess.run(
                [*command, str(place), str(seed)],
                input=json.dumps(left),
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                text=True,
                check=False,
            )
        for line in done.stdout.splitlines():
            name, number, what = json.loads(line)
            found[name, number] = what
        if done.returncode < 0:
            found[cases[len(found)]] = f"ended by {signal.Signals(-done.returncode).name}"
        elif done.returncode:
            raise AssertionError((folder / "errors").read_text()[-3000:])
    return found


def broken(found: dict[Case, str]) -> dict[Case, str]:
    return {case: what for case, what in found.items() if what not in ("read", "refused")}


def test_some_damaged_files_of_every_kind(tmp_path: Path) -> None:
    found = outcomes([(name, number) for name in HERE for number in range(20)], 0, tmp_path)
    assert broken(found) == {}
    kinds = Counter(found.values())
    assert kinds["refused"] > kinds["read"] > len(HERE)  # neither is all refused, nor all taken


def test_what_becomes_of_a_file_is_seen() -> None:
    """Of each way to break, as the other tests would see it."""

    def refuse(file: Path) -> None:
        raise RegardError("no")

    def fail(file: Path) -> None:
        raise ValueError("why\nand more")

    def fill(file: Path) -> None:
        raise MemoryError

    assert [outcome(read, Path()) for read in (str, refuse, fail, fill)] == ["read", "refused", "ValueError: why", "out of memory"]


@pytest.mark.slow
def test_thousands_of_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HOSTILE says how many in all, and HOSTILE_SEED which."""
    each = -(-int(os.environ.get("HOSTILE", "10000")) // len(HERE))
    seed = int(os.environ.get("HOSTILE_SEED", "1"))
    found = outcomes([(name, number) for name in HERE for number in range(each)], seed, tmp_path)
    wrong = broken(found)
    with capsys.disabled():
        print(f"\n{len(found):,} damaged files, seed {seed}: {dict(Counter(found.values()).most_common(10))}")
        for name in HERE:
            print(f"{name:36}{dict(Counter(what for case, what in found.items() if case[0] == name))}")
        for case, what in wrong.items():
            print(case, what)
    assert wrong == {}
