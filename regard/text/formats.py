"""Files that are not lines of text: told by their first bytes, or by their name and a look, before their bytes are taken for sentences."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import BinaryIO, NamedTuple, TypeVar, cast

from regard.errors import ConfigError, CorpusError

HEAD = 8192  # bytes at the start of a file that are looked at
BLOCK = 1 << 16  # bytes that are read at a time
MEBIBYTE = 1 << 20
LONGEST_LINE = 16  # MiB; a few bytes of an archive may be a line of gigabytes, and a line is held in memory
LINE_SETTING = "REGARD_LONGEST_LINE"  # for whoever has longer ones
MOST_CONTROLS = 0.08  # share of control characters from which on bytes are no text: packed ones have 0.1
ENOUGH = 256  # bytes among which that can be said; a stray one is a matter of its line
COMPRESSED = (".gz", ".xz", ".zst")
CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")

Block = TypeVar("Block", bytes, bytes | None)

EXPORT = "save it as plain text first (.txt in UTF-8), a sentence on each line"
TAKE_OUT = "take its text out first, a sentence on each line"
CELLS = "save the column of texts as .txt, a text on each line; or the whole as .tsv, a tab between columns, for training and evaluate"
UNPACK = "unpack it first, and name a text file that was in it"
RENAME = "name it {0} (or unpack it)"
NOTHING = "name a file of plain text, a sentence on each line"
BY_STANDARD_INPUT = "; or give it by standard input, where each line is read as plain text"


class Foreign(NamedTuple):
    """What a file is instead of lines of text, and what to do about it."""

    what: str
    remedy: str
    binary: bool = True  # bytes that no one can read; else text with a structure of its own, which a language model may learn from


class _Magic(NamedTuple):
    start: re.Pattern[bytes]
    foreign: Foreign


def _magic(start: bytes, what: str, remedy: str) -> _Magic:
    return _Magic(re.compile(start, re.DOTALL), Foreign(what, remedy))


MAGIC = (
    _magic(rb"%PDF-", "a PDF", EXPORT),
    _magic(rb"\{\\rtf", "a rich-text document (RTF)", EXPORT),
    _magic(rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office document (.doc, .xls or .ppt)", EXPORT),
    _magic(rb"PAR1", "a Parquet table", CELLS),
    _magic(rb"ARROW1\0\0", "an Arrow table", CELLS),
    _magic(rb"SQLite format 3\0", "an SQLite database", CELLS),
    _magic(rb"\x1f\x8b", "compressed with gzip", RENAME.format(".gz")),
    _magic(rb"\xfd7zXZ\0", "compressed with xz", RENAME.format(".xz")),
    _magic(rb"\x28\xb5\x2f\xfd", "compressed with Zstandard", RENAME.format(".zst")),
    _magic(rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38)", "compressed with bzip2", UNPACK),
    _magic(rb"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    _magic(rb"Rar!\x1a\x07", "a RAR archive", UNPACK),
    _magic(rb".{257}ustar", "a tar archive", UNPACK),
    _magic(rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|RIFF.{4}WEBP|BM.{4}\0{4}|II\*\0|MM\0\*", "a picture", NOTHING),
    _magic(rb"RIFF.{4}(WAVE|AVI )|OggS\0|fLaC\0|ID3[\x02-\x04]|.{4}ftyp|\x1a\x45\xdf\xa3", "a recording", NOTHING),
    _magic(rb"MThd\0\0\0\x06", "a MIDI file", NOTHING),
    _magic(rb"GGUF[\x01-\x09]\0\0\0|\x93NUMPY|\x80[\x02-\x05].*\.|\x7fELF|MZ.{1,2}\0", "a file for programs", NOTHING),
)
ZIPPED = (  # by what stands in the first bytes of such a file, or by its name
    (rb"word/", (".docx", ".docm"), "a Word document", EXPORT),
    (rb"xl/", (".xlsx", ".xlsm"), "an Excel workbook", CELLS),
    (rb"ppt/", (".pptx",), "a PowerPoint presentation", EXPORT),
    (rb"mimetypeapplication/vnd\.oasis\.opendocument\.text", (".odt",), "an OpenDocument text", EXPORT),
    (rb"mimetypeapplication/vnd\.oasis\.opendocument\.spreadsheet", (".ods",), "an OpenDocument table", CELLS),
    (rb"mimetypeapplication/vnd\.oasis\.opendocument", (".odp",), "an OpenDocument file", EXPORT),
    (rb"mimetypeapplication/epub\+zip", (".epub",), "an e-book", EXPORT),
)
TIMES = rb"\d\d:\d\d[:,.\d]* --> "
MARKDOWN = rb"(?m)^ {0,3}(#{1,6} |[-*+] |\d+\. |>|```|\|.*\|)|\[[^\]\n]+\]\([^)\n]+\)|\*\*|`"


def _markup(what: str, remedy: str = TAKE_OUT) -> Foreign:
    return Foreign(what, remedy, binary=False)


HTML = _markup("a web page (HTML)", f'{TAKE_OUT}, or ask `regard serve` at /translate with "format": "html"')
SHAPES = (  # of any name
    (rb"(?i)\s*(<!doctype html|<html[\s>])", HTML),
    (rb"\s*<\?xml[\s?]", _markup("XML")),
    (rb"WEBVTT\b", _markup("subtitles (WebVTT)")),
    (rb"\s*\d+\s*\r?\n" + TIMES, _markup("subtitles (SRT)")),
    (rb'(#.*\r?\n|\s)*msgid "', _markup("a catalogue of messages (gettext)")),
)
NAMES: dict[str, tuple[bytes, Foreign]] = {  # and what must be in them, lest a good file with an odd name is refused
    **dict.fromkeys((".html", ".htm", ".xhtml"), (rb"<[a-zA-Z!/]", HTML)),
    **dict.fromkeys((".xml", ".tmx", ".xliff", ".xlf"), (rb"<[a-zA-Z!?]", _markup("XML"))),
    ".srt": (TIMES, _markup("subtitles (SRT)")),
    ".vtt": (TIMES, _markup("subtitles (WebVTT)")),
    **dict.fromkeys((".po", ".pot"), (rb"msg(id|str)", _markup("a catalogue of messages (gettext)"))),
    **dict.fromkeys((".md", ".markdown"), (MARKDOWN, _markup("Markdown"))),
    ".csv": (rb"[,;]", _markup("a table (CSV)", CELLS)),
    **dict.fromkeys((".json", ".ipynb"), (rb"\s*[\[{]", _markup("JSON"))),
    **dict.fromkeys((".jsonl", ".ndjson"), (rb"\s*[\[{]", _markup("JSON, an object on each line"))),
}


def foreign(name: str, head: bytes) -> Foreign | None:
    """What a file is by its name and its first bytes (unpacked, where it is compressed), or None where it is lines of text."""
    if wide_encoding(head) is not None:
        return None
    path = PurePath(name)
    ending = (PurePath(path.stem) if path.suffix in COMPRESSED else path).suffix.lower()
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zipped(ending, head)
    for start, found in MAGIC:
        if start.match(head):
            return found
    even, odd = head[::2].count(0), head[1::2].count(0)
    if len(head) >= 8 and max(even, odd) > len(head) / 4 and min(even, odd) < max(even, odd) / 10:
        order = "LE" if odd > even else "BE"
        return Foreign(f"in UTF-16 ({order}) without a mark", f"convert it, for example with `iconv -f UTF-16{order} -t UTF-8`")
    if len(head) >= ENOUGH and len(CONTROLS.findall(head)) > MOST_CONTROLS * len(head):
        return Foreign("made for programs", NOTHING)
    shape = next((found for start, found in SHAPES if re.match(start, head)), None)
    if shape is None and ending in NAMES and re.search(NAMES[ending][0], head):
        return NAMES[ending][1]
    return shape


def _zipped(ending: str, head: bytes) -> Foreign:
    for inside, _, what, remedy in ZIPPED:
        if re.search(inside, head):
            return Foreign(what, remedy)
    return next((Foreign(what, remedy) for _, endings, what, remedy in ZIPPED if ending in endings), Foreign("a zip archive", UNPACK))


def refuse(name: str, head: bytes, *, markup: bool, otherwise: str = "") -> None:
    """Says what a file is, if it is not lines of text. With `markup`, text with a structure of its own is refused as well.

    `otherwise` is what else can be done with such a text, by whoever wants the lines.
    """
    found = foreign(name, head)
    if found is not None and (found.binary or markup):
        raise CorpusError(f"{name} is {found.what}, not lines of text; {found.remedy}{'' if found.binary else otherwise}")


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 or UTF-32, where the mark at the start of a file says so."""
    if head.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        return "utf-32"
    return "utf-16" if head.startswith((b"\xff\xfe", b"\xfe\xff")) else None


def text_lines(stream: BinaryIO, name: str, *, markup: bool, otherwise: str = "", longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """The lines of an opened file as bytes in UTF-8, each with its end, once it is seen to be text (`refuse`).

    What can be peeked into is: files, and what unpacks .gz, .xz and .zst. UTF-16 and UTF-32 are read where they begin with their mark.
    """
    buffered = cast(io.BufferedReader, stream)
    head = buffered.peek(HEAD)[:HEAD]
    refuse(name, head, markup=markup, otherwise=otherwise)
    encoding = wide_encoding(head)
    return lines_of(blocks(buffered) if encoding is None else _utf8_blocks(stream, name, encoding), name, longest)


def blocks(stream: io.BufferedReader) -> Iterator[bytes]:
    """What a stream has, as it comes."""
    while block := stream.read1(BLOCK):
        yield block


def lines_of(blocks: Iterable[Block], name: str, longest: int) -> Iterator[Block]:
    """The lines in blocks of bytes, each with its end, and the last with what end it has; a None among the blocks is passed on.

    None is longer than so many MiB, or than the setting says: memory stays the same for any file.
    """
    longest = longest_line(longest)
    number, begun, size = 1, list[bytes](), 0  # of a line whose end has not come yet
    for block in blocks:
        if block is None:
            yield block
            continue
        first, *others = block.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > longest * MEBIBYTE:  # within a block no line is
            raise too_long(name, number, longest)
        number += len(others)
        for following in others:
            yield b"".join(begun) + b"\n"
            begun, size = [following], len(following)
    if any(begun):
        yield b"".join(begun)


def too_long(name: str, number: int, longest: int) -> CorpusError:
    return CorpusError(f"{name}, line {number:,}: longer than {longest} MiB; break it up, or set {LINE_SETTING} to more, in MiB")


def longest_line(longest: int = LONGEST_LINE) -> int:
    """In MiB, as the setting says, or else as given."""
    said = os.environ.get(LINE_SETTING)
    if not said:
        return longest
    if not (said.isascii() and said.isdecimal() and 0 < len(said) < 10 and int(said)):
        raise ConfigError(f"{LINE_SETTING}={said[:40]} is no number of MiB; set it to a whole one, as {LINE_SETTING}={4 * LONGEST_LINE}")
    return int(said)


def _utf8_blocks(stream: BinaryIO, name: str, encoding: str) -> Iterator[bytes]:
    """A file in a wide encoding, in UTF-8."""
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while block := stream.read(BLOCK):
            yield decoder.decode(block).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name} begins as {encoding.upper()} and goes on otherwise ({error.reason}); save it as UTF-8") from None
