"""Tags within a sentence: taken out before it is translated whole, and put back where the words that they stood around came to stand.

Where each word came from is the model's own alignment. An element is put around the run of words that most of what it held became; words
may change their order, and elements beside one another with them. Elements stay within those that held them, none is lost or written twice,
and what cannot be placed is put where it stood in proportion.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from operator import itemgetter

import numpy as np

from regard.door.aligned import Aligned

Span = tuple[int, int]
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
    links = _Links(text, translation, aligned)
    waiting = [(list(roots), (0, len(translation)))]
    while waiting:
        siblings, room = waiting.pop()
        free = _Free(room, links)
        for node in siblings:
            node.place = _placed(node, text, translation, links, free)
            free.take(node.place)
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

    def __init__(self, text: str, translation: str, aligned: Sequence[Aligned] | None) -> None:
        self.words = [*_words(translation)]
        self.begins, self.ends = np.array(self.words, dtype=np.int64).reshape(-1, 2).T
        self.middles = (self.begins + self.ends) / 2 * (len(text) / max(1, len(translation)))
        self.whole = np.zeros(len(self.words))
        self.parts = []
        for part in aligned or ():
            weights = np.asarray(part.weights, dtype=np.float64) ** 2  # the surest count most
            sources, targets = np.array(part.sources).reshape(-1, 2), np.array(part.targets).reshape(-1, 2)
            if not sources.size or not targets.size:
                continue
            own = self.touching(targets.min(), targets.max())
            overlap = _overlap(np.stack((self.begins[own], self.ends[own]), -1)[:, None], targets[None])  # (words, target tokens)
            self.parts.append((own, overlap @ weights, sources))
            self.whole[own] += self.parts[-1][1].sum(1)

    def touching(self, begin: int, end: int) -> slice:
        """The words that are at least in part in a stretch of the translation."""
        return slice(int(np.searchsorted(self.ends, begin, "right")), int(np.searchsorted(self.begins, end)))

    def share(self, begin: int, end: int) -> np.ndarray:
        """For each word."""
        if not self.parts:
            return ((self.middles >= begin) & (self.middles <= end)).astype(np.float64)
        inside = np.zeros(len(self.words))
        for own, weights, sources in self.parts:
            if sources.min() < end and sources.max() > begin:
                length = np.maximum(1, sources[:, 1] - sources[:, 0])
                inside[own] += weights @ (_overlap(sources, np.array([begin, end])) / length)
        return inside / np.maximum(self.whole, 1e-12)


def _overlap(ones: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.maximum(0, np.minimum(ones[..., 1], others[..., 1]) - np.maximum(ones[..., 0], others[..., 0]))


class _Free:
    """What of a room no sibling has taken: stretches of the translation in order, and whole words."""

    def __init__(self, room: Span, links: _Links) -> None:
        self.room, self.links = room, links
        self.spans = [room]
        self.words = (links.begins >= room[0]) & (links.ends <= room[1])

    def take(self, taken: Span) -> None:
        """A stretch of one of them."""
        begin, end = taken
        if begin == end:
            return
        self.words[self.links.touching(begin, end)] = False
        place = bisect_right(self.spans, begin, key=itemgetter(0)) - 1
        low, high = self.spans[place]
        self.spans[place : place + 1] = [(low, begin), (end, high)]

    def nearest(self, spot: int) -> int:
        """Nothing is put within what a sibling has taken."""
        spot = min(max(spot, self.room[0]), self.room[1])
        place = bisect_right(self.spans, spot, key=itemgetter(0))
        near = (min(max(spot, low), high) for low, high in self.spans[max(0, place - 1) : place + 1])
        return min(near, key=lambda other: abs(other - spot))


def _placed(node: Node, text: str, translation: str, links: _Links, free: _Free) -> Span:
    begin, end = node.begin, node.end
    if not text[begin:end].strip():
        return (_spot(begin, text, links, free),) * 2
    if not text[:begin].strip() and not text[end:].strip() and free.spans == [free.room]:
        return free.room
    if node.raw is not None:  # a translator mostly copies what is no prose
        found = next((at for low, high in free.spans if (at := translation.find(text[begin:end], low, high)) >= 0), None)
        if found is not None:
            return found, found + end - begin
    shares = np.where(free.words, links.share(begin, end) - HALF, -np.inf)
    if run := _best_run(shares):
        first, last = run
        while first < last and not any(map(str.isalnum, translation[slice(*links.words[first])])):
            first += 1  # a comma before the words
        return links.words[first][0], links.words[last][1]
    return links.words[int(shares.argmax())] if free.words.any() else (free.room[1],) * 2


def _best_run(shares: np.ndarray) -> Span | None:
    """The first and the last of those beside one another whose sum is the greatest, if it is more than 0."""
    above = np.flatnonzero(shares > 0)
    if not above.size:
        return None
    best, total, start = 0.0, 0.0, 0
    found = None
    for place, share in enumerate(shares[above[0] : above[-1] + 1].tolist(), int(above[0])):
        if total <= 0:
            total, start = 0.0, place
        total += share
        if total > best:
            best, found = total, (start, place)
    return found


def _spot(at: int, text: str, links: _Links, free: _Free) -> int:
    """Where something without words goes: before the word that it stood before, or after the one that it was written onto."""
    if not text[:at].strip() or not links.words:
        spot = free.room[0]
    elif not text[at:].strip():
        spot = free.room[1]
    else:
        onto = not text[at - 1].isspace() and not text[at].isalnum()
        near = text[:at].rsplit(None, 1)[-1] if onto else text[at:].split(None, 1)[0]
        begin = at - len(near) if onto else text.index(near, at)
        first, last = [*_words(near)][-1 if onto else 0]
        word = links.words[int(links.share(begin + first, begin + last).argmax())]
        spot = word[1] if onto else word[0]
    return free.nearest(spot)


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
