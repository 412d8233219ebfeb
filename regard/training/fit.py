"""A recipe for data that comes without one: sizes that suit the amount of it, and a machine that may be a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.recipe import Recipe, Task, merged, parse_recipe
from regard.text.corpus import read_rows

LOOK_AT = 1_000_000  # rows counted at most; more data than that changes nothing


def fitting_recipe(task: Task, train: Sequence[str], dev: Sequence[str], changes: Sequence[dict[str, Any]], root: Path | None) -> Recipe:
    """The recipe that the amount of data suggests, with the user's own settings over it."""
    given = {"task": task, "data": {"train": list(train), **({"dev": list(dev)} if dev else {})}}
    stated = parse_recipe(merged(given, *changes))
    rows = words = 0
    for file in stated.data.train:
        for row in islice(read_rows(file, task, root, "line" if stated.data.unit == "file" else stated.data.unit), LOOK_AT):
            rows += 1
            words += len(row.texts[-1].split())
    return parse_recipe(merged(suggestion(task, rows, words), given, *changes))


def suggestion(task: Task, rows: int, words: int) -> dict[str, Any]:
    """Settings for so many rows and words of training text."""
    tokens = int(1.4 * words)  # a token is somewhat shorter than a word
    batch = 16384 if torch.cuda.is_available() else 4096
    passes = 40 if tokens < 1_000_000 else 15 if tokens < 10_000_000 else 5
    steps = max(300, min(30_000, passes * tokens // batch))
    return {
        "data": {"max_length": 256 if task in ("lm", "classify") else 128},
        "tokenizer": {"size": 1000 if words < 50_000 else 4000 if words < 500_000 else 8000 if words < 10_000_000 else 16000},
        "training": {
            "steps": steps,
            "batch_tokens": batch,
            "lr": 1e-3 if task == "translate" else 5e-4,
            "warmup": max(20, min(1000, steps // 10)),
            "schedule": "inverse-sqrt" if task == "translate" else "cosine",
            "label_smoothing": 0.1 if task == "translate" else 0.0,
            "weight_decay": 0.0 if task == "translate" else 0.01,
            "validate_every": max(50, steps // 10),
            "checkpoint_every": max(50, steps // 10),
            "log_every": max(1, min(50, steps // 50)),
        },
    }


def describe(recipe: Recipe) -> str:
    """What was picked, in a line."""
    training = recipe.training
    return (
        f"picked for this data: a {recipe.tokenizer.kind} vocabulary of {recipe.tokenizer.size:,}, {training.steps:,} steps of "
        f"{training.batch_tokens:,} tokens, lr {training.lr:g}, {training.schedule} schedule; change any with --set"
    )
