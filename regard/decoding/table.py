"""Continuous batching: a table with a seat for each source, where whoever is done makes room for the next at once.

A batch that begins and ends together waits for its longest output, with fewer and fewer rows at work. At a table nobody waits: a source is
read by itself, chooses its first word, and takes any free seat among others that are half way through. Nothing but the rows of that seat
changes, so on a GPU the recorded positions go on being replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding import reading
from regard.decoding.kept import Kept, Kind, weights_of
from regard.decoding.replay import on_its_device
from regard.decoding.runner import APART, CHECK_EVERY, Run, make_search
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Method, Rules, Sampling
from regard.models import Generator, LanguageModel, Seq2Seq
from regard.models.state import StackState
from regard.nn.cache import in_whole_steps
from regard.nn.tap import hooked

LET_IN_AT = {"cpu": 8, "cuda": 4}  # the part of the seats that is let in together: reading a few at once is cheaper than one by one
SLACK = 1.5  # times as many slots as a source can need: the more, the more seldom they are cleared
FEW = 512  # rows, which are not worth recording fewer of


@dataclass(frozen=True)
class Asked:
    """A source that waits for a seat."""

    ids: Sequence[int]
    number: int = 0  # what chance goes by
    prefix: Sequence[int] = ()  # what its output must begin with
    key: object = None  # whoever asked knows it by this


@dataclass(frozen=True)
class Size:
    """What there is room for."""

    seats: int
    read: int  # tokens of a source
    begun: int = 0  # tokens of a prefix

    def fits(self, asked: Asked) -> bool:
        return len(asked.ids) <= self.read and len(asked.prefix) <= self.begun


class Coming(Protocol):
    """Those who wait."""

    def take(self, most: int, size: Size | None) -> list[Asked]:
        """The next of them, at most so many: none where nobody waits now, or where the next does not fit or had better have another table.

        Without a size: those that a new table is made for.
        """


Done = Callable[[Asked, list[Hypothesis]], None]


def comes_and_goes(model: Generator, method: Method) -> bool:
    """Whether sources can: not where samples belong together, where coverage is counted, or with a recurrent model."""
    alone = method.samples == 1 if isinstance(method, Sampling) else method.coverage == 0
    return alone and isinstance(model, LanguageModel | Seq2Seq)


@torch.inference_mode()
@on_its_device
def decode_as_they_come(
    model: Generator,
    size: Callable[[Sequence[Asked]], Size],
    coming: Coming,
    done: Done,
    method: Method,
    rules: Rules,
    kept: Kept | None = None,
) -> None:
    """Until nobody is left. `size`: of a table that these are the first at; whoever does not fit gets a new one, once it is empty.

    `kept`: tables that were laid before, and where they are left for others.
    """
    while first := coming.take(1, None):
        Table(model, size(first), method, rules, kept).serve(first, coming, done)


class Table:
    """Sources being decoded, each where it stands."""

    def __init__(self, model: Generator, size: Size, method: Method, rules: Rules, kept: Kept | None = None) -> None:
        self.model, self.size, self.method, self.rules = model, size, method, rules
        self.kept = None if hooked(model) else kept  # what was recorded without hooks calls none, and a table with hooks is for now
        self.weights = () if self.kept is None else weights_of(model)
        self.guests: list[Asked | None] = []  # who has each seat
        self.run: Run | None = None
        self.let_in_at = LET_IN_AT.get(model.device.type, 8)

    def serve(self, first: Sequence[Asked], coming: Coming, done: Done) -> None:
        """Those and all who come, until nobody is left who fits."""
        self._let_in([*first, *coming.take(self.size.seats - len(first), self.size)])
        while self.run is not None and any(self.guests):
            self._go_on(self.run)
            self._let_go(self.run, done)
            room = self.size.seats - len(self.guests) + self.guests.count(None)
            if room * self.let_in_at >= self.size.seats:
                self._let_in(coming.take(room, self.size))
            self._move_together(self.run)
        self._leave()

    def _let_in(self, arrived: Sequence[Asked]) -> None:
        if not arrived:
            return
        model, device = self.model, self.model.device
        tokens = Tokens.pad([asked.ids for asked in arrived], model.config.pad_token, device=device)
        numbers = torch.tensor([asked.number for asked in arrived], device=device) * APART  # it may go round, as in `decode`
        prefixes = [asked.prefix for asked in arrived] if self.size.begun else None
        memory = reading.encode(model, tokens)
        new = Run.begin(model, memory, make_search(model, memory.tokens, self.method, self.rules, prefixes, numbers), room=0)
        new.check()
        if self.run is None:
            self.run = self._laid(new, self._seats_for(len(arrived)))
            self.guests = [None] * len(self.run.search.open)
        if (missing := len(arrived) - self.guests.count(None)) > 0:
            self._move(self.run, self._seats_for(len(self.guests) + missing))
        free = [seat for seat, guest in enumerate(self.guests) if guest is None][: len(arrived)]
        places = torch.tensor(free, device=device)
        _state(self.run).seat(_state(new), places)
        self.run.search.seat(new.search, places)
        for seat, asked in zip(free, arrived, strict=True):
            self.guests[seat] = asked

    def _seats_for(self, count: int) -> int:
        return min(self.size.seats, 1 << (count - 1).bit_length()) if self._has_sizes else count

    @property
    def _has_sizes(self) -> bool:
        """Where positions are recorded or tables are kept, they have few sizes, and seldom change them."""
        return self.kept is not None or self.model.device.type == "cuda"

    def _kind(self, seats: int) -> Kind:
        return Kind(self.model, self.weights, self.method, self.rules, self.size.read, self.size.begun, seats)

    def _laid(self, like: Run, seats: int) -> Run:
        """An empty table for sources such as these, which may have been used before."""
        run = None if self.kept is None else self.kept.take(self._kind(seats))
        return run or self._new(like, seats)

    def _new(self, like: Run, seats: int) -> Run:
        model, size = self.model, replace(self.size, seats=seats)
        hypotheses = like.search.hypotheses
        room = _most_written(model, self.rules, size)
        given = size.read if isinstance(model, LanguageModel) else 1
        nobody = torch.zeros(size.seats, given, dtype=torch.long, device=model.device)
        one_word = (torch.arange(given, device=model.device) < 1).expand(size.seats, -1)
        prefixes = [[0] * size.begun] * size.seats if size.begun else None
        numbers = torch.zeros(size.seats, dtype=torch.long, device=model.device)
        search = make_search(model, Tokens(nobody, one_word, tail=True), self.method, self.rules, prefixes, numbers, room=room)
        search.vacate(torch.arange(size.seats, device=model.device))
        # Whoever is done is noticed some positions later.
        capacity = int(SLACK * (given + room * hypotheses)) + CHECK_EVERY.get(model.device.type, 1) * hypotheses
        read = size.read
        if model.device.type == "cpu":
            capacity, read = in_whole_steps(capacity), in_whole_steps(read)
        return Run(model, search, _state(like).vacant(size.seats, capacity, read))

    def _leave(self) -> None:
        """Nobody is left: whoever comes next finds the table as if it were new."""
        if self.run is not None:
            self._put_back(self.run)
        self.run, self.guests = None, []

    def _put_back(self, run: Run) -> None:
        if self.kept is None:
            return
        _state(run).reset()
        run.search.vacate(torch.arange(len(run.search.open), device=run.model.device))
        self.kept.give(self._kind(len(run.search.open)), run)

    def _go_on(self, run: Run) -> None:
        """Some positions, until it is looked who is done."""
        state, empty = _state(run), self._places(run, [guest is None for guest in self.guests])
        for _ in range(run.check_every):
            full = state.cache.used + run.search.hypotheses > state.cache.capacity
            if len(empty) and (full or state.clears):
                state.leave(empty)  # nobody writes there, but what is written takes slots
            if full or state.due:
                state.clear(now=full)
            run.position()
        run.check()

    def _let_go(self, run: Run, done: Done) -> None:
        going = run.search.open.tolist()
        ended = [guest is not None and not still for guest, still in zip(self.guests, going, strict=True)]
        if not any(ended):
            return
        places = self._places(run, ended)
        for seat, found in zip(places.tolist(), run.search.results(places), strict=True):
            asked, self.guests[seat] = self.guests[seat], None
            assert asked is not None
            done(asked, found)

    def _move_together(self, run: Run) -> None:
        """Where many seats are empty and nobody came, they are taken away: not of a few, where that is recorded anew."""
        taken = len(self.guests) - self.guests.count(None)
        seats = self._seats_for(taken)
        few = self._has_sizes and len(self.guests) * run.search.hypotheses <= FEW
        if 0 < taken <= run.drop_at * len(self.guests) and seats < len(self.guests) and not few:
            self._move(run, seats)

    def _move(self, run: Run, seats: int) -> None:
        """All who are here, to a table with so many seats."""
        here = [guest is not None for guest in self.guests]
        other, rows = self._laid(run, seats), self._places(run, here)
        places = torch.arange(len(rows), device=run.model.device)
        _state(other).seat(_state(run), places, rows)
        other.search.seat(run.search, places, rows)
        self.run, self.guests = other, [guest for guest in self.guests if guest is not None]
        self.guests += [None] * (seats - len(self.guests))
        self._put_back(run)

    def _places(self, run: Run, which: Sequence[bool]) -> Tensor:
        return torch.tensor([seat for seat, wanted in enumerate(which) if wanted], dtype=torch.long, device=run.model.device)


def _state(run: Run) -> StackState:
    assert isinstance(run.state, StackState)
    return run.state


def longest_source(model: Generator) -> int:
    """That a model can read and still go on: a language model writes where it reads."""
    return model.config.context - isinstance(model, LanguageModel)


def _most_written(model: Generator, rules: Rules, size: Size) -> int:
    """By any source that fits: a longer prompt may let a language model write more, or leave it less room."""
    context = model.config.context
    if isinstance(model, LanguageModel):
        return max(size.begun, *(min(rules.max_length.of(length), context - length) for length in range(1, size.read + 1)), 1)
    return min(context, max(rules.max_length.of(size.read), size.begun, 1))
