"""Lines without an end: a few bytes of an archive may be a line of gigabytes, and nobody holds that in memory."""

from __future__ import annotations

import gzip
import io
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from regard.console import MOST_AT_ONCE, Lines, Messages
from regard.data.store import CHUNK, MOST_TEXT, in_chunks
from regard.errors import ConfigError, CorpusError
from regard.recipe import DataFile, TokenizerSettings
from regard.text.corpus import open_text, read_rows
from regard.text.formats import BLOCK, lines_of, longest_line, text_lines
from regard.text.tokenizer import Tokenizer
from tests.cli.running import run

HINT = "break it up, or set REGARD_LONGEST_LINE to more, in MiB"


class Endless(io.RawIOBase):
    """So many bytes again and again: whoever wants all of them does not come back."""

    def __init__(self, bytes: bytes) -> None:
        self.bytes = bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        size = len(view) // len(self.bytes) * len(self.bytes)
        view[:size] = self.bytes * (size // len(self.bytes))
        return size


@pytest.mark.parametrize("content", [b"a", b"\xff\xfea\0", b"\xff\xfe\0\0a\0\0\0"], ids=["utf-8", "utf-16", "utf-32"])
def test_a_line_without_end_is_refused(content: bytes) -> None:
    """Where it begins with a mark of an encoding, that comes again and again too, and is read as a character."""
    stream = cast(BinaryIO, io.BufferedReader(Endless(content), 8192))
    with pytest.raises(CorpusError, match=f"^name, line 1: longer than 1 MiB; {HINT}$"):
        list(text_lines(stream, "name", markup=True, longest=1))


def test_lines_are_what_stands_between_line_feeds_however_they_come() -> None:
    content = b"one\r\n\n" + b"x" * 3 * BLOCK + b"\nlast"
    for size in (1, 7, BLOCK):
        blocks = [content[start : start + size] for start in range(0, min(len(content), 100 * size), size)]
        assert list(lines_of(blocks, "name", 1)) == b"".join(blocks).splitlines(keepends=True)
    assert list(lines_of([b"a", None, b"b\nc"], "name", 1)) == [None, b"ab\n", b"c"]
    with pytest.raises(CorpusError, match=r"^name, line 3: longer than 1 MiB"):
        list(lines_of([b"1\n2\n", *repeat(b"x" * BLOCK, 17)], "name", 1))


def test_the_bound_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("short\n" + "a" * (3 << 20) + "\n")
    assert [number for number, _ in open_text(tmp_path / "a.txt")] == [1, 2]
    monkeypatch.setenv("REGARD_LONGEST_LINE", "2")
    with pytest.raises(CorpusError, match=f"a.txt, line 2: longer than 2 MiB; {HINT}"):
        list(open_text(tmp_path / "a.txt"))
    with Messages() as messages, pytest.raises(CorpusError, match=f"a.txt, line 2: longer than 2 MiB; {HINT}"):
        list(Lines([], tmp_path / "a.txt", messages))
    monkeypatch.setenv("REGARD_LONGEST_LINE", "4")
    with Messages() as messages:
        assert [len(line) for line in Lines([], tmp_path / "a.txt", messages)] == [5, 3 << 20]
    for wrong in ("0", "-1", "1.5", "²", "9" * 5000, "64M"):
        monkeypatch.setenv("REGARD_LONGEST_LINE", wrong)
        with pytest.raises(ConfigError, match="is no number of MiB; set it to a whole one, as REGARD_LONGEST_LINE=64"):
            longest_line()


def test_a_document_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_LONGEST_LINE", "1")
    (tmp_path / "a.txt").write_text("short\n\n" + "a line of many\n" * 80_000)
    with pytest.raises(CorpusError, match=f"a.txt, line 3: longer than 1 MiB; {HINT}"):
        list(read_rows(DataFile(path=str(tmp_path / "a.txt")), "lm", unit="document"))


VERBS = [
    ("data", "check", "bomb.txt.gz", "--task", "lm"),
    ("train", "--task", "lm", "--train", "bomb.txt.gz", "--out", "run"),
    ("translate", "--to", "de", "--input", "bomb.txt.gz"),
]


@pytest.mark.parametrize("asked", VERBS, ids=lambda asked: " ".join(asked[:2]))
def test_every_verb_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("REGARD_LONGEST_LINE", "2")
    with gzip.open(tmp_path / "bomb.txt.gz", "wb", compresslevel=1) as packed:
        packed.write(b"a" * (3 << 20))
    done = run(*asked)
    assert done.code == 1
    assert f"bomb.txt.gz, line 1: longer than 2 MiB; {HINT}" in done.err + done.out
    assert "Traceback" not in done.err


def test_standard_input_too() -> None:
    done = run("view", "--to", "de", stdin="a" * (2 << 20))
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith(f"regard: standard input, line 1: longer than 1 MiB; {HINT}\n")


def test_many_long_lines_are_not_held_together(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "long.txt.gz", "wb", compresslevel=1) as packed:
        packed.write((b"a" * (1 << 20) + b"\n") * 40)
    with Messages() as messages:
        sizes = [sum(map(len, batch)) for batch in Lines([], tmp_path / "long.txt.gz", messages).batches(2048)]
    assert sum(sizes) == 40 << 20
    assert max(sizes) <= MOST_AT_ONCE + (1 << 20)
    chunks = list(in_chunks(["a" * (1 << 22)] * 20, CHUNK, len))
    assert max(sum(map(len, chunk)) for chunk in chunks) <= MOST_TEXT + (1 << 22)
    assert sum(map(len, chunks)) == 20


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_word_without_end_is_learned_from_in_time(kind: str) -> None:
    """It would take the square of its length: minutes."""
    texts: Callable[[], list[str]] = lambda: ["a word or two"] * 50 + ["a" * 100_000, " " * 100_000]  # noqa: E731
    before = time.process_time()
    assert len(Tokenizer.train(texts(), TokenizerSettings(kind=kind, size=300))) <= 300  # type: ignore[arg-type]
    assert time.process_time() - before < 15
