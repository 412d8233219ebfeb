"""A document, subtitles or a picture in place of lines of text: one sentence says what it is and what to do, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import Done, run
from tests.text.test_formats import BINARY, BY_STANDARD_INPUT, HTML, MARKUP, SRT

Bundles = Callable[[str], Path]
BYTES = ("letter.docx", "letter.odt", "paper.pdf", "some.zip", "photo.png", "text")
NAMED = (*BYTES, "film.srt", "it.po", "page.html", "notes.md", "rows.csv")


def translated(bundle: Bundles, out: Path, *more: str | Path, stdin: bytes = b"") -> Done:
    return run("translate", "-m", bundle("translator"), "--to", "back", "--max-length", "4", "--output", out, *more, stdin=stdin)


@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_is_no_text(bundle: Bundles, tmp_path: Path, name: str) -> None:
    content, what = {**BINARY, **MARKUP}[name]
    file, out = tmp_path / name, tmp_path / "results"
    file.write_bytes(content)
    done = translated(bundle, out, "--input", file)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"regard: {file} is {what}")
    assert ", not lines of text; " in done.err
    assert done.err.endswith(f"{BY_STANDARD_INPUT}\n") == (name in MARKUP)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [name]


@pytest.mark.parametrize("name", BYTES)
def test_standard_input_that_is_no_text(bundle: Bundles, tmp_path: Path, name: str) -> None:
    content, what = BINARY[name]
    done = translated(bundle, tmp_path / "results", stdin=content)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"regard: standard input is {what}")
    assert ", not lines of text; " in done.err
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_standard_input_in_a_wide_encoding(bundle: Bundles, tmp_path: Path) -> None:
    done = translated(bundle, tmp_path / "results", stdin="1 2 3\n".encode("utf-16"))
    assert done.code == 1
    assert done.err == "regard: standard input is in UTF-16; name it as a file, or convert it: `iconv -f UTF-16 -t UTF-8`\n"
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.parametrize("content", [SRT, HTML], ids=["subtitles", "page"])
def test_standard_input_with_a_structure_is_read_as_lines(bundle: Bundles, tmp_path: Path, content: bytes) -> None:
    """As the message about a file says."""
    done = translated(bundle, tmp_path / "results", stdin=content)
    assert done.code == 0, done.err
    assert (tmp_path / "results").read_bytes().count(b"\n") == content.count(b"\n")
