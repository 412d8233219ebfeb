"""A million short pairs, from a text file to batches: how long tokenising and indexing take, in how much memory, and how fast batches come.

python benchmarks/data.py [--pairs N] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import tempfile
import time
from itertools import accumulate
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from regard.data.collate import Form
from regard.data.loader import Cursor, Share, steps
from regard.data.plan import make_plan
from regard.recipe import parse_recipe
from regard.training.prepare import prepare

SYLLABLES = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "is")]


def write_pairs(path: Path, count: int) -> None:
    """Sentences of made-up words, frequent and rare as in real text, each pair different."""
    chance = random.Random(0)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(40_000)]
    shares = list(accumulate(1 / (rank + 5) for rank in range(len(words))))
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            chosen = chance.choices(words, cum_weights=shares, k=chance.randint(3, 14))
            file.write(f"{' '.join(chosen)} {number}.\t{' '.join(reversed(chosen))} {number}!\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REGARD_CACHE"] = f"{folder}/cache"
        path = Path(folder) / "pairs.tsv"
        write_pairs(path, arguments.pairs)
        recipe = parse_recipe(
            {"task": "translate", "data": {"train": [str(path)], "max_length": 64, "dev_share": 0.001}, "tokenizer": {"size": 8000}}
        )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        prepared = prepare(recipe, None, print)
        prepared_in = time.perf_counter() - start
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        prepare(recipe, None, lambda message: None)
        again = time.perf_counter() - start
        start = time.perf_counter()
        plan = make_plan(prepared.train.lengths, batch_tokens=4096, seed=1, epoch=1)
        planned_in = time.perf_counter() - start
        rates = {}
        for layout, packed in (("padded", None), ("packed", 4096)):
            form = Form("translate", seed=1, max_length=64, vocabulary=8000, packed=packed)
            plans = make_plan(prepared.train.lengths, batch_tokens=4096, seed=1, epoch=0, packed=packed is not None)
            flow = steps(prepared.train, lambda epoch, plans=plans: plans, form, Share(), Cursor(), torch.device("cpu"))  # type: ignore[misc]
            for _ in range(20):
                next(flow)
            start, tokens = time.perf_counter(), 0
            for _ in range(400):
                batch = next(flow).parts[0]
                assert batch.source is not None
                tokens += batch.tokens + int(batch.source.lengths.sum())
            rates[layout] = tokens / (time.perf_counter() - start)
            flow.close()
    table = Table(title=f"{arguments.pairs:,} pairs, {torch.get_num_threads()} threads", title_justify="left", show_header=False)
    for name, value in (
        ("tokenizer learned, all tokenised and indexed", f"{prepared_in:.1f} s"),
        ("the same again, from the cache", f"{again:.2f} s"),
        ("memory, largest", f"{memory / 2**20:.2f} GiB ({before / 2**20:.2f} before)"),
        ("a plan of an epoch", f"{planned_in:.2f} s, {len(plan):,} batches"),
        ("batches, padded", f"{rates['padded'] / 1e6:.2f} M tokens/s"),
        ("batches, packed", f"{rates['packed'] / 1e6:.2f} M tokens/s"),
    ):
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    main()
