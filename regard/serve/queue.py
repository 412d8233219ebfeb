"""Requests batched as they come.

Every text of every request waits on its own. A worker that is free takes the text that came first, and with it those of the same kind
that are nearest in length, as many as are worked on at once; while it writes, others of the kind take the places of those that are done. A
text's answer depends on none of the others (but for rounding in half precision), so nobody can tell; but thirty-two take little
longer than one. What does not fit is refused at once, and whoever goes away frees their places.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock
from typing import Any, Protocol

from regard.errors import RegardError
from regard.serve.cores import Cores, on_threads, use_threads
from regard.serve.metrics import Metrics
from regard.serve.settings import Limits

PATIENCE = 0.004  # seconds that a text waits for company where nothing else is going on
PADDED = 2.0  # times as many tokens as there are, at most: a long text among short ones makes all of them long
RETURNING = 0.002  # seconds that each who was answered has to ask again, before the next are chosen
MOST_PAUSE = 0.1  # of what the batch took
COUNTED_EVERY = 1.0  # seconds, where others join for as long as there are any
ASIDE = 1 / 8  # of the places of those who wait, for kinds that are worked on aside
MEMORY = 0.8  # how much of the measured speed is that of the batches before


class FullError(RegardError):
    """Too much is waiting already; in `retry_after` seconds there should be room."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class LateError(RegardError):
    """There was no answer within the time that a request may take."""


class ClosingError(RegardError):
    """The server finishes what it has begun and takes no more."""


class TooMuchError(RegardError):
    """More in one request than is ever taken."""


@dataclass(frozen=True)
class Kind:
    """What texts must share to be worked on together."""

    model: str
    verb: str
    options: tuple[tuple[str, Any], ...] = ()
    most_texts: int = 128  # at once
    most_tokens: int = 8192  # at once, padding counted
    aside: bool = False  # long work for one: while others wait, no two such at once or in a row


@dataclass(frozen=True)
class Ask:
    """One text, and what is its own about it."""

    text: str
    tokens: int = 1
    place: int = 0  # in its request
    number: int = 0  # what chance goes by
    to: str | None = None
    prefix: str | None = None
    target: str | None = None  # to be scored
    ids: tuple[int, ...] | None = None  # its tokens, where it is a conversation and not a text


@dataclass(frozen=True)
class Outcome:
    """What became of one text."""

    answer: Any = None
    warnings: tuple[str, ...] = ()
    error: Exception | None = None
    nothing: Exception | None = None  # what is wrong where no text of a request has an output, and this one has none
    empty: bool = False  # there was no text


@dataclass
class Job:
    """What one client waits for."""

    done: asyncio.Future[None]
    outcomes: list[Outcome | None]

    def settle(self, place: int, outcome: Outcome) -> None:
        self.outcomes[place] = outcome
        if self.done.done():
            return  # nobody waits any more
        if outcome.error is not None:
            self.done.set_exception(outcome.error)
        elif None not in self.outcomes:
            texts = [each.nothing for each in self.outcomes if each is not None and not each.empty]
            if texts and None not in texts:
                self.done.set_exception(texts[0])  # type: ignore[arg-type]
            else:
                self.done.set_result(None)


@dataclass(frozen=True, eq=False)
class Entry:
    """A text in the queue."""

    kind: Kind
    ask: Ask
    job: Job = field(repr=False)

    @property
    def gone(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.job.done.done()


class Company(Protocol):
    """The others, for those who are being worked on; asked by the thread that works."""

    def more(self, most: int, tokens: int) -> list[Entry]:
        """Those of the same kind who wait, at most so many and none longer than so many tokens; nobody, while others wait longer."""

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        """Gives one of them what is theirs, before the work is done."""


# What becomes of each that was not settled before.
Work = Callable[[Kind, Sequence[Entry], Company], list[Outcome]]


class Waiting:
    """Those who wait, in the order of arrival. Any thread may ask: workers let others in from their own."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._tokens: Counter[tuple[bool, str, str]] = Counter()  # by whether they are aside, model and verb
        self._working_aside, self._others_turn = 0, False
        self._numbers = count()
        self._lock = Lock()  # of all that is here

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Iterable[Entry]) -> list[int]:
        """Their numbers, by which they can leave again."""
        with self._lock:
            numbers = []
            for entry in entries:
                numbers.append(next(self._numbers))
                self._entries[numbers[-1]] = entry
                self._tokens[_place(entry)] += entry.ask.tokens
            return numbers

    def leave(self, numbers: Iterable[int]) -> None:
        """Those of them who wait still."""
        with self._lock:
            self._taken(number for number in numbers if number in self._entries)

    def first(self) -> list[Entry]:
        """Whoever came first, and those of the same kind that are nearest in length, until no more fit. They wait no longer."""
        with self._lock:
            if not self._entries:
                return []
            first = self._next()
            same = [(number, entry) for number, entry in self._entries.items() if entry.kind == first.kind]
            same.sort(key=lambda item: abs(item[1].ask.tokens - first.ask.tokens))  # stable: of the same length, the older ones
            return self._taken(_fitting(same, first.kind))

    def joining(self, kind: Kind, most: int, tokens: int) -> list[Entry]:
        """Those of a kind who wait first, as far as they fit: whoever has waited longest is never passed over. They wait no longer."""
        with self._lock:
            chosen: list[int] = []
            for number, entry in self._entries.items():
                if entry.kind.aside and entry.kind != kind and self._others_first:
                    continue
                if len(chosen) == most or entry.kind != kind or entry.ask.tokens > tokens:
                    break
                chosen.append(number)
            return self._taken(chosen)

    def tokens(self, aside: bool) -> dict[tuple[str, str], int]:
        """How many there are to be read, by model and verb."""
        with self._lock:
            return {(model, verb): count for (of, model, verb), count in self._tokens.items() if of is aside}

    def aside(self) -> int:
        """How many of those who wait are worked on aside."""
        with self._lock:
            return sum(entry.kind.aside for entry in self._entries.values())

    def done(self, kind: Kind) -> None:
        """Those of a kind that were taken first are no longer worked on."""
        with self._lock:
            self._working_aside -= kind.aside

    @property
    def _others_first(self) -> bool:
        return self._working_aside > 0 or self._others_turn

    def _next(self) -> Entry:
        """Whose turn it is: whoever came first, unless it is another's after work that was aside."""
        first = next(iter(self._entries.values()))
        if first.kind.aside and self._others_first:
            first = next((entry for entry in self._entries.values() if not entry.kind.aside), first)
        self._others_turn = first.kind.aside
        self._working_aside += first.kind.aside
        return first

    def _taken(self, numbers: Iterable[int]) -> list[Entry]:
        entries = [self._entries.pop(number) for number in list(numbers)]
        for entry in entries:
            self._tokens[_place(entry)] -= entry.ask.tokens
        return entries


def _place(entry: Entry) -> tuple[bool, str, str]:
    return entry.kind.aside, entry.kind.model, entry.kind.verb


class Queue:
    """Those who wait, and the workers. All of it happens in the event loop, but for the work itself and for who joins it."""

    def __init__(self, work: Work, limits: Limits, metrics: Metrics, workers: int = 1, cores: Cores | None = None) -> None:
        self.limits, self.metrics, self.workers, self.cores = limits, metrics, workers, cores or Cores()
        self.closing = False
        self._work = work
        self.waiting = Waiting()
        self._arrived = asyncio.Event()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="regard-work")  # torch blocks
        self._speed: dict[tuple[str, str], float] = {}  # by model and verb: tokens read in a second by all cores, lately
        metrics.waiting.set_function(lambda: len(self.waiting))

    async def ask(self, kind: Kind, asks: Sequence[Ask]) -> list[Outcome]:
        """What became of each text. Being cancelled frees the places of those that were not begun."""
        self._admit(kind, asks)
        job = Job(asyncio.get_running_loop().create_future(), [None] * len(asks))
        numbers = self.waiting.add([Entry(kind, replace(ask, place=place), job) for place, ask in enumerate(asks)])
        self._arrived.set()
        try:
            if asks:
                async with asyncio.timeout(self.limits.seconds):
                    await job.done
        except TimeoutError:
            self.metrics.refused.labels("late").inc()
            raise LateError(f"there was no answer within {self.limits.seconds:g} s; send less at once, or ask again later") from None
        finally:
            self.waiting.leave(numbers)
        return [outcome for outcome in job.outcomes if outcome is not None]

    def check(self, count: int) -> None:
        """Whether so many texts of one request could ever wait."""
        if count > self.limits.waiting:
            raise TooMuchError(f"{count} texts in one request, and {self.limits.waiting} can wait at once; send fewer")

    def _admit(self, kind: Kind, asks: Sequence[Ask]) -> None:
        if self.closing:
            raise ClosingError("the server is about to stop and takes no more requests; ask another, or again later")
        self.check(len(asks))
        waiting, seconds = len(self.waiting), self.seconds_of_work(kind.aside)
        room = self.limits.waiting - waiting
        if kind.aside:
            room = min(room, max(1, int(ASIDE * self.limits.waiting)) - self.waiting.aside())
        # Who would wait for half of the time that there is had better come again than wait for nothing.
        if len(asks) > room or (waiting and seconds > self.limits.seconds / 2):
            self.metrics.refused.labels("full").inc()
            long = f", some {seconds:.0f} s of work" if seconds >= 1 else ""
            raise FullError(f"{waiting} texts are waiting already{long}; ask again in a while", min(60, max(1, math.ceil(seconds / 2))))

    def seconds_of_work(self, aside: bool = False) -> float:
        """How long those who wait will take, by the speed of late; what was never done yet counts for nothing. Work aside takes turns with
        all other work: while there is both, each takes twice as long."""
        own, other = self._seconds(aside), self._seconds(not aside)
        return own + min(own, other)

    def _seconds(self, aside: bool) -> float:
        return sum(tokens / speed for kind, tokens in self.waiting.tokens(aside).items() if (speed := self._speed.get(kind)))

    async def run(self) -> None:
        """Works for as long as the server lives."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(self.workers):
                workers.create_task(self._work_on())

    async def _work_on(self) -> None:
        while True:
            if not self.waiting:
                self._arrived.clear()
                await self._arrived.wait()
                await asyncio.sleep(PATIENCE)
            if batch := self.waiting.first():
                took = await self._done(batch)
                if self.workers == 1:  # otherwise there is company: those who came while the others were working
                    await self._returned(batch, took)

    async def _returned(self, batch: Sequence[Entry], took: float) -> None:
        """A moment for those who have their answers to ask again, unless there is plenty to choose from.

        The more there are, the better they fit together: a long text among others of its length costs a fraction of what it costs alone.
        """
        plenty = min(2 * batch[0].kind.most_texts, len(self.waiting) + len(batch))
        end = time.perf_counter() + min(RETURNING * len(batch), MOST_PAUSE * took)
        while len(self.waiting) < plenty and (left := end - time.perf_counter()) > 0:
            await asyncio.sleep(min(left, RETURNING))

    async def _done(self, batch: list[Entry]) -> float:
        """Works on a batch and gives everyone their own; the seconds that it took."""
        kind, begun = batch[0].kind, time.perf_counter()
        visit = Visit(self, batch, self.cores.take(among=self.workers if self.waiting else 1))
        try:
            outcomes = await asyncio.get_running_loop().run_in_executor(
                self._threads, on_threads, visit.threads, self._work, kind, batch, visit
            )
            if len(outcomes) != len(visit.left):
                raise RuntimeError(f"{len(outcomes)} answers for {len(visit.left)} texts")
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a library's panic too: work says what is wrong of each text, and the queue goes on
            outcomes = [Outcome(error=error if isinstance(error, Exception) else RuntimeError(str(error)))] * len(visit.left)
        finally:
            self.cores.give_back()
            self.waiting.done(kind)
        for entry, outcome in zip(list(visit.left), outcomes, strict=True):
            visit.give(entry, outcome)
        visit.count()
        return time.perf_counter() - begun

    def worked(self, kind: Kind, texts: int, tokens: int, seconds: float, threads: int) -> None:
        """So many at once were worked on, and so many tokens are done: which tells how long those who wait will take."""
        now, before = tokens / max(seconds, 1e-6) * self.cores.total / threads, self._speed.get((kind.model, kind.verb))
        self._speed[kind.model, kind.verb] = now if before is None else MEMORY * before + (1 - MEMORY) * now
        self.metrics.batch(kind.model, kind.verb, texts, seconds)

    def close(self) -> None:
        """Ends the workers, once what they do is done."""
        self._threads.shutdown()


class Visit:
    """A batch being worked on, and those who join it. `more` and `settle` are for the thread that works, all else is the event loop's."""

    def __init__(self, queue: Queue, batch: Sequence[Entry], threads: int) -> None:
        self.kind, self.threads = batch[0].kind, threads
        self.left = dict.fromkeys(batch)  # those who have no answer yet, in order
        self._queue, self._loop = queue, asyncio.get_running_loop()
        # Since it was last counted: how many there were at once, and how many tokens are done.
        self._since, self._texts, self._tokens = time.perf_counter(), len(batch), 0

    def more(self, most: int, tokens: int) -> list[Entry]:
        self._share_cores()
        joining = self._queue.waiting.joining(self.kind, most, tokens)
        self.left.update(dict.fromkeys(joining))
        self._texts = max(self._texts, len(self.left))
        return joining

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        with suppress(RuntimeError):  # where the event loop was closed meanwhile, nobody waits any more
            self._loop.call_soon_threadsafe(self.give, entry, outcome)

    def give(self, entry: Entry, outcome: Outcome) -> None:
        """Everyone their own, once."""
        if entry in self.left:
            del self.left[entry]
            self._tokens += entry.ask.tokens
            self._queue.metrics.text_done(self.kind.model, self.kind.verb, entry.ask.tokens)
            entry.job.settle(entry.ask.place, outcome)
            if time.perf_counter() - self._since > COUNTED_EVERY:
                self.count()

    def count(self) -> None:
        """What was done since the last time: others may join for as long as there are any."""
        now = time.perf_counter()
        if self._tokens:
            self._queue.worked(self.kind, self._texts, self._tokens, now - self._since, self.threads)
        self._since, self._texts, self._tokens = now, len(self.left), 0

    def _share_cores(self) -> None:
        """Others may have begun since, or be done."""
        threads = self._queue.cores.share(self._queue.workers if self._queue.waiting else 1)
        if threads != self.threads:
            self.threads = threads
            use_threads(threads)


def _fitting(entries: Sequence[tuple[int, Entry]], kind: Kind) -> Iterator[int]:
    """The numbers of as many as are worked on at once; the first of them always is."""
    longest = tokens = 0
    for size, (number, entry) in enumerate(entries, 1):
        longest, tokens = max(longest, entry.ask.tokens), tokens + entry.ask.tokens
        padded = size * longest
        if size > 1 and (size > kind.most_texts or padded > min(kind.most_tokens, PADDED * tokens)):
            return
        yield number
