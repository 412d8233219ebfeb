"""Many sources stand in line, the longest first, and are decoded at tables where each takes the place of one that is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock

from regard.decoding.crew import beside
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Method, Rules
from regard.decoding.table import Asked, Size, decode_as_they_come
from regard.models import Generator

ALIKE = 0.6  # of the length that a table has room for: what is shorter had better have another, with less padding

Found = dict[int, list[Hypothesis]]


class Line:
    """All sources of one call. Several tables may take from it at the same time."""

    def __init__(
        self, sources: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]] | None = None, numbers: Sequence[int] | None = None
    ) -> None:
        order = sorted(range(len(sources)), key=lambda index: (-len(sources[index]), index))
        begun = [()] * len(sources) if prefixes is None else prefixes
        chance = range(len(sources)) if numbers is None else numbers
        self.asked = [Asked(sources[index], chance[index], begun[index], key=index) for index in order]
        self.begun = max(map(len, begun), default=0)
        self._next, self._lock = 0, Lock()

    def take(self, most: int, size: Size | None) -> list[Asked]:
        with self._lock:
            start = end = self._next
            least = 0 if size is None else ALIKE * size.read
            while end < min(start + most, len(self.asked)) and len(self.asked[end].ids) >= least:
                end += 1
            self._next = end
            return self.asked[start:end]

    def close(self) -> None:
        """Nobody is let in any more."""
        with self._lock:
            self._next = len(self.asked)


def decode_in_line(
    model: Generator, line: Line, seats: Callable[[int], int], tables: int, method: Method, rules: Rules, found: Found
) -> None:
    """What is found for each source, by its place among them. `seats`: at one of the tables, for sources of such a length."""

    def size(first: Sequence[Asked]) -> Size:
        longest = max(len(asked.ids) for asked in first)
        return Size(seats(longest), longest, line.begun)

    def done(asked: Asked, hypotheses: list[Hypothesis]) -> None:
        assert isinstance(asked.key, int)
        found[asked.key] = hypotheses

    def serve(table: int) -> None:
        try:
            decode_as_they_come(model, size, line, done, method, rules)
        except BaseException:
            line.close()
            raise

    try:
        if tables == 1:
            serve(0)
        else:
            beside(serve, range(tables))
    finally:
        line.close()  # whoever interrupts should not have to wait for all of them
