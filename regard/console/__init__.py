"""What verbs share: lines in, results out, and meanwhile on standard error what a person should know."""

from __future__ import annotations

import io
import json
import os
import re
import select
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TextIO, TypeVar, cast

from regard.console.messages import Messages, Warned
from regard.errors import CorpusError
from regard.evaluation.metrics import finite
from regard.files import Making, OutputError, drop_output, explained
from regard.text.corpus import find, opened
from regard.text.formats import BLOCK, BY_STANDARD_INPUT, COMPRESSED, HEAD, blocks, lines_of, refuse, text_lines, wide_encoding

__all__ = ["Batch", "Lines", "Messages", "OutputError", "Results", "line_by_line"]

LONGEST_TEXT = 1  # MiB of a line that is to be answered, as in a request to the server: one that is longer takes minutes without a word
MOST_AT_ONCE = 16_000_000  # characters of texts that are worked on together
PATIENCE = 0.05  # seconds that lines wait for more to come, before they are worked on
STANDARD = Path("-")  # standard input or output
LINE_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
HALVES = re.compile("[\ud800-\udfff]")  # of characters; no encoding can write them

Item = TypeVar("Item")


@contextmanager
def line_by_line(texts: Sequence[str], file: Path | None, output: Path | None) -> Iterator[tuple[Lines, Results, Messages]]:
    """All that a verb needs to turn lines into results. What is missing is said at once; `output` is there when all is done, or not at all.

    with line_by_line(texts, file, output) as (lines, results, messages):
        for batch in lines.batches(64):
            for text in batch:
                results.text(text.upper())
            results.flush()
    """
    with Messages() as messages:
        lines = Lines(texts, file, messages)
        with Results(output) as results:
            messages.bar_wanted = not (lines.interactive or results.on_terminal)  # which a bar would be in the way of
            yield lines, results, messages


@dataclass(frozen=True)
class Batch:
    """Texts that are worked on together."""

    texts: list[str]
    first: int  # how many came before them
    position: int  # how far all is read with them, in what `Lines.total` counts
    warnings: list[Warned]  # kept while they were read


class Lines:
    """One text after another: the arguments, else the lines of a file, plain or compressed, else those of standard input.

    Only a line feed ends a line, and a carriage return right before it belongs to that end; a last line needs none. What is not UTF-8
    becomes U+FFFD, with a warning. Lines are read as they are needed. A file that is not lines of text, such as a PDF or subtitles, is
    refused; standard input only where its bytes are no text at all.
    """

    def __init__(self, texts: Sequence[str], file: Path | None, messages: Messages) -> None:
        if texts and file is not None:
            raise CorpusError(f"there is text to work on, and the file {file} as well; give one of the two")
        self._texts = texts
        self._messages = messages
        self._path = None if texts or file in (None, STANDARD) else _found(Path(str(file)))
        self.name = "text" if texts else "standard input" if self._path is None else str(self._path)
        if not texts and self._path is None and sys.stdin is None:
            raise CorpusError("standard input is closed; give text, or a file to read")
        self._position = 0

    @property
    def interactive(self) -> bool:
        """Whether a person types the lines."""
        return not self._texts and self._path is None and sys.stdin.isatty()

    @property
    def total(self) -> int | None:
        """How much there is to read, where that is known: texts, or bytes of an uncompressed file."""
        if self._texts:
            return len(self._texts)
        if self._path is not None:
            return self._path.stat().st_size if self._path.is_file() and self._path.suffix not in COMPRESSED else None
        with suppress(OSError):  # standard input may be a pipe, or not a real one
            handle = sys.stdin.fileno()
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return os.fstat(handle).st_size - os.lseek(handle, 0, os.SEEK_CUR)
        return None

    def __iter__(self) -> Iterator[str]:
        for batch in self.batches(1):
            yield batch[0]

    def batches(self, size: int) -> Iterator[list[str]]:
        """Up to `size` texts at a time; fewer, where more are not there yet, so that nobody who sends a line waits in vain for its result.

        A batch counts as done when the next is asked for.
        """
        for batch in self.ahead(size):
            if batch is not None:
                self._messages.warn_of(batch.warnings)
                yield batch.texts
                self.done(batch)
        self._messages.finish()

    def ahead(self, size: int) -> Iterator[Batch | None]:
        """The same, for whoever reads on before all is done: `done` tells. None: nothing more has come yet, and may not for long."""
        self._messages.start(self.total)
        trouble: list[Exception] = []
        read, first, warnings = until(trouble, self._read()), 0, list[Warned]()
        while taken := self._taken(read, size, warnings):
            if texts := [text for text in taken if text is not None]:
                yield Batch(texts, first, self._position, warnings)
                first, warnings = first + len(texts), []
            if taken[-1] is None:
                yield None
        self._messages.warn_of(warnings)
        for error in trouble:  # after all that was read before it
            raise error

    def _taken(self, read: Iterator[str | None], size: int, warnings: list[Warned]) -> list[str | None]:
        """The next texts, at most so many; a None after them, where more are not there yet."""
        taken: list[str | None] = []
        characters = 0
        with self._messages.kept(warnings):
            for text in read:
                taken.append(text)
                characters += len(text or "")
                if text is None or len(taken) == size or characters > MOST_AT_ONCE:
                    break
        return taken

    def done(self, batch: Batch) -> None:
        """The bar may go on."""
        self._messages.advance(len(batch.texts), batch.position)

    def _read(self) -> Iterator[str | None]:
        """The texts; None where the next is not there yet."""
        if self._texts:
            for number, text in enumerate(self._texts, 1):
                self._position += 1
                yield self._mended(text, f"text {number}") if HALVES.search(text) else text
            return
        if self.interactive:
            self._messages.say("type a line and press Enter; Ctrl-D ends")
        number = 0
        for line in self._raw():
            if line is None:
                yield None
                continue
            number += 1
            self._position += len(line)
            line = line[:-2] if line.endswith(b"\r\n") else line.removesuffix(b"\n")
            text = self._decoded(line, f"{self.name}, line {number}")
            yield text.removeprefix("\ufeff") if number == 1 else text  # the mark that some editors put at the start of a file

    def _raw(self) -> Iterator[bytes | None]:
        if self._path is None:
            try:
                yield from lines_of(self._seen_to_be_text(_arriving(sys.stdin)), self.name, LONGEST_TEXT)
            except OSError as error:
                raise CorpusError(f"can't read {self.name}: {error.strerror or error}") from error
        else:
            with opened(self._path) as content:
                yield from text_lines(content, self.name, markup=True, otherwise=BY_STANDARD_INPUT, longest=LONGEST_TEXT)

    def _seen_to_be_text(self, arriving: Iterator[bytes | None]) -> Iterator[bytes | None]:
        """Standard input, of which what comes first is looked at: what comes after may be long in coming."""
        looked = False
        for block in arriving:
            if block is not None and not looked:
                looked = True
                refuse(self.name, block[:HEAD], markup=False)
                if encoding := wide_encoding(block):
                    raise CorpusError(
                        f"{self.name} is in {encoding.upper()}; name it as a file, or convert it: `iconv -f {encoding.upper()} -t UTF-8`"
                    )
            yield block

    def _decoded(self, line: bytes, place: str) -> str:
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            return self._mended(line.decode("utf-8", errors="replace"), place, f" (byte {error.start + 1} is 0x{line[error.start]:02X})")

    def _mended(self, text: str, place: str, detail: str = "") -> str:
        self._messages.warn(f"{place}: not UTF-8{detail}; read with \ufffd where it is broken", "lines that are not UTF-8")
        return HALVES.sub("\ufffd", text)


class Results:
    """One result after another, as a line each: to standard output, or to a file that takes its place when all is done, or not at all."""

    def __init__(self, path: Path | None) -> None:
        self._path = None if path in (None, STANDARD) else path
        self._making = None if self._path is None else Making(self._path)
        self._matrix, self._rows, self._columns = path is not None and path.suffix == ".npy", 0, 0
        self._stream = _standard_output() if self._making is None else self._making.stream
        if self._making is not None and self._matrix and not self._stream.seekable():
            self._making.drop()
            raise OutputError(f"{path} is a pipe, and how many rows a .npy file has is written at its beginning; choose a file")

    @property
    def on_terminal(self) -> bool:
        return self._path is None and sys.stdout.isatty()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.flush()
                self._put_in_place()
        finally:
            if self._making is not None:
                self._making.drop()

    def text(self, text: str) -> None:
        """Writes a text as one line: breaks within it become spaces."""
        self._write(LINE_BREAKS.sub(" ", text))

    def json(self, record: Mapping[str, Any]) -> None:
        """Writes a JSON object as one line, whatever a reader takes for the end of one."""
        line = json.dumps(finite(dict(record)), ensure_ascii=False, allow_nan=False)
        self._write(re.sub("[\x7f-\x9f\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", line))

    def content(self, content: bytes) -> None:
        """Writes bytes as they are, for files that are no text."""
        self._bytes(content)

    def numbers(self, numbers: Sequence[float]) -> None:
        """Writes a JSON list as one line; in a file that ends in .npy, a row of a matrix in float32."""
        if not self._matrix:
            self._write(json.dumps(list(numbers)))
            return
        if self._rows == 0:
            self._columns = len(numbers)
            self._bytes(self._header())  # for the meantime: how many rows there are is known at the end
        self._rows += 1
        self._bytes(struct.pack(f"<{len(numbers)}f", *numbers))

    def _header(self) -> bytes:
        """That of a .npy file, of the same length whatever the number of rows."""
        fields = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({self._rows}, {self._columns}), }}"
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + fields.ljust(117).encode() + b"\n"

    def flush(self) -> None:
        """At the end of each batch, so that whoever reads along sees it."""
        with self._explained():
            self._stream.flush()

    def _write(self, line: str) -> None:
        self._bytes(HALVES.sub("\ufffd", line).encode("utf-8") + b"\n")

    def _bytes(self, content: bytes) -> None:
        with self._explained():
            self._stream.write(content)

    def _put_in_place(self) -> None:
        if self._making is None:
            return
        if self._matrix:
            with self._explained():
                self._stream.seek(0)
                self._stream.write(self._header())
        self._making.put_in_place()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A trouble with the disk in words."""
        try:
            with explained(self._path or "to standard output"):
                yield
        except (OutputError, BrokenPipeError):
            if self._path is None:
                drop_output()
            raise


def until(trouble: list[Exception], items: Iterable[Item]) -> Iterator[Item]:
    """All of them, or those before an error, which is put there."""
    try:
        yield from items
    except Exception as error:
        trouble.append(error)


def _found(file: Path) -> Path:
    return file if file.exists() and not file.is_dir() else find(str(file))  # a pipe of the shell's making is fine too


def _arriving(stream: TextIO) -> Iterator[bytes | None]:
    """Standard input as it comes; None where more is not there yet."""
    try:
        handle = stream.fileno()
    except OSError:  # not a real one
        yield from blocks(cast(io.BufferedReader, stream.buffer))
        return
    while True:
        if sys.platform != "win32" and not select.select([handle], [], [], PATIENCE)[0]:
            yield None
        block = os.read(handle, BLOCK)
        if not block:
            return
        yield block


def _standard_output() -> IO[bytes]:
    if sys.stdout is None:
        raise OutputError("standard output is closed; say where results should go with --output")
    sys.stdout.flush()
    return sys.stdout.buffer  # results are UTF-8 as the lines are, whatever the locale
