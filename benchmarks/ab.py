"""Whether one version of the code is slower than another: two trees, each with its own Python, taking turns on the same work.

    python benchmarks/ab.py OLD NEW [--old-python PATH] [--new-python PATH] [--rounds 10] [--only NAME …] [--threads 2] [--json FILE]

OLD and NEW are checkouts of regard; without a Python of its own a tree is run by this one. The translator that ships with OLD writes 30
tokens for each of 1 and 32 sentences, greedily and with a beam of 4; a first answer is a process of its own, from its start to its end; an
encoder of 6 layers turns 200 sentences into vectors; an encoder-decoder of 4 + 4 layers takes training steps. Only what every version has
is asked: `regard.load`, its verbs and the command line. In every other round OLD comes first.

A ratio is NEW's speed by OLD's in the same round, shown as their geometric mean with its 95 % interval. Ends with 1 where such an interval
lies below 0.97. Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SLOWER = 0.97
LENGTH, STEPS, WARM = 30, 24, 8  # tokens written of each sentence; steps of a training, and those of them that don't count
# 97.5 % quantiles of Student's t, by degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)
WHO = ("My sister", "The old teacher", "A friend of mine", "Nobody", "The train", "Every child")
DOES = ("waits for", "remembers", "never saw", "has lost", "is looking for", "asked about")
WHAT = ("the blue house", "a small dog", "two tickets to Rome", "the answer", "breakfast", "a good book", "the last bus")
SHAPES = {
    "translate": {"layers": 4, "width": 256, "heads": 4, "feedforward": 1024},
    "mlm": {"layers": 6, "width": 384, "heads": 6, "feedforward": 1536},
}


def sentences(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [f"{chance.choice(WHO)} {chance.choice(DOES)} {chance.choice(WHAT)}." for _ in range(count)]


def train_arguments(task: str, data: Path, out: Path, steps: int) -> list[str]:
    settings = {f"model.{name}": value for name, value in SHAPES[task].items()} | {
        "training.steps": steps, "training.batch_tokens": 4096, "training.log_every": 1,
        "training.precision": '"float32"', "tokenizer.size": 2000,
    }  # fmt: skip
    changes = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return ["train", "--task", task, "--train", str(data), "--dev", str(data.with_suffix(".dev")), "--out", str(out), *changes]


class Tree:
    """One version of the code, and a process of it that does what it is asked to."""

    def __init__(self, name: str, root: Path, python: Path, threads: int, folder: Path) -> None:
        self.name, self.root, self.python, self.folder = name, root.resolve(), python.absolute(), folder
        self.environment = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}
        self.worker: subprocess.Popen[str] | None = None
        said = self.run("-c", "import regard; print(regard.__file__)").stdout.strip()
        if Path(said).resolve().parent.parent != self.root:
            raise SystemExit(f"{self.python} takes regard from {said} and not from {self.root}")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([self.python, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{self.name}: {' '.join(arguments[:6])} ended with {done.returncode}\n{done.stderr[-3000:]}")
        return done

    def ask(self, work: dict[str, Any]) -> float:
        """Units of work a second, by the process that has its models loaded."""
        if self.worker is None:
            self.worker = subprocess.Popen(
                [self.python, str(Path(__file__).resolve()), "--worker"],
                cwd=self.folder, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self.worker.stdin is not None
        assert self.worker.stdout is not None
        self.worker.stdin.write(json.dumps(work) + "\n")
        self.worker.stdin.flush()
        line = self.worker.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended while it was at {work}")
        return float(json.loads(line))

    def rest(self) -> None:
        """Ends the process, so that its threads don't run beside what is measured without it."""
        if self.worker is not None:
            assert self.worker.stdin is not None
            self.worker.stdin.close()
            self.worker.wait(30)
            self.worker = None


def worker() -> None:
    """Reads a line of JSON, does that work once and says how much of it a second; until there are no more lines."""
    import warnings

    warnings.simplefilter("ignore")
    answers, sys.stdout = sys.stdout, sys.stderr
    import regard

    models: dict[str, Any] = {}
    for line in sys.stdin:
        work = json.loads(line)
        if work["model"] not in models:
            models[work["model"]] = regard.load(work["model"])
        model, texts = models[work["model"]], sentences(work["texts"])
        began = time.perf_counter()
        if work["verb"] == "embed":
            model.embed(texts)
        else:
            model.translate(texts, to="de", beam_size=work["beam"], min_length=LENGTH, max_length=LENGTH)
        taken = time.perf_counter() - began
        answers.write(json.dumps(work["texts"] * (1 if work["verb"] == "embed" else LENGTH) / taken) + "\n")
        answers.flush()


def decoding(beam: int, texts: int) -> Callable[[Tree], float]:
    def measure(tree: Tree) -> float:
        return tree.ask({"verb": "translate", "model": str(tree.folder / "translator"), "beam": beam, "texts": texts})

    return measure


def embedding(tree: Tree) -> float:
    return tree.ask({"verb": "embed", "model": str(tree.folder / "mlm" / "bundle"), "texts": 200})


def first_answer(tree: Tree) -> float:
    began = time.perf_counter()
    tree.run("-m", "regard", "translate", "I love you very much.", "--to", "de", "--model", str(tree.folder / "translator"))
    return 1 / (time.perf_counter() - began)


def training(tree: Tree) -> float:
    """The median step's tokens a second."""
    with tempfile.TemporaryDirectory() as folder:
        tree.run("-m", "regard", *train_arguments("translate", tree.folder / "pairs.tsv", Path(folder) / "run", STEPS))
        lines = map(json.loads, (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        return statistics.median([each["tokens_per_second"] for each in lines if each["kind"] == "train" and each["step"] > WARM])


# By name: what is measured, and in what.
COLUMNS: dict[str, tuple[Callable[[Tree], float], str]] = {
    **{f"beam {beam}, {texts}": (decoding(beam, texts), "tokens/s") for beam in (1, 4) for texts in (1, 32)},
    "embedding": (embedding, "sentences/s"),
    "first answer": (first_answer, "1/s"),
    "training": (training, "tokens/s"),
}
APART = ("first answer", "training")  # measured in processes of their own


def prepare(old: Tree, folder: Path) -> None:
    """Data that are made up, and models of OLD's, which both must be able to read."""
    (folder / "translator").symlink_to(old.root / "regard" / "shipped_models" / "translator")
    for name, count, seed in (("pairs.tsv", 6000, 1), ("pairs.dev", 20, 2)):
        texts = [" ".join(part) for part in zip(sentences(count, seed), sentences(count, seed + 10), strict=True)]
        (folder / name).write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts), encoding="utf-8")
        (folder / name.replace("pairs", "texts")).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (folder / "texts.tsv").rename(folder / "texts.txt")
    old.run("-m", "regard", *train_arguments("mlm", folder / "texts.txt", folder / "mlm", 1))


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean, and between what it lies in 95 of 100 such measurings."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    quantile = T[min(len(logs) - 2, len(T) - 1)]
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD")
    parser.add_argument("new", type=Path, metavar="NEW")
    parser.add_argument("--old-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--new-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: an interval needs at least two")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        old = Tree("OLD", options.old, options.old_python, options.threads, folder)
        new = Tree("NEW", options.new, options.new_python, options.threads, folder)
        prepare(old, folder)
        print(f"{'NEW by OLD':16}{'OLD':>12}{'NEW':>12}  {'':12}{'ratio':>7}   95 % of", flush=True)
        for name in options.only:
            measure, unit = COLUMNS[name]
            speeds: dict[str, list[float]] = {"OLD": [], "NEW": []}
            for round_ in range(-1, options.rounds):  # one before the first, which does not count
                for tree in (old, new) if round_ % 2 else (new, old):
                    if name in APART:
                        tree.rest()
                    speed = measure(tree)
                    if round_ >= 0:
                        speeds[tree.name].append(speed)
            mean, low, high = interval([one / other for one, other in zip(speeds["NEW"], speeds["OLD"], strict=True)])
            found[name] = {**speeds, "unit": unit, "ratio": mean, "low": low, "high": high}
            before, after = (statistics.median(speeds[which]) for which in ("OLD", "NEW"))
            verdict = "  SLOWER" if high < SLOWER else ""
            print(f"{name:16}{before:12,.2f}{after:12,.2f}  {unit:12}{mean:7.3f}   {low:.3f} … {high:.3f}{verdict}", flush=True)
        old.rest()
        new.rest()
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(one["high"] < SLOWER for one in found.values()))


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        worker()
    else:
        main()
