"""Where the rows of training and of validation come from: each file, or the part of it that the split gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.errors import ConfigError
from regard.recipe import DataFile, Recipe
from regard.text.corpus import Row, find, read_rows, synthetic_reverse
from regard.text.midi import holds_music
from regard.text.sieve import held_out_keys, learned_from, text_key

BLOCK = 4_000_000  # characters of a file read as one text that are tokenised at a time; a space may slip in where they meet
DEV_SEED = 1_000_003


@dataclass(frozen=True)
class Source:
    """Rows that come from one file, or from nowhere."""

    rows: Callable[[], Iterator[Row]]
    file: DataFile | None = None

    @property
    def tag(self) -> str | None:
        return None if self.file is None else self.file.to

    @property
    def whole_rows(self) -> Iterator[Row]:
        """The rows without those that have an empty side."""
        return (row for row in self.rows() if all(text.strip() for text in row.texts))


def sources_of(recipe: Recipe, root: Path | None) -> tuple[list[Source], list[Source]]:
    """Where the rows of training and of validation come from."""
    data = recipe.data
    if data.synthetic is not None:
        made = [Source(lambda: synthetic_reverse(data.examples, recipe.training.seed))]
        return made, [Source(lambda: synthetic_reverse(max(200, data.examples // 50), DEV_SEED, "dev"))]
    train, dev = ([_source(file, recipe, root) for file in files] for files in (data.train, data.dev))
    if recipe.one_text and not dev:
        cut = 1 - data.dev_share
        return [_stretch(source, 0.0, cut) for source in train], [_stretch(source, cut, 1.0) for source in train]
    tested, known = data.test_share, data.test_share + (0.0 if dev else data.dev_share)
    if not known:
        return train, dev or [_part(source, recipe, 0.0, 0.0) for source in train]
    return [_part(source, recipe, known, 1.0) for source in train], dev or [_part(source, recipe, tested, known) for source in train]


def tests_of(recipe: Recipe, root: Path | None) -> list[Source]:
    """Where the rows that a finished model is tested on come from: test files, or the part of the training files that was kept apart."""
    if recipe.data.test_share:
        return [_part(_source(file, recipe, root), recipe, 0.0, recipe.data.test_share) for file in recipe.data.train]
    return [_source(file, recipe, root) for file in recipe.data.test]


def held_out(recipe: Recipe, root: Path | None) -> frozenset[int]:
    """Keys of the sources or texts of the dev and test files, which training must do without."""
    files = (*recipe.data.dev, *recipe.data.test) if keeps_apart(recipe) else ()
    return held_out_keys((row for file in files for row in _source(file, recipe, root).whole_rows), recipe.task)


def keeps_apart(recipe: Recipe) -> bool:
    """Whether rows are compared with dev and test: a text that is read as a whole has none."""
    return recipe.data.keep_apart and not recipe.one_text


def blocks(rows: Iterable[Row]) -> Iterator[str]:
    """Lines, which still have their line feeds, joined in pieces that a tokenizer can take."""
    lines: list[str] = []
    size = 0
    for row in rows:
        lines.append(row.texts[0])
        size += len(lines[-1])
        if size >= BLOCK:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def _source(file: DataFile, recipe: Recipe, root: Path | None) -> Source:
    _check_music(file, recipe, root)
    if recipe.one_text:
        return Source(lambda: (row._replace(texts=(f"{row.texts[0]}\n",)) for row in read_rows(file, recipe.task, root)), file)
    return Source(lambda: read_rows(file, recipe.task, root, "document" if recipe.data.unit == "document" else "line"), file)


def _check_music(file: DataFile, recipe: Recipe, root: Path | None) -> None:
    """Songs are read event by event, and each is a text of its own."""
    if file.path is None or not holds_music(find(file.path, root)):
        if file.transpose != (0, 0):
            raise ConfigError(f"transpose is for music, and {file.path or file.source} is none; take it out")
        return
    if (recipe.tokenizer.kind != "word" and recipe.begins_from is None) or recipe.data.unit != "line":
        raise ConfigError(f"{file.path} is music, which is learned by its events; set tokenizer.kind = 'word' and data.unit = 'line'")
    if file.transpose != (0, 0) and not recipe.data.dev:
        raise ConfigError(
            f"{file.path}: with transpose, a song in one key could be learned and in another be validated on; "
            "name the same file in data.dev, and give the two only = { part = ['train'] } and only = { part = ['dev'] }"
        )


def _part(source: Source, recipe: Recipe, start: float, end: float) -> Source:
    """The rows whose source or text falls between two shares of all: one that stands twice falls into one part only."""
    seed = f"{recipe.data.split_seed}\n" if recipe.data.split_seed else ""

    def rows() -> Iterator[Row]:
        for row in source.rows():
            if start * 2**64 <= text_key(seed + learned_from(row, recipe.task)) < end * 2**64:
                yield row

    return Source(rows, source.file)


def _stretch(source: Source, start: float, end: float) -> Source:
    """The characters of a text from one share of it to another, cut within a line if need be."""

    def rows() -> Iterator[Row]:
        total = sum(len(row.texts[0]) for row in source.rows())
        first, last, at = int(start * total), int(end * total), 0
        for row in source.rows():
            text = row.texts[0][max(0, first - at) : max(0, last - at)]
            at += len(row.texts[0])
            if text:
                yield row._replace(texts=(text,))

    return Source(rows, source.file)
