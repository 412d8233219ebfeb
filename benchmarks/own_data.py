"""Small data of one's own, trained with no settings at all: how many unseen sources come out right, and for how much work.

Three tasks, 6,000 rows each, made up and the same for the same seed: numbers of 3 to 7 digits to their words in reverse, letters to be
copied, digits to be sorted. 200 sources that no row has are translated at the end, and a line is right where every character is.
A seed is that of the rows and of the training. Processor seconds are user and system together, of the training alone.

OMP_NUM_THREADS=1 python benchmarks/own_data.py [--task reverse copy sort] [--seeds 1 2 3] [--set training.lr=1e-3 ...] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import regard

ROWS, ASKED = 6_000, 200
TASKS = ("reverse", "copy", "sort")
WORDS = ("nul", "ba", "keto", "dira", "fo", "lumi", "sarpe", "vex", "onti", "garu")  # of the digits 0 to 9, in no language


def source_of(task: str, chance: random.Random) -> str:
    """A number of 3 to 7 digits; 4 to 10 letters; 4 to 10 digits with spaces between them."""
    if task == "copy":
        return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(4, 10)))
    shortest, longest, space = (3, 7, "") if task == "reverse" else (4, 10, " ")
    return space.join(str(chance.randrange(10)) for _ in range(chance.randint(shortest, longest)))


def answer(task: str, source: str) -> str:
    """The words of the digits from the last to the first; the same letters again; the digits in order."""
    if task == "reverse":
        return " ".join(WORDS[int(digit)] for digit in reversed(source))
    return source if task == "copy" else " ".join(sorted(source.split()))


def pairs(task: str, seed: int, rows: int = ROWS, asked: int = ASKED) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The rows to learn from, and others whose sources are not among them."""
    chance = random.Random(f"{task} {seed}")
    learned = [source_of(task, chance) for _ in range(rows)]
    seen, unseen = set(learned), dict[str, None]()
    while len(unseen) < asked:
        source = source_of(task, chance)
        if source not in seen:
            unseen[source] = None
    return [(source, answer(task, source)) for source in learned], [(source, answer(task, source)) for source in unseen]


def write(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")
    return path


def right(bundle: Path, asked: list[tuple[str, str]]) -> int:
    """How many of the sources the model turns into just what they should be."""
    answers = regard.load(bundle).translate([source for source, _ in asked])
    return sum(answer.text == target for answer, (_, target) in zip(answers, asked, strict=True))


def trained(train: Path, out: Path, seed: int, settings: list[str]) -> float:
    """Trains as the command line does, and gives the processor seconds that took."""
    command = [sys.executable, "-m", "regard", "train", "--task", "translate", "--train", str(train), "--out", str(out)]
    changes = [f"training.seed={seed}", *settings]
    before = _children()
    command += [part for change in changes for part in ("--set", change)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return _children() - before


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--set", nargs="+", default=[], help="settings to try, instead of none")
    parser.add_argument("--keep", type=Path, help="a folder for the runs, instead of one that is removed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["REGARD_CACHE"] = f"{scratch}/cache"
        for task in arguments.task:
            for seed in arguments.seeds:
                folder = (arguments.keep or Path(scratch)) / f"{task}-{seed}"
                folder.mkdir(parents=True, exist_ok=True)
                learned, asked = pairs(task, seed)
                seconds = trained(write(folder / "train.tsv", learned), folder / "run", seed, arguments.set)
                found = right(folder / "run" / "bundle", asked)
                print(f"{task}, seed {seed}: {found} of {len(asked)} right, {seconds:.0f} processor seconds", flush=True)


if __name__ == "__main__":
    main()
