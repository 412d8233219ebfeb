"""A recipe for data that comes without one: sizes that suit the amount of it, and a machine that may be a laptop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.bundle import TOKENIZER, read_config
from regard.recipe import FITTING, Recipe, Task, TokenizerSettings, fits_preset, gentle, merged, parse_recipe
from regard.shipped import find_bundle
from regard.text.corpus import find, read_rows
from regard.text.midi import holds_music
from regard.text.tokenizer import Tokenizer

LOOK_AT = 1_000_000  # rows counted at most; more data than that changes nothing
SAMPLE, LONGEST = 10_000, 1_000  # texts that tokens are counted in, and the characters of each
COUNTED_IN = TokenizerSettings(size=4000)  # the vocabulary that does it, where no other is known
SMALL = 100_000  # tokens: so few don't fill four layers
UPDATES = 40  # in a pass over small data
MUSIC: dict[str, Any] = {"tokenizer": {"kind": "word", "size": 300}, "data": {"max_length": 1024}}  # events are words, and songs are long


def fitting_recipe(
    task: Task,
    train: Sequence[str],
    dev: Sequence[str],
    changes: Sequence[dict[str, Any]],
    root: Path | None,
    begins_from: str | None = None,
    of_files: dict[str, Any] | None = None,
) -> Recipe:
    """The recipe that the amount of data suggests, with the user's own settings over it; a bundle's if it begins from one.

    `of_files` are settings of each file, such as the language to write.
    """
    files = {"train": train, "dev": dev}
    given: dict[str, Any] = {
        "task": task,
        "data": {key: [{"path": name, **(of_files or {})} for name in names] for key, names in files.items() if names},
    }
    if begins_from is not None:
        given["model"] = {"from": begins_from}
    stated = parse_recipe(merged(given, *changes))
    music = any(file.path and holds_music(find(file.path, root)) for file in stated.data.train)
    tokens = count_tokens(parse_recipe(merged(MUSIC if music and stated.begins_from is None else {}, given, *changes)), root)
    if stated.begins_from is not None:
        return parse_recipe(merged(tuning(task, tokens, stated.begins_from), given, *changes))
    suggested = merged(suggestion(task, tokens, merged({}, *changes)), MUSIC if music else {})
    return parse_recipe(merged(suggested, given, *changes))


def count_tokens(recipe: Recipe, root: Path | None) -> int:
    """How many tokens the training texts have, of what is written. They are counted in some: scripts differ too much to guess by words."""
    texts: list[str] = []  # every so manieth
    every, rows, characters = 1, 0, 0
    for file in recipe.data.train:
        for row in islice(read_rows(file, recipe.task, root, "line" if recipe.data.unit == "file" else recipe.data.unit), LOOK_AT):
            characters += len(row.texts[-1])
            if rows % every == 0:
                texts.append(row.texts[-1][:LONGEST])
            rows += 1
            if len(texts) > 2 * SAMPLE:
                texts, every = texts[::2], 2 * every
    if not any(text.strip() for text in texts):
        return 0  # training will say that there is nothing to learn from
    counted = sum(map(len, _counter(recipe, texts).encode_batch(texts)))
    return int(counted * characters / sum(map(len, texts)))


def _counter(recipe: Recipe, texts: Sequence[str]) -> Tokenizer:
    """The bundle's own tokenizer, or one that is learned from the texts."""
    if recipe.begins_from is not None and (find_bundle(recipe.begins_from) / TOKENIZER).is_file():
        return Tokenizer.load(find_bundle(recipe.begins_from) / TOKENIZER)
    kind = recipe.tokenizer.kind
    return Tokenizer.train(texts, COUNTED_IN if kind in ("bpe", "unigram") else COUNTED_IN.model_copy(update={"kind": kind}))


def tuning(task: Task, tokens: int, begins_from: str) -> dict[str, Any]:
    """Settings for a model that has learned already: a few passes over the new texts, in small steps, and no longer texts than it reads."""
    suggested = suggestion(task, tokens, {})
    batch = _largest_batch()
    steps = max(100, min(30_000, 4 * tokens // batch))
    every = {key: max(25, steps // 8) for key in ("validate_every", "checkpoint_every")}
    longest = min(suggested["data"]["max_length"], read_config(find_bundle(begins_from)).context)
    own = {"steps": steps, "batch_tokens": batch, **gentle(task, steps), **every}
    return {"data": {"max_length": longest}, "training": {**suggested["training"], **own}}


def suggestion(task: Task, tokens: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Settings for so many tokens of training text, under a user's changes."""
    longest = 256 if task in ("lm", "classify") else 128
    batch = _largest_batch()
    small = task == "translate" and tokens < SMALL
    if task == "translate":  # little data is learned from in many small steps: as much work, and more updates
        room = 2 * int(changes.get("data", {}).get("max_length", longest))
        batch = min(batch, max(1024, room, 2 ** int(math.log2(max(1, tokens / UPDATES)))))
    passes = 40 if tokens < 1_000_000 else 15 if tokens < 10_000_000 else 5
    steps = max(300, min(30_000, passes * tokens // batch))
    model: dict[str, Any] = {"preset": FITTING}
    if small:
        model |= {"layers": 2, "dropout": 0.1}
    own = changes.get("model", {})
    return {
        "model": model if fits_preset(own, task) else {},
        "data": {"max_length": longest},
        "tokenizer": {"size": 1000 if tokens < 70_000 else 4000 if tokens < 700_000 else 8000 if tokens < 14_000_000 else 16000},
        "training": {
            "steps": steps,
            "batch_tokens": batch,
            "lr": (2e-3 if small else 1e-3) if task == "translate" else 5e-4,
            "warmup": max(20, min(1000, steps // 10)),
            "schedule": "cosine" if small or task != "translate" else "inverse-sqrt",
            "label_smoothing": 0.1 if task == "translate" else 0.0,
            "weight_decay": 0.0 if task == "translate" else 0.01,
            "validate_every": max(50, steps // 10),
            "checkpoint_every": max(50, steps // 10),
            "log_every": max(1, min(50, steps // 50)),
        },
    }


def _largest_batch() -> int:
    return 16384 if torch.cuda.is_available() else 4096


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
