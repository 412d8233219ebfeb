"""Texts that are written from as they come: each takes its seat at a table of the decoder, and leaves it with an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from regard.decoding.many import Load
from regard.decoding.search import Hypothesis
from regard.decoding.table import Asked, Size, decode_as_they_come
from regard.door import Model
from regard.door.one_by_one import OneByOne
from regard.door.writing import NO_OUTPUT
from regard.errors import RegardError
from regard.serve.queue import Company, Entry, Outcome

LEAST_READ, LEAST_BEGUN = 32, 8  # tokens that there is room for at any table, in a source and in a prefix


@dataclass
class Guest:
    """A text at the table, in parts where it is long."""

    entry: Entry
    model: Model  # with ears of its own for what is said about this text
    warnings: list[str]
    parts: list[Asked] = field(default_factory=list)
    found: dict[int, list[Hypothesis]] = field(default_factory=dict)


class Part(NamedTuple):
    guest: Guest
    place: int


class Arrivals:
    """Those who wait for a seat. The decoder takes them from here, and brings them back when they are done."""

    def __init__(self, model: Model, writing: OneByOne, entries: Sequence[Entry], company: Company, tables: int) -> None:
        self.model, self.writing, self.company, self.tables = model, writing, company, tables
        self.ready: deque[Asked] = deque()
        self.guests: dict[Entry, Guest] = {}  # who have no answer yet
        for entry in entries:
            self._welcome(entry)

    def decode(self) -> None:
        """Until nobody is left and nobody comes."""
        decode_as_they_come(self.model.writer, self._size, self, self._done, self.writing.method, self.writing.rules)

    def take(self, most: int, size: Size | None) -> list[Asked]:
        if not self.ready:
            for entry in self.company.more(most, self._longest if size is None else size.read):
                self._welcome(entry)
        found: list[Asked] = []
        while self.ready and len(found) < most and (size is None or size.fits(self.ready[0])):
            found.append(self.ready.popleft())
        return found

    @property
    def _longest(self) -> int:
        return self.model.config.context

    def _size(self, first: Sequence[Asked]) -> Size:
        """Of a table for them and for others, who may be somewhat longer."""
        read = min(self._longest, _roundly(max(len(asked.ids) for asked in first), LEAST_READ))
        begun = max(len(asked.prefix) for asked in first)
        load = Load(self.model.writer, self.writing.method, self.writing.rules)
        return Size(load.seats(read, self.tables), read, _roundly(begun, LEAST_BEGUN) if begun else 0)

    def _welcome(self, entry: Entry) -> None:
        ask, warnings = entry.ask, list[str]()
        model = copy(self.model)  # the same network
        model.place, model.warn = lambda _: f"text {ask.place + 1}", warnings.append
        guest = Guest(entry, model, warnings)
        self.guests[entry] = guest
        try:
            text = ask.text if ask.ids is None else list(ask.ids)
            asked = self.writing.asked(model, text, ask.number, ask.to, ask.prefix)
        except RegardError as error:
            self._leave(guest, Outcome(error=error))
            return
        guest.parts = [replace(each, key=Part(guest, place)) for place, each in enumerate(asked)]
        self.ready += guest.parts
        if not guest.parts:
            self._answer(guest)

    def _done(self, asked: Asked, hypotheses: list[Hypothesis]) -> None:
        assert isinstance(asked.key, Part)
        guest, place = asked.key
        guest.found[place] = hypotheses
        if len(guest.found) == len(guest.parts):
            self._answer(guest)

    def _answer(self, guest: Guest) -> None:
        found = [guest.found[place] for place in range(len(guest.parts))]
        try:
            answer = self.writing.written(guest.model, guest.parts, found)
        except RegardError as error:
            self._leave(guest, Outcome(error=error))
            return
        nothing = self.writing.nothing() if answer is NO_OUTPUT else None
        self._leave(guest, Outcome(answer, tuple(guest.warnings), nothing=nothing))

    def _leave(self, guest: Guest, outcome: Outcome) -> None:
        del self.guests[guest.entry]
        self.company.settle(guest.entry, outcome)


def _roundly(count: int, least: int) -> int:
    """A power of two that is not less."""
    return max(least, 1 << (count - 1).bit_length())
