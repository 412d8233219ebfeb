"""A text too long for a model, in parts that each fit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence

from regard.errors import CorpusError
from regard.text.sentences import after_spaces, marks, sentence_ends

PUNCTUATION = re.compile(marks(";:,،؛፣—–", "；：，、､"))
SPACE = re.compile(r"(?<=\S)(?=\s)")
LEAST_PROBE = 64


def split_long(text: str, fits: Callable[[str], bool]) -> list[str]:
    """The text in parts that each fit, in order, each as long as it can be; the text itself where it fits.

    A part ends after a sentence; where not even one sentence fits, after other punctuation, else at a space, else anywhere, but within
    what a reader sees as one character only if that alone is too long. The spaces at the cuts are left out, and nothing else is.

    `fits` is asked about stretches of about a part's length, so the time grows with the text and not with its square. Whatever is shorter
    than a text that fits should fit as well.
    """
    parts: list[str] = []
    start, probe = 0, LEAST_PROBE
    while start < len(text):
        limit = _too_long(text, start, probe, fits)
        end = len(text) if limit is None else _best_cut(text, start, limit, fits)
        parts.append(text[start:end])
        probe = max(LEAST_PROBE, end - start)
        start = after_spaces(text, end)
    return [part for part in parts if part.strip()] or parts[:1] or [""]


def _too_long(text: str, start: int, probe: int, fits: Callable[[str], bool]) -> int | None:
    """An end up to which the text from `start` is too long, and not by far; None where all the rest fits."""
    while start + probe < len(text):
        if not fits(text[start : start + probe]):
            return start + probe
        probe *= 2
    return None if fits(text[start:]) else len(text)


def _best_cut(text: str, start: int, limit: int, fits: Callable[[str], bool]) -> int:
    for places in (sentence_ends, _punctuation, _spaces, _characters, _code_points):
        end = _last_that_fits(text, start, list(places(text, start, limit)), fits)
        if end is not None:
            return end
    raise CorpusError(f"not even the character {text[start]!r} fits; does the model take any text at all?")


def _last_that_fits(text: str, start: int, ends: Sequence[int], fits: Callable[[str], bool]) -> int | None:
    known, unknown = -1, len(ends)  # what fits, and the first that does not
    while unknown - known > 1:
        middle = (known + unknown) // 2
        if fits(text[start : ends[middle]]):
            known = middle
        else:
            unknown = middle
    return ends[known] if known >= 0 else None


def _punctuation(text: str, start: int, limit: int) -> Iterator[int]:
    return (mark.end() for mark in PUNCTUATION.finditer(text, start, limit))


def _spaces(text: str, start: int, limit: int) -> Iterator[int]:
    return (place.start() for place in SPACE.finditer(text, start, limit) if place.start() > start)


def _characters(text: str, start: int, limit: int) -> Iterator[int]:
    letters_of_flags = 0  # two of them make a flag
    for end in range(start + 1, limit):
        letters_of_flags = letters_of_flags + 1 if _is_flag(text[end - 1]) else 0
        half = letters_of_flags % 2 == 1 and _is_flag(text[end])
        if not half and not _joined(text[end - 1], text[end]):
            yield end


def _code_points(text: str, start: int, limit: int) -> Iterator[int]:
    return iter(range(start + 1, limit + 1))


def _joined(before: str, after: str) -> bool:
    """Whether two code points are one character to a reader: a letter and its accent, a family of emoji, a Korean syllable."""
    return (
        unicodedata.category(after).startswith("M")  # combining marks and variation selectors
        or after in "\u200c\u200d"  # joiners
        or before == "\u200d"
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # colours of skin
        or "\U000e0020" <= after <= "\U000e007f"  # tags of regions
        or "\u1160" <= after <= "\u11ff"  # Korean vowels and final consonants
        or "\ud7b0" <= after <= "\ud7ff"
        or (before, after) == ("\r", "\n")
    )


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
