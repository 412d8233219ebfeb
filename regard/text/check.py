"""What is wrong with a corpus, before a model learns it: counted, listed with file and line, and with what to do about it."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from regard.errors import CorpusError
from regard.recipe import DataFile, Task
from regard.text.corpus import KEYS, LineError, Row, Unit, header_left_out, read_rows
from regard.text.sieve import learned_from, text_key

LISTED = 5  # findings of a kind that are shown; the rest are counted
MOST_WORDS, MOST_CHARACTERS = 1_000, 10_000
MOST_RATIO, SHORT_WORDS = 4, 10
MOST_LABELS = 10_000
STRAY = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufffd]")  # the last two are left over from files read in a wrong encoding


@dataclass(frozen=True)
class Kind:
    """A kind of trouble: what it is called, what to do about it, and whether training stops at it."""

    title: str
    remedy: str
    stops: bool = False


KINDS = {
    "file": Kind("files that can't be read", "training stops at them: put them right first", stops=True),
    "no-rows": Kind(
        "files without a single row", "training stops at them: they are empty, or only and without let nothing through", stops=True
    ),
    "utf-8": Kind("lines that are not UTF-8", "training stops at them: convert the file with iconv, or take the lines out", stops=True),
    "columns": Kind(
        "lines without all columns", "training stops at them: put a tab between columns, or choose others with columns = […]", stops=True
    ),
    "json": Kind(
        "lines that are not the JSON wanted", "training stops at them: write one object on each line, its texts in quotes", stops=True
    ),
    "header": Kind(
        "first lines that name the columns",
        "they are left out of training; if one is a row, say --no-header, or header = false in a recipe",
    ),
    "surplus": Kind("lines with more columns than the first", "a tab within a text cuts it short: write a space instead"),
    "empty": Kind("rows with an empty side", "they are left out of training; nothing need be done if they are few"),
    "long": Kind(
        f"texts over {MOST_WORDS:,} words or {MOST_CHARACTERS:,} characters",
        "see that line feeds are not missing; split them, or they are cut or left out",
    ),
    "ratio": Kind(
        f"pairs where one side is over {MOST_RATIO} times as long",
        "such pairs are seldom translations: look at them and take the wrong ones out",
    ),
    "same": Kind(
        "pairs with source and target the same",
        "names and numbers are fine; untranslated sentences teach the model to copy, so take them out",
    ),
    "duplicate": Kind("rows that stand there before", "a few do no harm; many are learned by heart: keep one of each"),
    "overlap": Kind(
        "dev or test texts that stand in the training data", "scores on them are too good to be true: take them out of the training data"
    ),
    "stray": Kind(
        "texts with control or replacement characters",
        "left over from a wrong encoding or a conversion: take them out, or make the file anew",
    ),
    "rare-label": Kind("labels seen once", "misspelt, or too rare to learn: correct them or give more examples"),
    "new-label": Kind(
        "dev or test labels that training never sees", "they can't be predicted: correct them, or add examples to the training data"
    ),
    "many-labels": Kind(
        f"files with over {MOST_LABELS:,} different labels", "is that the column of the labels? choose it with columns = [label, text]"
    ),
}


@dataclass
class Lengths:
    """How long the texts of one side are."""

    words: int = 0
    characters: int = 0
    most_words: int = 0
    most_characters: int = 0

    def add(self, words: int, characters: int) -> None:
        self.words += words
        self.characters += characters
        self.most_words = max(self.most_words, words)
        self.most_characters = max(self.most_characters, characters)


@dataclass
class Findings:
    """How often a kind of trouble was met, and the first few places."""

    total: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, place: str, detail: str = "") -> None:
        self.total += 1
        if len(self.first) < LISTED:
            self.first.append(f"{place} {detail}".rstrip())


@dataclass
class Report:
    """What a check found."""

    task: Task
    rows: dict[str, int] = field(default_factory=dict)  # of each training file
    against: dict[str, int] = field(default_factory=dict)  # of each dev or test file
    sides: dict[str, Lengths] = field(default_factory=dict)  # of the training files
    labels: Counter[str] = field(default_factory=Counter)
    found: dict[str, Findings] = field(default_factory=dict)

    @property
    def errors(self) -> dict[str, Findings]:
        """What stops training."""
        return {kind: self.found[kind] for kind in KINDS if kind in self.found and KINDS[kind].stops}

    @property
    def warnings(self) -> dict[str, Findings]:
        """What is worth a look."""
        return {kind: self.found[kind] for kind in KINDS if kind in self.found and not KINDS[kind].stops}

    def add(self, kind: str, place: str, detail: str = "") -> None:
        self.found.setdefault(kind, Findings()).add(place, detail)

    def lines(self) -> list[str]:
        """The summary, for a person."""
        return [line for line, _ in self._styled()]

    def show(self, console: Console) -> None:
        for line, style in self._styled():
            console.print(Text(line, style=style), soft_wrap=True)

    def as_json(self) -> dict[str, Any]:
        def listed(findings: dict[str, Findings]) -> dict[str, Any]:
            return {
                kind: {"title": KINDS[kind].title, "remedy": KINDS[kind].remedy, "total": found.total, "first": found.first}
                for kind, found in findings.items()
            }

        return {
            "task": self.task,
            "rows": self.rows,
            "against": self.against,
            "sides": {name: vars(lengths) for name, lengths in self.sides.items()},
            "labels": dict(self.labels.most_common()),
            "errors": listed(self.errors),
            "warnings": listed(self.warnings),
        }

    def _styled(self) -> Iterator[tuple[str, str]]:
        for file, rows in self.rows.items():
            yield f"{file}: {rows:,} rows", "bold"
        total = max(1, sum(self.rows.values()))
        for name, side in self.sides.items():
            yield (
                f"  {name}: {side.words:,} words, {side.characters:,} characters; "
                f"mean {side.words / total:.1f} words, {side.characters / total:.1f} characters; "
                f"largest {side.most_words:,} words, {side.most_characters:,} characters",
                "",
            )
        if self.labels:
            shown = ", ".join(f"{label} {count:,}" for label, count in self.labels.most_common(20))
            yield f"  {len(self.labels):,} labels: {shown}{' …' if len(self.labels) > 20 else ''}", ""
        for file, rows in self.against.items():
            yield f"checked against {file}: {rows:,} rows", ""
        for name, findings, style in (("error", self.errors, "red"), ("warning", self.warnings, "yellow")):
            for kind, found in findings.items():
                yield f"{name}: {KINDS[kind].title}: {found.total:,}", style
                for place in found.first:
                    yield f"  {place}", ""
                if found.total > len(found.first):
                    yield f"  … and {found.total - len(found.first):,} more", ""
                yield f"  → {KINDS[kind].remedy}", ""
        if not self.found:
            yield "nothing wrong was found", "green"


def check(files: Sequence[DataFile], task: Task, against: Sequence[DataFile] = (), root: Path | None = None, unit: Unit = "line") -> Report:
    """Reads training files, and the dev and test files that they must not overlap with, to the end whatever is wrong in them.

    Memory is 24 bytes a row: texts are remembered by 8 bytes of a hash.
    """
    report = Report(task, sides={name: Lengths() for name in KEYS[task] if name != "label"})
    seen = _Seen()
    for file in files:
        for row, words in _checked(file, report, report.rows, root, unit):
            for name, text in zip(KEYS[task], row.texts, strict=True):
                if name != "label":
                    report.sides[name].add(words[name], len(text))
            if all(words.values()):
                seen.add(row, learned_from(row, task))
            if task == "classify" and row.texts[0] and (row.texts[0] in report.labels or len(report.labels) < MOST_LABELS):
                report.labels[row.texts[0]] += 1
    seen.duplicates(report)
    _check_labels(report)
    known = seen.index()
    for file in against:
        for row, words in _checked(file, report, report.against, root, unit):
            if all(words.values()) and (where := known.find(learned_from(row, task))) is not None:
                report.add("overlap", f"{row.file}:{row.line}", f"stands in {where}")
            if (
                task == "classify"
                and row.texts[0].strip()
                and files
                and row.texts[0] not in report.labels
                and len(report.labels) < MOST_LABELS
            ):
                report.add("new-label", f"{row.file}:{row.line}", repr(row.texts[0][:40]))
    return report


def _checked(file: DataFile, report: Report, rows: dict[str, int], root: Path | None, unit: Unit) -> Iterator[tuple[Row, dict[str, int]]]:
    """The rows with the number of words of each side, after the checks that need one row alone."""

    def skip(bad: LineError) -> None:
        report.add(bad.kind, f"{bad.file}:{bad.line}", bad.problem)

    name = file.path or f"{file.source} + {file.target}"
    rows[name] = rows.get(name, 0)
    try:
        if (header := header_left_out(file, report.task, root)) is not None:
            report.add("header", f"{name}:1", header.partition(": ")[2].partition(";")[0])
        for row in read_rows(file, report.task, root, unit, skip=skip):
            rows[name] += 1
            words = {side: len(text.split()) for side, text in zip(KEYS[report.task], row.texts, strict=True)}
            _check_row(row, words, report, unit)
            yield row, words
    except CorpusError as error:
        report.add("file", str(error))
    else:
        if not rows[name]:
            report.add("no-rows", name)


def _check_row(row: Row, words: dict[str, int], report: Report, unit: Unit) -> None:
    place = f"{row.file}:{row.line}"
    empty = [side for side, count in words.items() if not count]
    if empty:
        report.add("empty", place, f"({' and '.join(empty)})")
    stray = next((found for text in row.texts if (found := STRAY.search(text))), None)
    if stray:
        report.add("stray", place, f"(U+{ord(stray[0]):04X})")
    for side, text in zip(words, row.texts, strict=True):
        if unit == "line" and (words[side] > MOST_WORDS or len(text) > MOST_CHARACTERS):
            report.add("long", place, f"({side}: {words[side]:,} words, {len(text):,} characters)")
    if report.task == "translate" and not empty:
        shorter, longer = sorted(words.values())
        if longer > SHORT_WORDS and longer > MOST_RATIO * shorter:
            report.add("ratio", place, f"({words['source']} words to {words['target']})")
        if row.texts[0].strip() == row.texts[1].strip():
            report.add("same", place)


def _check_labels(report: Report) -> None:
    if len(report.labels) >= MOST_LABELS:
        report.add("many-labels", ", ".join(report.rows))
        return
    for label, count in report.labels.items():
        if count == 1:
            report.add("rare-label", repr(label[:40]))


class _Seen:
    """Every training row, as hashes."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.rows, self.texts, self.places = array("Q"), array("Q"), array("Q")

    def add(self, row: Row, text: str) -> None:
        if not self.files or self.files[-1] != row.file:
            self.files.append(row.file)
        self.rows.append(text_key("\t".join(row.texts)))
        self.texts.append(text_key(text))
        self.places.append((len(self.files) - 1) << 40 | row.line)

    def place(self, index: int) -> str:
        return f"{self.files[self.places[index] >> 40]}:{self.places[index] & ((1 << 40) - 1)}"

    def duplicates(self, report: Report) -> None:
        _, first, inverse = np.unique(np.frombuffer(self.rows, dtype=np.uint64), return_index=True, return_inverse=True)
        again = np.flatnonzero(first[inverse] != np.arange(len(self.rows)))
        for index in again.tolist():
            report.add("duplicate", self.place(index), f"stands in {self.place(int(first[inverse[index]]))}")

    def index(self) -> _Index:
        return _Index(self)


class _Index:
    """Training texts in order of their hashes, to be looked up."""

    def __init__(self, seen: _Seen) -> None:
        texts = np.frombuffer(seen.texts, dtype=np.uint64)
        self._seen = seen
        self._order = np.argsort(texts, kind="stable")
        self._sorted = texts[self._order]

    def find(self, text: str) -> str | None:
        wanted = np.uint64(text_key(text))
        position = int(np.searchsorted(self._sorted, wanted))
        if position == len(self._sorted) or self._sorted[position] != wanted:
            return None
        return self._seen.place(int(self._order[position]))
