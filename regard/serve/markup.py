"""Texts taken apart for translation and put together again: line by line, and in HTML without its tags.

Whatever a text is like, taking it apart takes time in proportion to its length: nobody keeps the server busy with unclosed brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape

BREAK = re.compile(r"(\r?\n|\r)")
TAG = re.compile(r"""<[a-zA-Z/!?](?:[^<>"']++|"[^"]*+"|'[^']*+')*+>""")
AS_IT_IS = re.compile(r"<(script|style|pre|code|textarea)\b", re.IGNORECASE)  # what stands within is no prose


@dataclass(frozen=True)
class Parts:
    """What is to be translated, and what stands before, between and after it."""

    texts: tuple[str, ...]
    around: tuple[str, ...]  # one more than there are texts
    write: Callable[[str], str] = str

    def joined(self, translations: Sequence[str]) -> str:
        inner = (self.write(text) + after for text, after in zip(translations, self.around[1:], strict=True))
        return self.around[0] + "".join(inner)


def lines_of(text: str) -> Parts:
    """Each line on its own, as a model learned them; empty ones and spaces at the edges stay."""
    return _gathered(((line, True) for line in BREAK.split(text)), str)


def parts_of(text: str, split: Callable[[str], list[str]]) -> Parts:
    """Line by line, and each line in the parts that it is translated in."""
    lines = lines_of(text)
    texts: list[str] = []
    around = [lines.around[0]]
    for line, after in zip(lines.texts, lines.around[1:], strict=True):
        own = split(line)
        texts += own
        around += [" "] * (len(own) - 1) + [after]
    return Parts(tuple(texts), tuple(around))


def html_of(text: str) -> Parts:
    """What stands between the tags. A translation is never markup: its signs are written as entities."""
    pieces = ((unescape(piece) if prose else piece, prose) for piece, prose in _pieces(text))
    return _gathered(pieces, lambda translation: escape(translation, quote=False))


def _gathered(pieces: Iterator[tuple[str, bool]], write: Callable[[str], str]) -> Parts:
    """From pieces that are prose or not. Spaces at the edges of prose are none."""
    texts: list[str] = []
    around: list[list[str]] = [[]]
    for piece, prose in pieces:
        inner = piece.strip() if prose else ""
        if not inner:
            around[-1].append(piece)
            continue
        begin = piece.index(inner)
        around[-1].append(piece[:begin])
        texts.append(inner)
        around.append([piece[begin + len(inner) :]])
    return Parts(tuple(texts), tuple("".join(own) for own in around), write)


def _pieces(page: str) -> Iterator[tuple[str, bool]]:
    """The pieces of a page in order, and whether each is prose."""
    lower, place, last = page.lower(), 0, 0  # up to `last` all was given
    if len(lower) != len(page):  # a few characters grow
        lower = page
    while (start := page.find("<", place)) >= 0:
        end = _end_of_markup(page, lower, start)
        if end is None:
            place = start + 1  # a sign like any other
            continue
        if last < start:
            yield page[last:start], True
        yield page[start:end], False
        place = last = end
    if last < len(page):
        yield page[last:], True


def _end_of_markup(page: str, lower: str, start: int) -> int | None:
    """Where a comment, a tag or an element that stays as it is ends, if one begins here."""
    if page.startswith("<!--", start):
        end = page.find("-->", start + 4)
        return len(page) if end < 0 else end + 3  # browsers read a comment that is not closed to the end
    tag = TAG.match(page, start)
    if tag is None:
        return None
    kept = AS_IT_IS.match(tag[0])
    if kept is None or tag[0].endswith("/>"):
        return tag.end()
    closing = lower.find(f"</{kept[1].lower()}", tag.end())
    if closing < 0:
        return len(page)
    close = page.find(">", closing)
    return len(page) if close < 0 else close + 1
