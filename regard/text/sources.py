"""Where the rows of training and of validation come from: each file, or the part of it that the split gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regard.recipe import DataFile, Recipe, Task
from regard.text.corpus import Row, read_rows, synthetic_reverse
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
    if dev:
        return train, dev
    if recipe.one_text:
        cut = 1 - data.dev_share
        return [_stretch(source, 0.0, cut) for source in train], [_stretch(source, cut, 1.0) for source in train]
    apart = [[_part(source, recipe.task, data.dev_share, inside) for source in train] for inside in (False, True)]
    return apart[0], apart[1]


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
    if recipe.one_text:
        return Source(lambda: (row._replace(texts=(f"{row.texts[0]}\n",)) for row in read_rows(file, recipe.task, root)), file)
    return Source(lambda: read_rows(file, recipe.task, root, "document" if recipe.data.unit == "document" else "line"), file)


def _part(source: Source, task: Task, share: float, inside: bool) -> Source:
    """The rows whose source or text falls into a share of all, or those that don't: one that stands twice falls on one side only."""

    def rows() -> Iterator[Row]:
        for row in source.rows():
            if (text_key(learned_from(row, task)) < share * 2**64) == inside:
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
