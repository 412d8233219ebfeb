"""Texts taken apart for translation and put together again: line by line, and in HTML without its tags.

A sentence of a page is translated whole, whatever stands out in it: tags within it are put back where its words came to stand. Whatever a
text is like, taking it apart takes time in proportion to its length: nobody keeps the server busy with unclosed brackets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Literal, NamedTuple

from regard.door.aligned import Aligned
from regard.serve.tags import Node, put_back

BREAK = re.compile(r"(\r?\n|\r)")
TAG = re.compile(r"""<[a-zA-Z/!?](?:[^<>"']++|"[^"]*+"|'[^']*+')*+>""")
NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
AS_IT_IS = re.compile(r"<(script|style|pre|code|kbd|samp|var|textarea)\b", re.IGNORECASE)  # what stands within is no prose
LITERAL = frozenset(("code", "kbd", "samp", "var"))  # and it is part of a sentence all the same, where it is short
LONGEST_LITERAL = 200
INLINE = re.compile(
    r"a|abbr|acronym|b|bdi|bdo|big|cite|data|del|dfn|em|font|i|img|ins|label|mark|nobr|q|s|small|span|strike|strong|sub|sup|time|tt|u|wbr"
)
EMPTY = frozenset(("img", "wbr"))  # which have no end
SPACES = re.compile(r"[ \t\r\n\f]+")
Kind = Literal["prose", "markup", "opening", "closing", "mark", "literal"]
Write = Callable[[str, Sequence[Aligned] | None], str]


class Piece(NamedTuple):
    """A stretch of a page: words, markup between sentences, or a tag, a comment or code within one."""

    text: str
    kind: Kind


@dataclass(frozen=True)
class Parts:
    """What is to be translated, and what stands before, between and after it."""

    texts: tuple[str, ...]
    around: tuple[str, ...]  # one more than there are texts
    writes: tuple[Write, ...]  # how each translation is put down
    tagged: tuple[bool, ...]  # whether tags stand within, which are put back by what each word looked at

    def joined(self, translations: Sequence[str], looks: Sequence[Sequence[Aligned] | None] | None = None) -> str:
        """`looks`: how the words of each come from those of its text; without it, tags are put back where they stood in proportion."""
        each = zip(self.writes, translations, looks or [None] * len(self.texts), self.around[1:], strict=True)
        return self.around[0] + "".join(write(text, own) + after for write, text, own, after in each)


def lines_of(text: str) -> Parts:
    """Each line on its own, as a model learned them; empty ones and spaces at the edges stay."""
    gathered = _Gathered()
    for line in BREAK.split(text):
        gathered.text(line, _as_it_is)
    return gathered.parts()


def parts_of(text: str, split: Callable[[str], Sequence[tuple[str, str]]]) -> Parts:
    """Line by line, and each line in the parts that it is translated in, of which `split` gives each with the space after it."""
    lines = lines_of(text)
    texts: list[str] = []
    around = [lines.around[0]]
    for line, after in zip(lines.texts, lines.around[1:], strict=True):
        for part, space in split(line):
            texts.append(part)
            around.append(space)
        around[-1] += after
    return Parts(tuple(texts), tuple(around), (_as_it_is,) * len(texts), (False,) * len(texts))


def _as_it_is(translation: str, _: Sequence[Aligned] | None) -> str:
    return translation


def html_of(page: str) -> Parts:
    """What stands between the tags; those within a sentence are taken out. A translation is never markup: its signs become entities."""
    gathered, sentence = _Gathered(), list[Piece]()
    for piece in _pieces(page):
        if piece.kind != "markup":
            sentence.append(piece)
            continue
        _gather(sentence, gathered)
        gathered.outside(piece.text)
        sentence = []
    _gather(sentence, gathered)
    return gathered.parts()


class _Gathered:
    """Texts and what stands around them, as they are found."""

    def __init__(self) -> None:
        self.texts, self.writes, self.tagged = list[str](), list[Write](), list[bool]()
        self.around: list[list[str]] = [[]]

    def outside(self, piece: str) -> None:
        self.around[-1].append(piece)

    def text(self, whole: str, write: Write, inner: str | None = None, *, tagged: bool = False) -> None:
        """Prose, whose spaces at the edges are none; `inner`: what is translated, where it is not the prose itself."""
        if not whole.strip():
            self.outside(whole)
            return
        self.outside(whole[: len(whole) - len(whole.lstrip())])
        self.texts.append(whole.strip() if inner is None else inner)
        self.writes.append(write)
        self.tagged.append(tagged)
        self.around.append([whole[len(whole.rstrip()) :]])

    def parts(self) -> Parts:
        return Parts(tuple(self.texts), tuple(map("".join, self.around)), tuple(self.writes), tuple(self.tagged))


def _gather(pieces: Sequence[Piece], gathered: _Gathered) -> None:
    """What stands between two breaks, with the tags within it."""
    inside = [index for index, piece in enumerate(pieces) if piece.kind != "mark" and unescape(piece.text).strip()]
    if not any(pieces[index].kind == "prose" for index in inside):
        gathered.outside("".join(piece.text for piece in pieces))
        return
    own = pieces[inside[0] : inside[-1] + 1]
    gathered.outside("".join(piece.text for piece in pieces[: inside[0]]))
    text, roots = _without_tags(own)
    if roots:
        before, after = (unescape(piece.text) if piece.kind == "prose" else "" for piece in (own[0], own[-1]))
        edges = f"{before[: len(before) - len(before.lstrip())]}.{after[len(after.rstrip()) :]}"
        gathered.text(edges, lambda translation, looks: put_back(text, roots, translation, looks), text, tagged=True)
    else:
        gathered.text(unescape("".join(piece.text for piece in own)), lambda translation, _: escape(translation, quote=False), text)
    gathered.outside("".join(piece.text for piece in pieces[inside[-1] + 1 :]))


def _without_tags(pieces: Sequence[Piece]) -> tuple[str, list[Node]]:
    """The words, and the elements that stand around some of them. A tag whose other half is not here stands alone."""
    partners = _partners(pieces)
    roots: list[Node] = []
    held = [roots]  # the children of the element at hand, in that around it …
    open_nodes: list[Node] = []
    words: list[str] = []
    length = 0
    for index, piece in enumerate(pieces):
        if piece.kind == "prose":
            own = SPACES.sub(" ", unescape(piece.text))
            if own.startswith(" ") and (not words or words[-1].endswith(" ")):
                own = own[1:]
                if words and held[-1] and held[-1][-1].begin == length and _name(held[-1][-1].opening) == "img":
                    held[-1][-1].opening += " "  # a picture between words stays between spaces
            words += [own] if own else []
            length += len(own)
        elif piece.kind == "literal":
            opening = TAG.match(piece.text)
            assert opening is not None
            begin, tag = opening.end(), piece.text.rindex("<")
            node = Node(piece.text[:begin], length, length, piece.text[tag:], raw=piece.text[begin:tag])
            words.append(SPACES.sub(" ", unescape(TAG.sub("", piece.text[begin:tag]))))
            length += len(words[-1])
            node.end = length
            held[-1].append(node)
        elif index not in partners:
            held[-1].append(Node(piece.text, length, length))
        elif piece.kind == "opening":
            node = Node(piece.text, length, length)
            held[-1].append(node)
            held.append(node.children)
            open_nodes.append(node)
        else:
            node = open_nodes.pop()
            node.closing, node.end = piece.text, length
            held.pop()
    text = "".join(words)
    shift = len(text) - len(text.lstrip())
    inner = text.strip()
    _without_edges(roots, shift, inner)
    return inner, roots


def _without_edges(roots: Sequence[Node], shift: int, inner: str) -> None:
    """Where nodes stand in a text that lost the spaces at its edges, each without those at its own."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        begin, end = (min(max(0, place - shift), len(inner)) for place in (node.begin, node.end))
        own = inner[begin:end]
        node.begin, node.end = begin + len(own) - len(own.lstrip()), end - len(own) + len(own.rstrip())
        node.end = max(node.begin, node.end)
        waiting += node.children


def _partners(pieces: Sequence[Piece]) -> set[int]:
    """The places of tags that belong together, one within another."""
    found: set[int] = set()
    waiting: dict[str, list[int]] = {}
    stack: list[tuple[str, int]] = []
    for index, piece in enumerate(pieces):
        if piece.kind not in ("opening", "closing"):
            continue
        name = _name(piece.text)
        if piece.kind == "opening":
            stack.append((name, index))
            waiting.setdefault(name, []).append(index)
        elif waiting.get(name):
            while True:
                other, place = stack.pop()
                waiting[other].pop()
                if other == name:
                    break
            found |= {place, index}
    return found


def _name(tag: str) -> str:
    name = NAME.match(tag)
    return name[1].lower() if name else ""


def _pieces(page: str) -> Iterator[Piece]:
    """The pieces of a page in order."""
    lower, place, last = page.lower(), 0, 0  # up to `last` all was given
    if len(lower) != len(page):  # a few characters grow
        lower = page
    while (start := page.find("<", place)) >= 0:
        end = _end_of_markup(page, lower, start)
        if end is None:
            place = start + 1  # a sign like any other
            continue
        if last < start:
            yield Piece(page[last:start], "prose")
        yield Piece(page[start:end], _kind(page[start:end]))
        place = last = end
    if last < len(page):
        yield Piece(page[last:], "prose")


def _kind(markup: str) -> Kind:
    if markup.startswith("<!--"):
        return "mark"
    name = _name(markup)
    if name in LITERAL:
        whole = len(markup) <= LONGEST_LITERAL and "\n" not in markup and markup.lower().endswith(f"</{name}>")
        return "literal" if whole and not markup.startswith("</") else "markup"
    if INLINE.fullmatch(name) is None:
        return "markup"
    if markup.startswith("</"):
        return "closing"
    return "mark" if name in EMPTY or markup.endswith("/>") else "opening"


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
