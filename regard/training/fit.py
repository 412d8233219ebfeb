"""A recipe for data that comes without one: sizes that suit the amount of it, and a machine that may be a laptop."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.bundle import read_config
from regard.recipe import Recipe, Task, merged, parse_recipe
from regard.shipped import find_bundle
from regard.text.corpus import find, read_rows
from regard.text.midi import holds_music

LOOK_AT = 1_000_000  # rows counted at most; more data than that changes nothing
MUSIC: dict[str, Any] = {"tokenizer": {"kind": "word", "size": 300}, "data": {"max_length": 1024}}  # events are words, and songs are long


def fitting_recipe(
    task: Task,
    train: Sequence[str],
    dev: Sequence[str],
    changes: Sequence[dict[str, Any]],
    root: Path | None,
    begins_from: str | None = None,
) -> Recipe:
    """The recipe that the amount of data suggests, with the user's own settings over it; a bundle's if it begins from one."""
    given: dict[str, Any] = {"task": task, "data": {"train": list(train), **({"dev": list(dev)} if dev else {})}}
    if begins_from is not None:
        given["model"] = {"from": begins_from}
    stated = parse_recipe(merged(given, *changes))
    rows = words = 0
    for file in stated.data.train:
        for row in islice(read_rows(file, task, root, "line" if stated.data.unit == "file" else stated.data.unit), LOOK_AT):
            rows += 1
            words += len(row.texts[-1].split())
    suggested = suggestion(task, rows, words) if stated.begins_from is None else tuning(task, words, stated.begins_from)
    if stated.begins_from is None and any(file.path and holds_music(find(file.path, root)) for file in stated.data.train):
        suggested = merged(suggested, MUSIC)
    return parse_recipe(merged(suggested, given, *changes))


def tuning(task: Task, words: int, begins_from: str) -> dict[str, Any]:
    """Settings for a model that has learned already: a few passes over the new texts, in small steps, and no longer texts than it reads."""
    suggested = suggestion(task, 0, words)
    batch = suggested["training"]["batch_tokens"]
    steps = max(100, min(30_000, 4 * int(1.4 * words) // batch))
    own = {"steps": steps, "lr": 5e-5 if task == "classify" else 1e-4, "warmup": max(10, steps // 10), "schedule": "cosine"}
    every = {key: max(25, steps // 8) for key in ("validate_every", "checkpoint_every")}
    longest = min(suggested["data"]["max_length"], read_config(find_bundle(begins_from)).context)
    return {"data": {"max_length": longest}, "training": {**suggested["training"], **own, **every}}


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
    vocabulary = (
        f"a {recipe.tokenizer.kind} vocabulary of {recipe.tokenizer.size:,}"
        if recipe.begins_from is None
        else f"the vocabulary of {recipe.begins_from}"
    )
    return (
        f"picked for this data: {vocabulary}, {training.steps:,} steps of "
        f"{training.batch_tokens:,} tokens, lr {training.lr:g}, {training.schedule} schedule; change any with --set"
    )
