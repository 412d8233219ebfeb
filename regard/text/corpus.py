"""Reading a corpus: pairs, labelled text and plain text, from plain or compressed files, with the file and line of every row."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import lzma
import os
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, cast

import zstandard

from regard.errors import SHOWN, CorpusError, shown
from regard.recipe import DataFile, Task
from regard.storage import at_home
from regard.text.formats import COMPRESSED, MEBIBYTE, longest_line, text_lines, too_long
from regard.text.header import named_columns, names_columns
from regard.text.midi import PARTS, holds_music, songs

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

Unit = Literal["line", "document"]
COLUMN = re.compile(r"[0-9]{1,10}")  # of a table, counted from 0
AS_TABLE = ", or a row on each line of a .tsv, with a tab between its columns"
KEYS: dict[Task, tuple[str, ...]] = {"translate": ("source", "target"), "classify": ("label", "text"), "lm": ("text",), "mlm": ("text",)}


class Row(NamedTuple):
    """One example as it stands in its file: (source, target), (label, text) or (text,)."""

    texts: tuple[str, ...]
    file: str
    line: int  # from 1; of a document, its first


class LineError(CorpusError):
    """One line can't be read; those after it can."""

    def __init__(self, kind: Literal["utf-8", "columns", "json", "surplus"], file: str, line: int, problem: str, remedy: str) -> None:
        super().__init__(f"{file}, line {line}: {problem}; {remedy}")
        self.kind, self.file, self.line, self.problem = kind, file, line, problem


def find(name: str, root: Path | None = None, beside: Path | None = None) -> Path:
    """Where a data file is: at its absolute path, in the current folder, in `beside` (a recipe's folder) or in the data folder `root`.

    Without a `root`, the data folder is the one that REGARD_DATA names.
    """
    if root is None and os.environ.get("REGARD_DATA"):
        root = Path(os.environ["REGARD_DATA"])
    given = at_home(name)
    places = [given] if given.is_absolute() else [folder / given for folder in (Path(), beside, root) if folder is not None]
    for place in places:
        if place.is_file() or (place.is_dir() and holds_music(place)):
            return place
    if any(place.is_dir() for place in places):
        raise CorpusError(f"{name} is a folder; name a file in it (the folder itself only where it holds MIDI files)")
    packed = (place.with_name(place.name + ending) for place in places for ending in COMPRESSED)
    near = next((place.name for place in packed if place.is_file()), None)
    looked = " and ".join(str(place.absolute()) for place in places)
    remedy = (
        f"did you mean {Path(name).with_name(near)}?" if near else "check the name, or say where the data is with --data-dir or REGARD_DATA"
    )
    raise CorpusError(f"there is no file {name} (looked for {looked}); {remedy}")


def open_text(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a plain, .gz, .xz or .zst file with their numbers from 1, without the line feeds."""
    for number, line in _raw_lines(Path(path)):
        yield number, _decoded(line, str(path), number)


def read_rows(
    file: DataFile,
    task: Task,
    root: Path | None = None,
    unit: Unit = "line",
    *,
    skip: Callable[[LineError], None] | None = None,
) -> Iterator[Row]:
    """The rows of a data file that its `only` and `without` let through, one at a time; rows with an empty side are among them.

    A bad line is an error, unless `skip` is given: then it is told of the line, and reading goes on after it. It is also told of lines
    of a table that have more columns than the first line; these are read all the same.
    """
    paths = [find(name, root) for name in (file.path, file.source, file.target) if name is not None]
    _check_hash(file, paths)
    skip = skip or _stop
    if len(paths) == 2:
        return _aligned_rows(file, task, paths[0], paths[1], skip)
    if holds_music(paths[0]):
        return _songs(file, task, paths[0])
    columns = _Columns(file, task, paths[0])
    if not columns.plain:
        return _table_rows(columns, paths[0], skip)
    return _documents(paths[0], skip) if unit == "document" else _lines(paths[0], skip)


def header_left_out(file: DataFile, task: Task, root: Path | None = None) -> str | None:
    """What to say of a table whose first line names its columns, or looks so, and is therefore no row; None where all lines are rows."""
    if file.path is None or file.header is False or holds_music(path := find(file.path, root)):
        return None
    columns = _Columns(file, task, path)
    if columns.plain or columns.json:
        return None
    number, line = next(iter(_raw_lines(path, markup=True)), (1, b""))
    try:
        texts = columns.header(_decoded(line, str(path), number))
    except LineError:
        return None  # whoever reads the rows says so
    if texts is None:
        return None
    shown = " and ".join(repr(text[:40]) for text in texts)
    force = "" if file.header else "; if it is a row, say --no-header, or header = false in a recipe"
    return f"{path}, line 1: {shown} are taken for the names of the columns and left out{force}"


def synthetic_reverse(count: int, seed: int, part: Literal["train", "dev"] = "train") -> Iterator[Row]:
    """Made-up pairs: 4 to 12 digits, and the same digits backwards. No source of one part is ever in the other, whatever the seeds."""
    chance = random.Random(seed)
    made = 0
    while made < count:
        digits = [str(chance.randrange(10)) for _ in range(chance.randint(4, 12))]
        source = " ".join(digits)
        if (zlib.crc32(source.encode()) % 10 == 0) == (part == "dev"):
            made += 1
            yield Row((source, " ".join(reversed(digits))), f"synthetic {part}", made)


class _Columns:
    """Picks the texts of a row out of a line of TSV or JSONL, and says whether the row is wanted."""

    def __init__(self, file: DataFile, task: Task, path: Path) -> None:
        self.path = str(path)
        self.task = task
        ending = Path(path.name.removesuffix(path.suffix) if path.suffix in COMPRESSED else path.name).suffix.lower()
        self.json = ending in (".jsonl", ".ndjson")
        one_text = len(KEYS[task]) == 1
        table = bool(file.columns or file.only or file.without) or not one_text
        self.plain = not self.json and not table
        if ending in (".csv", ".json", ".parquet"):
            raise CorpusError(f"{path}: {ending} is not read; save it as .tsv (a tab between columns) or .jsonl (an object on each line)")
        if ending == ".tsv" and one_text and not file.columns:
            raise CorpusError(f"{path} is a table; say which column holds the text, for example --columns 0, or columns = [0] in a recipe")
        if file.header and (self.json or self.plain):
            raise CorpusError(f"{path}: header = true is for tables, and this is {'JSON' if self.json else 'plain text'}; take it out")
        wanted: Sequence[int | str] = file.columns or (KEYS[task] if self.json else range(len(KEYS[task])))
        if len(wanted) != len(KEYS[task]):
            raise CorpusError(f"{path}: columns = {list(wanted)}, but task {task} needs {len(KEYS[task])} ({', '.join(KEYS[task])})")
        self.wanted = [self._key(column) for column in wanted]
        self.only = {self._key(column): set(values) for column, values in file.only.items()}
        self.without = {self._key(column): set(values) for column, values in file.without.items()}
        self.least = 1 + max((key for key in (*self.wanted, *self.only, *self.without) if isinstance(key, int)), default=0)
        self.chosen = file.columns is not None
        self.named = file.header
        self.first: int | None = None  # how many columns the first line of a table has
        self.surplus = 0  # how many more than that the line read last has

    def _key(self, column: int | str) -> int | str:
        if self.json:
            return str(column)
        if not COLUMN.fullmatch(str(column)):
            raise CorpusError(f"{self.path}: there is no column {shown(column)} in a TSV; its columns are numbers from 0")
        return int(column)

    def read(self, line: str, number: int) -> tuple[str, ...] | None:
        """The texts, or None where the row is not wanted."""
        cells = self._object(line, number) if self.json else self._cells(line, number)
        if cells is None:
            return None
        if any(cells[key] not in values for key, values in self.only.items()):
            return None
        if any(cells[key] in values for key, values in self.without.items()):
            return None
        return tuple(cells[key] for key in self.wanted)

    def header(self, first: str) -> tuple[str, ...] | None:
        """What the columns are called, where the first line of a table names them instead of being a row."""
        if self.named is False:
            return None
        cells = self._cells(first, 1)
        texts = tuple(cells[key] for key in self.wanted)
        if not self.chosen and len(texts) == 2 and (named := named_columns(list(cells.values()), self.task)) not in (None, (0, 1)):
            numbers, names = ", ".join(map(str, named)), " and ".join(repr(cells[column]) for column in named)
            raise CorpusError(
                f"{self.path}, line 1: {names} are the names of {' and '.join(KEYS[self.task])}, but the first two columns would be read; "
                f"say --columns {numbers.replace(' ', '')}, or columns = [{numbers}] in a recipe; if it is a row, --no-header"
            )
        return texts if self.named or names_columns(texts, self.task) else None

    def _cells(self, line: str, number: int) -> dict[int | str, str]:
        cells = line.split("\t")
        if not line:  # a blank line is a row of empty sides, which stops nobody
            cells = [""] * self.least
        if len(cells) < self.least:
            problem = f"{len(cells)} column{'s' if len(cells) > 1 else ''} where {self.least} are wanted (with a tab between them)"
            remedy = f"`regard data check {self.path} --task {self.task}` lists all such lines"
            raise LineError("columns", self.path, number, problem, remedy)
        self.first = self.first or len(cells)
        self.surplus = len(cells) - self.first
        return dict(enumerate(cells))

    def _object(self, line: str, number: int) -> dict[int | str, str] | None:
        if not line.strip():
            return None
        try:
            content = json.loads(line)
        except ValueError as error:
            problem = f"not JSON ({error.msg if isinstance(error, json.JSONDecodeError) else error})"
            raise LineError("json", self.path, number, problem, "write one object on each line") from None
        except RecursionError:
            raise LineError("json", self.path, number, "nested too deep", "write one flat object on each line") from None
        if not isinstance(content, dict):
            raise LineError("json", self.path, number, "not a JSON object", 'write {"' + '": …, "'.join(map(str, self.wanted)) + '": …}')
        missing = [str(key) for key in (*self.wanted, *self.only, *self.without) if key not in content]
        if missing:
            has = ", ".join(list(content)[:10]) or "none"
            inner = next((key for key, value in content.items() if isinstance(value, dict)), None)
            plain = 'write {"' + '": …, "'.join(map(str, self.wanted)) + '": …} on each line'
            remedy = "name the keys with columns = […]" if inner is None else f"{inner!r} holds an object, so {plain}"
            raise LineError("columns", self.path, number, f"no key {missing[0]!r} (its keys: {has})", remedy)
        return {key: self._text(key, value, number) for key, value in content.items() if key in (*self.wanted, *self.only, *self.without)}

    def _text(self, key: str, value: Any, number: int) -> str:
        if isinstance(value, str):
            if any("\ud800" <= character <= "\udfff" for character in value):
                raise LineError("utf-8", self.path, number, f"{key!r} holds half of a character (a lone \\ud… escape)", "take the line out")
            return value
        label = self.task == "classify" and key == self.wanted[0]
        if isinstance(value, bool | int | float) and (label or key not in self.wanted):
            return json.dumps(value)
        raise LineError("json", self.path, number, f"{key!r} is {type(value).__name__}, not text", "put it in quotes or take the line out")


def _table_rows(columns: _Columns, path: Path, skip: Callable[[LineError], None]) -> Iterator[Row]:
    for number, line in _raw_lines(path, markup=not columns.json):
        try:
            decoded = _decoded(line, str(path), number)
            if number == 1 and not columns.json and columns.header(decoded) is not None:
                continue
            texts = columns.read(decoded, number)
        except LineError as bad:
            skip(bad)
            continue
        if columns.surplus > 0 and skip is not _stop:
            problem = f"{columns.surplus} more than the {columns.first} columns of the first line"
            skip(LineError("surplus", str(path), number, problem, "take tabs out of texts"))
        if texts is not None:
            yield Row(texts, str(path), number)


def _aligned_rows(file: DataFile, task: Task, source: Path, target: Path, skip: Callable[[LineError], None]) -> Iterator[Row]:
    if task != "translate":
        raise CorpusError(f"{source} and {target}: two aligned files are for task translate; for {task} give one, path = '…'")
    if file.columns or file.only or file.without or file.header:
        raise CorpusError(f"{source} and {target}: columns, header, only and without are for tables; two aligned files have no columns")
    counts = [0, 0]
    for pair in zip_longest(_raw_lines(source, markup=True), _raw_lines(target, markup=True)):
        for side, numbered in enumerate(pair):
            counts[side] += numbered is not None
        if pair[0] is None or pair[1] is None:
            continue  # to know how many lines the longer one has
        number = counts[0]
        try:
            texts = _decoded(pair[0][1], str(source), number), _decoded(pair[1][1], str(target), number)
        except LineError as bad:
            skip(bad)
            continue
        yield Row(texts, str(source), number)
    if counts[0] != counts[1]:
        raise CorpusError(
            f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; each line should belong to its like, so find where they part"
        )


def _songs(file: DataFile, task: Task, path: Path) -> Iterator[Row]:
    """A song a row, as events. `only` and `without` go by its part: train, dev or test."""
    if len(KEYS[task]) > 1:
        raise CorpusError(f"{path}: music is for the task lm; {task} needs text ({', '.join(KEYS[task])})")
    strange = next((key for key in (*file.only, *file.without) if key != "part"), None)
    if strange is not None or file.columns:
        raise CorpusError(f"{path}: songs have no column {strange or file.columns}; only and without go by part, as {{ part = ['dev'] }}")
    parts = set(file.only.get("part", PARTS)) - set(file.without.get("part", ()))
    return (Row((song.events,), song.file, 1) for song in songs(path, file.transpose, parts))


def _lines(path: Path, skip: Callable[[LineError], None]) -> Iterator[Row]:
    for number, line in _raw_lines(path):
        try:
            yield Row((_decoded(line, str(path), number),), str(path), number)
        except LineError as bad:
            skip(bad)


def _documents(path: Path, skip: Callable[[LineError], None]) -> Iterator[Row]:
    """What stands between blank lines, with its line feeds; no longer than a line may be."""
    document: list[str] = []
    first, size, longest = 1, 0, longest_line()
    for row in _lines(path, skip):
        if row.texts[0].strip():
            first = first if document else row.line
            document.append(row.texts[0])
            size += len(row.texts[0])
            if size > longest * MEBIBYTE:
                raise too_long(str(path), first, longest)
        elif document:
            yield Row(("\n".join(document),), str(path), first)
            document, size = [], 0
    if document:
        yield Row(("\n".join(document),), str(path), first)


def _raw_lines(path: Path, *, markup: bool = False) -> Iterator[tuple[int, bytes]]:
    """With `markup`, text with a structure of its own is refused too: it is no table, and nobody's sentences line by line."""
    with opened(path) as file:
        for number, line in enumerate(text_lines(file, str(path), markup=markup, otherwise=AS_TABLE), 1):
            yield number, (line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n"))


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A plain or compressed file to be read; what is wrong with it is said in words."""
    try:
        with ExitStack() as files:
            yield _opened(path, files)
    except FileNotFoundError:
        raise CorpusError(f"there is no file {path}; check the name, or say where the data is with --data-dir or REGARD_DATA") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise CorpusError(
            f"{path} is damaged or cut short ({error}); copy it again from where it came, or name it by what it is"
        ) from error
    except OSError as error:
        raise CorpusError(f"can't read {path}: {error.strerror or error}") from error


def _opened(path: Path, files: ExitStack) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, files.enter_context(gzip.open(path, "rb")))
    if path.suffix == ".xz":
        return cast(BinaryIO, files.enter_context(lzma.open(path, "rb")))
    plain = files.enter_context(path.open("rb"))
    return cast(BinaryIO, io.BufferedReader(_Zstandard(plain), 1 << 16)) if path.suffix == ".zst" else plain


class _Zstandard(io.RawIOBase):
    """Reads all frames of a .zst file. The package's own reader takes a file that is cut short for a whole one."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._unpacker = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False  # a frame that has not ended yet
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready:
            unused = self._unpacker.unused_data if self._unpacker.eof else b""
            if self._unpacker.eof:
                self._unpacker, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            packed = unused or self._packed.read(4096)  # little at a time, because much may come out of it
            if not packed:
                if self._begun:
                    raise EOFError("the last frame has no end")
                return 0
            self._begun = True
            self._ready = memoryview(self._unpacker.decompress(packed))
        size = min(len(view), len(self._ready))
        view[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


def _decoded(line: bytes, file: str, number: int) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        remedy = "convert the file to UTF-8, for example with `iconv -f LATIN1 -t UTF-8`, or take the line out"
        raise LineError("utf-8", file, number, f"not UTF-8 (byte {error.start + 1} is 0x{line[error.start]:02X})", remedy) from None
    return text.removeprefix("\ufeff") if number == 1 else text  # the mark that some editors put at the start of a file


def _check_hash(file: DataFile, paths: list[Path]) -> None:
    """Of two aligned files, the hash is that of the source followed by the target, as `cat SOURCE TARGET | sha256sum` gives it."""
    if file.sha256 is None:
        return
    digest = hashlib.sha256()
    for path in paths:
        try:
            with path.open("rb") as content:
                while block := content.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise CorpusError(f"can't read {path}: {error.strerror}") from error
    if digest.hexdigest() != file.sha256.lower():
        names = " and ".join(map(str, paths))
        raise CorpusError(
            f"{names}: its sha256 is {digest.hexdigest()}, but the recipe says {file.sha256[:SHOWN]}; "
            "get the right file, or change sha256 there"
        )


def _stop(bad: LineError) -> None:
    raise bad
