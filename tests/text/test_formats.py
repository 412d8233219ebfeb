"""What is no file of lines is told by its bytes or by its name and a look, and said with what to do; what is one is never refused."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import pytest
import zstandard

from regard.errors import CorpusError
from regard.text.formats import BY_STANDARD_INPUT, foreign, refuse, text_lines

ROOT = Path(__file__).parents[2]
SRT = b"1\r\n00:00:01,600 --> 00:00:04,200\r\nHello there.\r\n\r\n2\r\n00:00:05,900 --> 00:00:07,999\r\nGood morning.\r\n"
PO = b'# Translators:\n#, fuzzy\nmsgid ""\nmsgstr ""\n"Language: it\\n"\n\nmsgid "Open"\nmsgstr "Apri"\n'
HTML = b"<!DOCTYPE html>\n<html><body><p>Hello <b>there</b>.</p></body></html>\n"


WHEN = (2026, 11, 20, 1, 48, 20)  # in an archive this is written with a line feed, long before what it holds


def zipped(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            content = "application/vnd.oasis.opendocument.text" if name == "mimetype" else "<xml/>" * 50
            archive.writestr(zipfile.ZipInfo(name, WHEN), content, zipfile.ZIP_DEFLATED)
    return made.getvalue()


def stored(name: str, content: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name, WHEN), content)
    return made.getvalue()


def array() -> bytes:
    made = io.BytesIO()
    np.save(made, np.zeros(3))
    return made.getvalue()


BINARY = {
    "letter.docx": (zipped("[Content_Types].xml", "_rels/.rels", "word/document.xml"), "a Word document"),
    "letter": (zipped("[Content_Types].xml", "word/document.xml"), "a Word document"),
    "sheet.xlsx": (zipped("[Content_Types].xml", "xl/workbook.xml"), "an Excel workbook"),
    "talk.pptx": (zipped("[Content_Types].xml", "ppt/slide1.xml"), "a PowerPoint presentation"),
    "letter.odt": (stored("mimetype", "application/vnd.oasis.opendocument.text"), "an OpenDocument text"),
    "sheet.ods": (stored("mimetype", "application/vnd.oasis.opendocument.spreadsheet"), "an OpenDocument table"),
    "book.epub": (stored("mimetype", "application/epub+zip"), "an e-book"),
    "some.zip": (zipped("a.txt", "b.txt"), "a zip archive"),
    "odd.docx": (zipped("customXml/item1.xml"), "a Word document"),
    "paper.pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "a PDF"),
    "letter.rtf": (rb"{\rtf1\ansi Hello.\par}", "a rich-text document"),
    "old.doc": (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504), "an old Office document"),
    "rows.parquet": (b"PAR1\x15\x04\x15" + bytes(100), "a Parquet table"),
    "photo.png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a picture"),
    "photo.jpg": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "a picture"),
    "photo.bmp": (b"BM" + struct.pack("<IHHI", 70, 0, 0, 54), "a picture"),
    "song.mp3": (b"ID3\x04\x00\x00", "a recording"),
    "film.mp4": (b"\0\0\0\x20ftypisom", "a recording"),
    "song.mid": (b"MThd\0\0\0\x06\0\x01", "a MIDI file"),
    "text": (gzip.compress(b"hello\n"), "compressed with gzip"),
    "text.txt": (lzma.compress(b"hello\n"), "compressed with xz"),
    "text.tsv": (zstandard.ZstdCompressor().compress(b"hello\n"), "compressed with Zstandard"),
    "data.db": (b"SQLite format 3\0" + bytes(100), "an SQLite database"),
    "model.npy": (array(), "a file for programs"),
    "noise.txt": (np.random.default_rng(7).bytes(4096), "made for programs"),
    "zeros.txt": (bytes(4096), "made for programs"),
    "wide.txt": ("Hello there.\nGood morning.\n".encode("utf-16-le"), r"in UTF-16 \(LE\) without a mark"),
    "wide2.txt": ("Hello there.\nGood morning.\n".encode("utf-16-be"), r"in UTF-16 \(BE\) without a mark"),
}
MARKUP = {
    "film.srt": (SRT, "subtitles"),
    "film.txt": (SRT, "subtitles"),
    "film.vtt": (b"WEBVTT\n\n00:01.000 --> 00:04.000\nHello.\n", "subtitles"),
    "it.po": (PO, "a catalogue of messages"),
    "page.html": (HTML, "a web page"),
    "page.htm": (b"<p>Hello there.</p>\n", "a web page"),
    "page.txt": (HTML, "a web page"),
    "notes.md": (b"# Notes\n\nHello **there**.\n", "Markdown"),
    "memory.tmx": (b'<?xml version="1.0"?>\n<tmx version="1.4"></tmx>\n', "XML"),
    "rows.csv": (b"source,target\nHello.,Ciao.\n", "a table"),
    "rows.json": (b'[{"text": "Hello."}]\n', "JSON"),
    "rows.jsonl": (b'{"text": "Hello."}\n', "JSON, an object on each line"),
}
LINES = {
    "empty.txt": b"",
    "empty.md": b"",
    "plain.md": b"Hello there.\nGood morning.\n",
    "one.csv": b"Hello there.\nGood morning.\n",
    "word.txt": b"BMW is a car.\nID3 tags name songs.\nGIF is a form of pictures.\nPK is short.\nRIFF, RAFF.\n",
    "pairs.tsv": b"Hello.\tCiao.\n",
    "list.txt": b"1\nHello --> there.\n# heading?\n<b>bold</b> text\n{}\n[1, 2]\n",
    "stray.txt": b"a \0 and a \x07\n",
    "latin.txt": "café élève à Noël\n".encode("latin-1") * 100,
    "thai.txt": "ภาษาไทย\n".encode() * 50,
    "marked.txt": b"\xef\xbb\xbfHello.\n",
}


@pytest.mark.parametrize("name", BINARY)
def test_what_is_no_text_is_refused_with_a_remedy(name: str) -> None:
    content, what = BINARY[name]
    for markup in (True, False):
        with pytest.raises(CorpusError, match=f"^{name} is {what}.*, not lines of text; [a-z].+") as error:
            refuse(name, content[:8192], markup=markup)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", MARKUP)
def test_text_with_a_structure_is_refused_where_sentences_are_wanted(name: str) -> None:
    content, what = MARKUP[name]
    with pytest.raises(CorpusError, match=f"^{name} is {what}.*, not lines of text; .*by standard input, where each line is read as plain"):
        refuse(name, content, markup=True, otherwise=BY_STANDARD_INPUT)
    refuse(name, content, markup=False)
    with pytest.raises(CorpusError, match=what):
        refuse(f"{name}.gz", content, markup=True)


@pytest.mark.parametrize("name", LINES)
def test_lines_are_never_refused(name: str) -> None:
    assert foreign(name, LINES[name]) is None


def test_texts_of_this_project_are_lines() -> None:
    for path in (*ROOT.glob("regard/**/*.py"), *ROOT.glob("recipes/*"), ROOT / "LICENSE", ROOT / "Makefile"):
        if path.is_file():
            assert foreign(path.with_suffix(".txt").name, path.read_bytes()[:8192]) is None, path


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-be"])
def test_wide_files_are_read_by_their_mark(encoding: str, tmp_path: Path) -> None:
    content = "Grüße\r\n\n\u0a0a 🦆\u2028same\nlast"
    mark = "\ufeff" if encoding.endswith("be") else ""
    (tmp_path / "a").write_bytes((mark + content).encode(encoding))
    with (tmp_path / "a").open("rb") as stream:
        lines = list(text_lines(stream, "a", markup=True))
    assert lines == ["Grüße\r\n".encode(), b"\n", "\u0a0a 🦆\u2028same\n".encode(), b"last"]


def test_a_wide_file_that_is_cut_short() -> None:
    stream = cast(BinaryIO, io.BufferedReader(io.BytesIO("Hello.".encode("utf-16")[:-1])))
    with pytest.raises(CorpusError, match=r"^a begins as UTF-16 and goes on otherwise \(.*\); save it as UTF-8"):
        list(text_lines(stream, "a", markup=True))
