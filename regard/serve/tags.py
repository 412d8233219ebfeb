"""Tags within a sentence: taken out before it is translated whole, and put back where the words that they stood around came to stand.

Where each word came from is the model's own alignment. An element is put around the run of words that most of what it held became; words
may change their order, and elements beside one another with them. Elements stay within those that held them, none is lost or written twice,
and what cannot be placed is put where it stood in proportion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from regard.door.aligned import Aligned

Span = tuple[int, int]
Spans = Sequence[Span]
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")
EDGES = re.compile(r"""^[(\[{"'“„«‘‚¿¡]+|[.,;:!?…।)\]}"'”’“»]+$""")
HALF = 0.5  # of what a word looked at: with more of it inside an element, the word is too


@dataclass
class Node:
    """An element within a sentence, or a mark without words: where it stood in the text, and where it is put in the translation."""

    opening: str
    begin: int
    end: int
    closing: str = ""
    raw: str | None = None  # what stands within and stays as it is, such as code
    children: list[Node] = field(default_factory=list)
    place: Span = (0, 0)


def put_back(text: str, roots: Sequence[Node], translation: str, aligned: Sequence[Aligned] | None) -> str:
    """A translation with the tags of its text."""
    words = [*_words(translation)]
    links = _Links(text, translation, words, aligned)
    waiting = [(list(roots), (0, len(translation)))]
    while waiting:
        siblings, room = waiting.pop()
        free = [room]  # what no sibling has taken
        for node in siblings:
            node.place = _placed(node, text, translation, links, words, room, free)
            free = _without(free, node.place)
        waiting += [(node.children, node.place) for node in siblings if node.children]
    return "".join(_written(list(roots), translation))


def _words(text: str) -> Iterator[Span]:
    """Where words are, and the marks around them."""
    for run in WORD.finditer(text):
        begin, end = run.span()
        opening = EDGES.match(run[0])
        first = begin + opening.end() if opening and opening.end() < end - begin else begin
        closing = EDGES.search(text[first:end])
        last = first + closing.start() if closing and closing.start() else end
        yield from (pair for pair in ((begin, first), (first, last), (last, end)) if pair[0] < pair[1])


class _Links:
    """How much of what each word of a translation comes from stands in a stretch of the text."""

    def __init__(self, text: str, translation: str, words: Spans, aligned: Sequence[Aligned] | None) -> None:
        self.words, self.stretch = words, len(text) / max(1, len(translation))
        self.parts = []
        for part in aligned or ():
            weights = np.asarray(part.weights, dtype=np.float64) ** 2  # the surest count most
            sources, targets = np.array(part.sources).reshape(-1, 2), np.array(part.targets).reshape(-1, 2)
            spans = np.array(words).reshape(-1, 2)
            overlap = _overlap(spans[:, None], targets[None])  # (words, target tokens)
            self.parts.append((overlap @ weights, sources))

    def share(self, begin: int, end: int) -> np.ndarray:
        """For each word."""
        if not self.parts:
            middles = np.array([(first + last) / 2 for first, last in self.words]) * self.stretch
            return ((middles >= begin) & (middles <= end)).astype(np.float64)
        inside, whole = np.zeros(len(self.words)), np.zeros(len(self.words))
        for weights, sources in self.parts:
            length = np.maximum(1, sources[:, 1] - sources[:, 0])
            inside += weights @ (_overlap(sources, np.array([begin, end])) / length)
            whole += weights.sum(1)
        return inside / np.maximum(whole, 1e-12)


def _overlap(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.maximum(0, np.minimum(ones[..., 1], others[..., 1]) - np.maximum(ones[..., 0], others[..., 0]))


def _placed(
    node: Node,
    text: str,
    translation: str,
    links: _Links,
    words: Spans,
    room: Span,
    free: Spans,
) -> Span:
    begin, end = node.begin, node.end
    if not text[begin:end].strip():
        return (_spot(begin, text, links, words, room, free),) * 2
    if not text[:begin].strip() and not text[end:].strip() and free == [room]:
        return room
    if node.raw is not None:  # a translator mostly copies what is no prose
        found = next((at for low, high in free if (at := translation.find(text[begin:end], low, high)) >= 0), None)
        if found is not None:
            return found, found + end - begin
    shares = links.share(begin, end) - HALF
    best, place = 0.0, None
    for low, high in free:
        inside = [index for index, (first, last) in enumerate(words) if low <= first and last <= high]
        total, start = 0.0, 0
        for at, index in enumerate(inside):
            if total <= 0:
                total, start = 0.0, at
            total += shares[index]
            if total > best:
                while start < at and not any(map(str.isalnum, translation[slice(*words[inside[start]])])):
                    start += 1  # a comma before the words
                best, place = total, (words[inside[start]][0], words[index][1])
    if place is not None:
        return place
    left = [index for index, (first, last) in enumerate(words) if any(low <= first and last <= high for low, high in free)]
    if not left:
        return (room[1], room[1])
    return words[max(left, key=lambda index: shares[index])]


def _spot(at: int, text: str, links: _Links, words: Spans, room: Span, free: Spans) -> int:
    """Where something without words goes: before the word that it stood before, or after the one that it was written onto."""
    if not text[:at].strip() or not words:
        spot = room[0]
    elif not text[at:].strip():
        spot = room[1]
    else:
        onto = not text[at - 1].isspace() and not text[at].isalnum()
        stretch = [*_words(text[:at])][-1] if onto else next((at + first, at + last) for first, last in _words(text[at:]))
        word = words[int(links.share(*stretch).argmax())]
        spot = word[1] if onto else word[0]
    spot = min(max(spot, room[0]), room[1])
    return min((min(max(spot, low), high) for low, high in free), key=lambda other: abs(other - spot), default=room[1])


def _without(free: Spans, taken: Span) -> list[Span]:
    if taken[0] == taken[1]:
        return list(free)
    pieces = [part for low, high in free for part in ((low, min(high, taken[0])), (max(low, taken[1]), high))]
    return [(low, high) for low, high in pieces if low <= high]


def _written(roots: list[Node], translation: str) -> Iterator[str]:
    """The pieces of the page."""
    order = sorted(roots, key=lambda node: node.place)
    stack: list[tuple[Iterator[Node], Node | None]] = [(iter(order), None)]
    at = 0
    while stack:
        siblings, parent = stack[-1]
        node = next(siblings, None)
        if node is None:
            stack.pop()
            last = len(translation) if parent is None else parent.place[1]
            yield escape(translation[at:last], quote=False)
            at = max(at, last)
            yield "" if parent is None else parent.closing
            continue
        yield escape(translation[at : node.place[0]], quote=False)
        at = node.place[0]
        yield node.opening
        if node.raw is not None:
            yield node.raw + node.closing
            at = node.place[1]
        else:
            stack.append((iter(sorted(node.children, key=lambda child: child.place)), node))
