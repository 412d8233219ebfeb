"""Texts that are written from as they come: each takes its seat at a table of the decoder, and leaves it with an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from regard.decoding.kept import roundly
from regard.decoding.many import Load
from regard.decoding.search import Hypothesis
from regard.decoding.table import Asked, Size, decode_as_they_come, longest_source
from regard.door import Model
from regard.door.one_by_one import OneByOne
from regard.errors import RegardError
from regard.serve.queue import Company, Entry, Outcome

LEAST_BEGUN = 8  # tokens of a prefix that there is room for at any table where there is one


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
        self.first, self.ready = entries, deque[Asked]()
        self.guests: dict[Entry, Guest] = {}  # who have no answer yet

    @property
    def unanswered(self) -> list[Entry]:
        return list(self.guests)

    def decode(self) -> None:
        """Until nobody is left and nobody comes."""
        self.guests = {entry: self._guest(entry) for entry in self.first}
        for guest in list(self.guests.values()):
            self._welcome(guest)
        writing = self.writing
        decode_as_they_come(self.model.writer, self._size, self, self._done, writing.method, writing.rules, self.model.kept)

    def take(self, most: int, size: Size | None) -> list[Asked]:
        if not self.ready:
            for entry in self.company.more(most, self._longest if size is None else size.read):
                self.guests[entry] = self._guest(entry)
                self._welcome(self.guests[entry])
        found: list[Asked] = []
        while self.ready and len(found) < most and (size is None or size.fits(self.ready[0])):
            asked = self.ready.popleft()
            if self._still_there(asked):
                found.append(asked)
        return found

    def _still_there(self, asked: Asked) -> bool:
        """Whether anybody waits for it; whoever does not has no need of a seat."""
        assert isinstance(asked.key, Part)
        guest = asked.key.guest
        if guest.entry.gone:
            self.guests.pop(guest.entry, None)
            self.company.settle(guest.entry, Outcome())
        return not guest.entry.gone

    @property
    def _longest(self) -> int:
        return longest_source(self.model.generator)

    def _size(self, first: Sequence[Asked]) -> Size:
        """Of a table for those who are here and for others, who may be somewhat longer."""
        here = [*first, *self.ready]
        read, begun = max(len(asked.ids) for asked in here), max(len(asked.prefix) for asked in here)
        read = roundly(read, self._longest)
        begun = roundly(begun, self._longest, LEAST_BEGUN) if begun else 0
        load = Load(self.model.writer, self.writing.method, self.writing.rules)
        return Size(load.seats(read, self.tables), read, begun)

    def _guest(self, entry: Entry) -> Guest:
        place, warnings = entry.ask.place, list[str]()
        model = copy(self.model)  # the same network
        model.place, model.warn = lambda _: f"text {place + 1}", warnings.append
        return Guest(entry, model, warnings)

    def _welcome(self, guest: Guest) -> None:
        ask, model = guest.entry.ask, guest.model
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
        nothing = None if any(found) or not guest.parts else self.writing.nothing()
        self._leave(guest, Outcome(answer, tuple(guest.warnings), nothing=nothing, empty=not guest.parts))

    def _leave(self, guest: Guest, outcome: Outcome) -> None:
        self.guests.pop(guest.entry, None)
        self.company.settle(guest.entry, outcome)
