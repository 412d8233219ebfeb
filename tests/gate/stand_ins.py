"""Data that stands in for what recipes name, where a machine has none of it: small, made up, and shaped as the real files are.

What a model learns from it is worth nothing. That every recipe trains, validates, saves and resumes can be seen with it all the same.
"""

from __future__ import annotations

import gzip
import io
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from regard.recipe import DataFile, Recipe, load_recipe
from tests.text.tunes import midi_file, ticks

SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "sa", "ti", "vo")
DEVANAGARI = str.maketrans("abcdefghijklmnopqrstuvwxyz", "कखगघचछजझटठडढणतथदधनपफबभमयरल")
ENGLISH_LABELS = {"sms-spam": ("ham", "spam")}
HASH = re.compile(r'^sha256 = "[0-9a-f]{64}"', re.MULTILINE)


def recipes_for(recipes: Path, root: Path | None, made: Path, rows: int = 160) -> tuple[Path, Path]:
    """Recipes and a data folder that belong together: real files by links where `root` has them, the rest made up, without a hash.

    Both are written into `made`: recipes as they are, but for the hashes of files that something else stands in for.
    """
    folder, data = made / "recipes", made / "data"
    folder.mkdir(parents=True)
    data.mkdir()
    named = [file for path in sorted(recipes.glob("*.toml")) for file in files_of(load_recipe(path))]
    for file in named:
        for name in names_of(file):
            if root is not None and (root / name).is_file() and not (data / name).exists():
                (data / name).parent.mkdir(parents=True, exist_ok=True)
                (data / name).symlink_to((root / name).absolute())
    real = {name for file in named for name in names_of(file) if (data / name).exists()}
    for file in named:
        make(file, data, rows)
    stood_in = any(name not in real for file in named for name in names_of(file))
    for path in recipes.iterdir():
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            (folder / path.name).write_text(HASH.sub("", text) if stood_in and path.suffix == ".toml" else text, encoding="utf-8")
    return folder, data


def files_of(recipe: Recipe) -> tuple[DataFile, ...]:
    return (*recipe.data.train, *recipe.data.dev, *recipe.data.test)


def names_of(file: DataFile) -> list[str]:
    """The files of the data folder; what recipes make themselves (runs/…) is left to them."""
    return [name for name in (file.path, file.source, file.target) if name is not None and not name.startswith("runs/")]


def make(file: DataFile, data: Path, rows: int) -> None:
    """Writes what a file of a recipe should hold, where nothing is yet."""
    for side, name in enumerate(names_of(file)):
        if (data / name).exists():
            continue
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        many = rows if "train" in name or "unlabelled" in name or "spam" in name else rows // 8
        # Both sides of a pair come from one seed, and each part (train, dev, test) from one of its own.
        seed = sum(map(ord, re.sub(r"\.(de|fr|en)\b", "", name)))
        if name.startswith("music/"):
            (data / name).write_bytes(songs(max(40, rows // 4)))
        else:
            lines = ("\t".join(row) for row in rows_like(name, side, many, seed))
            (data / name).write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))


def rows_like(name: str, side: int, count: int, seed: int) -> Iterator[tuple[str, ...]]:
    """Rows of the columns that a file of this name has."""
    labels = next((labels for part, labels in ENGLISH_LABELS.items() if part in name), ("negative", "positive"))
    sources = {"en-hi": ("tatoeba", "manythings", "software_mo"), "en-it": ("tatoeba", "tatoeba-pivot", "bible_bsb")}
    for number, (words, other) in enumerate(pairs(count, seed, long=name.startswith(("lm/", "classify/")))):
        sentence = " ".join(words).capitalize() + "."
        if name.startswith("translate/"):
            pair = name.split("/")[1][:5]
            kinds = sources.get(pair, ("tatoeba",))
            yield sentence, (other.translate(DEVANAGARI) if pair == "en-hi" else other), kinds[number % len(kinds)]
        elif name.startswith("classify/"):
            yield labels[len(words) % 2], sentence
        else:
            yield (sentence if side == 0 else other,)


def pairs(count: int, seed: int, *, long: bool = False) -> Iterator[tuple[list[str], str]]:
    """Sentences of made-up words, each with another one: its words the other way round."""
    chance = random.Random(seed)
    for _ in range(count):
        words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(chance.randint(4, 40 if long else 10))]
        yield words, " ".join(word[::-1] for word in reversed(words)).capitalize() + "."


def songs(count: int) -> bytes:
    """An archive of pieces of music, each of a name of its own: names decide which part of the data a piece belongs to."""
    chance, packed = random.Random(0), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for number in range(count):
            notes = [(bar * 16 + beat, 4, chance.choice((48, 52, 55, 60, 64, 67))) for bar in range(8) for beat in (0, 4, 8, 12)]
            content = midi_file(ticks(notes))
            entry = tarfile.TarInfo(f"pieces/{number:03}.mid")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
