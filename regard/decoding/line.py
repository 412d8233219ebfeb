"""Many sources stand in line, the longest first, and are decoded at tables where each takes the place of one that is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from regard.decoding.crew import beside
from regard.decoding.kept import Kept, roundly
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Method, Rules
from regard.decoding.table import Asked, Size, decode_as_they_come, longest_source
from regard.models import Generator

ALIKE = 0.6  # of the longest at a table: what is shorter had better have another, with less padding

Found = dict[int, list[Hypothesis]]


class Line:
    """Those who wait for one table."""

    def __init__(self, asked: Sequence[Asked]) -> None:
        """The longest first."""
        self.asked = asked
        self.begun = max((len(each.prefix) for each in asked), default=0)
        self._next, self._closed = 0, False
        self._longest = 0  # of those at the table

    def take(self, most: int, size: Size | None) -> list[Asked]:
        if self._closed:
            return []
        start = end = self._next
        if size is None and start < len(self.asked):
            self._longest = len(self.asked[start].ids)
        least = 0 if size is None or len(self.asked) <= size.seats else ALIKE * self._longest
        while end < min(start + most, len(self.asked)) and len(self.asked[end].ids) >= least:
            end += 1
        self._next = end
        return [*self.asked[start:end]]

    def close(self) -> None:
        """Nobody is let in any more."""
        self._closed = True


def lines_of(
    sources: Sequence[Sequence[int]], tables: int, prefixes: Sequence[Sequence[int]] | None = None, numbers: Sequence[int] | None = None
) -> list[Line]:
    """A line for each table, all alike. Who sits with whom is decided here, not by who is faster, so that it is always the same."""
    order = sorted(range(len(sources)), key=lambda index: (-len(sources[index]), index))
    begun = [()] * len(sources) if prefixes is None else prefixes
    chance = range(len(sources)) if numbers is None else numbers
    asked = [Asked(sources[index], chance[index], begun[index], key=index) for index in order]
    return [Line(asked[table::tables]) for table in range(tables)]


def decode_in_lines(
    model: Generator,
    lines: Sequence[Line],
    seats: Callable[[int], int],
    method: Method,
    rules: Rules,
    found: Found,
    kept: Kept | None = None,
) -> None:
    """What is found for each source, by its place among them. `seats`: at one of the tables, for sources of such a length."""

    def done(asked: Asked, hypotheses: list[Hypothesis]) -> None:
        assert isinstance(asked.key, int)
        found[asked.key] = hypotheses

    def close() -> None:
        for line in lines:
            line.close()

    def serve(line: Line) -> None:
        def size(first: Sequence[Asked]) -> Size:
            longest = max(len(asked.ids) for asked in first)
            if kept is not None:
                longest = roundly(longest, longest_source(model))
            return Size(seats(longest), longest, line.begun)

        try:
            decode_as_they_come(model, size, line, done, method, rules, kept)
        except BaseException:
            close()
            raise

    try:
        if len(lines) == 1:
            serve(lines[0])
        else:
            beside(serve, lines)
    finally:
        close()  # whoever interrupts should not have to wait for all of them
