"""Small models that were really trained, each in seconds and once for all tests: the languages are made up, the bundles are real."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from regard.recipe import parse_recipe
from regard.training.run import run_recipe

QUIET = Console(quiet=True)
POEM = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a bird flew over the house",
    "my sister reads a long book",
    "rain falls on the old town",
    "héllo wörld 🦆 quack 🦆🦆 quack",
]
FILMS = {
    "good": ["lovely", "great", "funny", "warm"],
    "bad": ["awful", "boring", "dull", "sad"],
}


def digits(count: int, seed: int) -> list[list[str]]:
    chance = random.Random(seed)
    return [[str(chance.randrange(10)) for _ in range(chance.randrange(2, 7))] for _ in range(count)]


def reviews(count: int, seed: int) -> list[tuple[str, str]]:
    """A label and a text that has one telling word."""
    chance = random.Random(seed)
    rows = []
    for _ in range(count):
        label = chance.choice(sorted(FILMS))
        words = [chance.choice(["this", "film", "was", "very", "a", "story"]) for _ in range(chance.randrange(2, 7))]
        words.insert(chance.randrange(len(words) + 1), chance.choice(FILMS[label]))
        rows.append((label, " ".join(words)))
    return rows


def _write(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def _train(folder: Path, task: str, data: dict[str, Any], tokenizer: dict[str, Any], model: dict[str, Any], **training: Any) -> Path:
    shape: dict[str, Any] = {"width": 32, "layers": 1, "dropout": 0.0}
    if not str(model.get("preset", "")).startswith("rnn"):
        shape |= {"heads": 4, "feedforward": 64, "norm_place": "before", "attention_dropout": 0.0}
    settings = {
        "task": task,
        "data": {"max_length": 24, "dev_share": 0.05} | data,
        "tokenizer": tokenizer,
        "model": shape | model,
        "training": {
            "steps": 150, "batch_tokens": 1024, "lr": 5e-3, "warmup": 20, "schedule": "cosine", "label_smoothing": 0.0, "keep": 1,
            "validate_every": 1000, "checkpoint_every": 1000, "log_every": 50,
        } | training,
        "decoding": {"max_length": 16, "examples": 0},
    }  # fmt: skip
    return run_recipe(parse_recipe(settings), folder / "run", console=QUIET)


def _pairs(folder: Path, name: str, turn: Callable[[list[str]], list[str]]) -> str:
    return _write(folder / name, [f"{' '.join(line)}\t{' '.join(turn(line))}" for line in digits(600, seed=1)])


def translator(folder: Path) -> Path:
    """Digits turned round (to = "back"), or as they are (to = "same"), over bytes: every text can be read. Its context is 32."""
    train = [{"path": _pairs(folder, "back.tsv", lambda line: line[::-1]), "to": "back"}]
    train += [{"path": _pairs(folder, "same.tsv", list), "to": "same"}]
    return _train(folder, "translate", {"train": train}, {"size": 280}, {"context": 32}, steps=200)


def other_translator(folder: Path) -> Path:
    """The same with half the training, to be compared with."""
    train = [{"path": _pairs(folder, "back.tsv", lambda line: line[::-1]), "to": "back"}]
    train += [{"path": _pairs(folder, "same.tsv", list), "to": "same"}]
    return _train(folder, "translate", {"train": train}, {"size": 280}, {"context": 32}, steps=80, seed=2)


def recurrent(folder: Path, preset: str = "rnn-attention") -> Path:
    train = [_pairs(folder, "back.tsv", lambda line: line[::-1])]
    return _train(folder, "translate", {"train": train}, {"kind": "word", "size": 40}, {"preset": preset, "context": 32}, steps=60)


def recurrent_plain(folder: Path) -> Path:
    return recurrent(folder, "rnn-plain")


def apart(folder: Path) -> Path:
    """Source and target with a vocabulary each."""
    lines = [f"{' '.join(line)}\t{' '.join('abcdefghij'[int(digit)] for digit in line)}" for line in digits(400, seed=2)]
    data = {"train": [_write(folder / "letters.tsv", lines)]}
    return _train(folder, "translate", data, {"kind": "word", "size": 40, "joint": False}, {"context": 32}, steps=60)


def writer(folder: Path) -> Path:
    """A language model over bytes that knows a few lines by heart, emoji among them. Its context is 48."""
    data = {"train": [_write(folder / "poem.txt", POEM * 20)], "max_length": 48}
    return _train(folder, "lm", data, {"size": 300}, {"context": 48, "positions": "rotary"}, steps=120, batch_tokens=2048)


def speller(folder: Path) -> Path:
    """A language model over characters. Its context is 16, so that lines are longer than it."""
    data = {"train": [_write(folder / "poem.txt", POEM[:5] * 20)], "max_length": 16}
    return _train(folder, "lm", data, {"kind": "char", "size": 60}, {"context": 16, "positions": "rotary"}, steps=80)


def critic(folder: Path) -> Path:
    """Tells good reviews from bad ones."""
    data = {"train": [_write(folder / "films.tsv", [f"{label}\t{text}" for label, text in reviews(400, seed=1)])]}
    return _train(folder, "classify", data, {"kind": "word", "size": 60}, {"context": 24}, steps=80)


def guesser(folder: Path) -> Path:
    """Knows which word is missing in a few sentences, over bytes."""
    data = {"train": [_write(folder / "poem.txt", [f"{line}." for line in POEM[:5]] * 40)]}
    return _train(folder, "mlm", data, {"size": 330}, {"context": 24}, steps=250)


def word_guesser(folder: Path) -> Path:
    data = {"train": [_write(folder / "poem.txt", [f"{line}." for line in POEM[:5]] * 40)]}
    return _train(folder, "mlm", data, {"kind": "word", "size": 60}, {"context": 24}, steps=250)


_MADE: dict[str, Path] = {}


def bundle(name: str, root: Path) -> Path:
    """The bundle of that name, made where it is first asked for."""
    if name not in _MADE:
        folder = root / name
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("REGARD_CACHE", str(folder / "cache"))
            patch.setattr(torch.cuda, "is_available", lambda: False)
            torch.manual_seed(0)
            _MADE[name] = MAKERS[name](folder)
    return _MADE[name]


MAKERS = {
    make.__name__: make
    for make in (translator, other_translator, recurrent, recurrent_plain, apart, writer, speller, critic, guesser, word_guesser)
}
