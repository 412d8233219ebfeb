"""Who is worked on together, who comes first, and how many are taken."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from regard.errors import RegardError
from regard.serve.cores import Cores
from regard.serve.metrics import Metrics
from regard.serve.queue import Ask, ClosingError, Company, Entry, FullError, Kind, LateError, Outcome, Queue, TooMuchError
from regard.serve.settings import Limits

PLAIN = Kind("m", "translate", most_texts=4)


class Worker:
    """Notes every batch, and says each text in capitals."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[str]] = []

    def __call__(self, kind: Kind, entries: Sequence[Entry], company: Company) -> list[Outcome]:
        self.batches.append([entry.ask.text for entry in entries])
        time.sleep(self.seconds)
        return [
            Outcome(error=RegardError("no")) if entry.ask.text == "bad" else Outcome(f"{kind.model} {entry.ask.text.upper()}")
            for entry in entries
        ]


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """What comes of it, in a thread of its own: the tests of the page leave an event loop running in this one."""
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, work).result()


async def serving(worker: Worker, asks: Sequence[tuple[Kind, Sequence[Ask]]], limits: Limits | None = None) -> list[object]:
    """What each got, all having asked at the same time."""
    queue = Queue(worker, limits or Limits(), Metrics())
    running = asyncio.create_task(queue.run())
    try:
        return await asyncio.gather(*(queue.ask(kind, own) for kind, own in asks), return_exceptions=True)
    finally:
        running.cancel()
        queue.close()


def test_texts_of_like_length_go_together_and_the_first_goes_first() -> None:
    worker = Worker()
    lengths = {"a": 10, "b": 60, "c": 11, "d": 9, "f": 10, "g": 2, "h": 2}
    found = finished(serving(worker, [(PLAIN, [Ask(text, tokens)]) for text, tokens in lengths.items()]))
    assert [outcome.answer for [outcome] in found] == [f"m {text.upper()}" for text in lengths]  # type: ignore[misc]
    assert worker.batches[0][0] == "a"
    assert set(worker.batches[0]) == {"a", "c", "d", "f"}
    assert worker.batches[1:] == [["b", "g"], ["h"]]  # never more padding than text


def test_a_long_text_does_not_make_many_short_ones_long() -> None:
    worker = Worker()
    finished(serving(worker, [(PLAIN, [Ask("long", 100)]), *((PLAIN, [Ask("s", 5)]) for _ in range(4))]))
    assert worker.batches == [["long", "s"], ["s", "s", "s"]]


def test_no_more_tokens_at_once_than_there_is_room_for() -> None:
    worker, kind = Worker(), Kind("m", "embed", most_texts=100, most_tokens=64)
    finished(serving(worker, [(kind, [Ask("x", 10)] * 20), (kind, [Ask("huge", 1000)])]))
    assert [len(batch) for batch in worker.batches[:3]] == [6, 6, 6]
    assert ["huge"] in worker.batches


def test_only_the_same_kind_goes_together() -> None:
    worker = Worker()
    other = Kind("n", "translate", most_texts=4)
    options = Kind("m", "translate", (("beam_size", 2),), most_texts=4)
    finished(serving(worker, [(PLAIN, [Ask("a")]), (other, [Ask("b")]), (PLAIN, [Ask("c")]), (options, [Ask("d")])]))
    assert worker.batches == [["a", "c"], ["b"], ["d"]]


def test_one_large_request_is_worked_on_in_parts_and_others_get_in_between() -> None:
    worker = Worker(0.01)
    large = [Ask(f"l{place}", 5) for place in range(16)]
    found = finished(serving(worker, [(PLAIN, large), (Kind("n", "translate"), [Ask("small", 5)])]))
    assert [outcome.answer for outcome in found[0]] == [f"m {ask.text.upper()}" for ask in large]  # type: ignore[attr-defined]
    assert len(worker.batches) == 5


ASIDE = Kind("m", "trace", most_texts=1, aside=True)


def test_work_aside_takes_turns_with_all_other_work() -> None:
    worker = Worker(0.01)
    traces = [(ASIDE, [Ask(f"t{number}")]) for number in range(4)]
    finished(serving(worker, [*traces, (PLAIN, [Ask("a")]), (Kind("n", "translate"), [Ask("b")]), (PLAIN, [Ask("c")])]))
    assert worker.batches == [["t0"], ["a", "c"], ["t1"], ["b"], ["t2"], ["t3"]]


def test_of_several_workers_one_alone_works_aside_while_others_wait() -> None:
    begun: list[str] = []
    go = threading.Event()

    def work(kind: Kind, entries: Sequence[Entry], company: Company) -> list[Outcome]:
        begun.extend(entry.ask.text for entry in entries)
        if kind.aside:
            assert go.wait(20)
        return [Outcome(entry.ask.text) for entry in entries]

    async def run() -> None:
        queue = Queue(work, Limits(), Metrics(), workers=2)
        traces = [asyncio.create_task(queue.ask(ASIDE, [Ask(f"t{number}")])) for number in range(3)]
        others = [asyncio.create_task(queue.ask(Kind(f"m{number}", "translate"), [Ask("a")])) for number in range(3)]
        await asyncio.sleep(0)  # now they wait
        running = asyncio.create_task(queue.run())
        async with asyncio.timeout(20):
            await asyncio.gather(*others)
        assert begun[:4] == ["t0", "a", "a", "a"]
        go.set()
        await asyncio.gather(*traces)
        running.cancel()
        queue.close()

    finished(run())


def test_work_aside_leaves_the_places_of_others_free() -> None:
    asked = [(ASIDE, [Ask("t")])] * 5 + [(PLAIN, [Ask("a")])]
    *traces, other = finished(serving(Worker(0.01), asked, Limits(waiting=16)))
    assert [isinstance(each, FullError) for each in traces] == [False, False, True, True, True]
    assert other[0].answer == "m A"


def test_an_error_is_that_of_its_request() -> None:
    good, bad = finished(serving(Worker(), [(PLAIN, [Ask("a")]), (PLAIN, [Ask("b"), Ask("bad")])]))
    assert isinstance(bad, RegardError)
    assert good[0].answer == "m A"  # type: ignore[index]


def test_limits() -> None:
    full = finished(serving(Worker(0.05), [(PLAIN, [Ask("a")] * 3), (PLAIN, [Ask("b")] * 2)], Limits(waiting=4)))
    assert isinstance(full[1], FullError)
    assert full[1].retry_after >= 1
    assert len(full[0]) == 3  # type: ignore[arg-type]
    assert isinstance(finished(serving(Worker(), [(PLAIN, [Ask("a")] * 5)], Limits(waiting=4)))[0], TooMuchError)
    assert isinstance(finished(serving(Worker(0.3), [(PLAIN, [Ask("a")])], Limits(seconds=0.05)))[0], LateError)
    assert finished(serving(Worker(), [(PLAIN, [])])) == [[]]


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_as_before")
def test_batches_at_once_share_the_cores_and_one_alone_has_them_all() -> None:
    """Four cores and two workers. Torch itself says how many threads a batch has."""
    threads: dict[str, int] = {}
    both = threading.Barrier(2)

    def work(kind: Kind, entries: Sequence[Entry], company: Company) -> list[Outcome]:
        threads[kind.model] = torch.get_num_threads()
        if kind.model != "alone":
            both.wait(20)  # which they pass only if they are worked on at the same time
        return [Outcome(kind.model)] * len(entries)

    async def run() -> None:
        queue = Queue(work, Limits(), Metrics(), workers=2, cores=Cores(4))
        running = asyncio.create_task(queue.run())
        for models in (["alone"], ["one", "other"]):
            await asyncio.gather(*(queue.ask(Kind(model, "translate"), [Ask("a")]) for model in models))
        running.cancel()
        queue.close()

    finished(run())
    assert threads == {"alone": 4, "one": 2, "other": 2}


@pytest.mark.parametrize(("total", "among", "wanted"), [(8, 1, [8, 4, 2]), (8, 2, [4, 4, 2]), (1, 4, [1, 1, 1]), (6, 4, [1, 1, 1])])
def test_no_more_threads_than_cores_where_all_begin_together(total: int, among: int, wanted: list[int]) -> None:
    cores = Cores(total)
    assert [cores.take(among), cores.take(among), cores.take(4)] == wanted
    for _ in range(3):
        cores.give_back()
    assert cores.take() == total


def test_how_long_it_will_take_does_not_depend_on_how_many_work_at_it() -> None:
    """A batch with half of the cores that reads so many tokens in a second: all cores read twice as many."""

    async def run() -> float:
        queue = Queue(Worker(0.2), Limits(), Metrics(), workers=2, cores=Cores(2))
        running = asyncio.create_task(queue.run())
        await asyncio.gather(*(queue.ask(Kind(model, "translate"), [Ask("a", 100)]) for model in ("m", "n")))
        running.cancel()
        queue.close()
        return queue._speed["m", "translate"]

    assert finished(run()) == pytest.approx(1000, rel=0.2)


@pytest.fixture
def _threads_take_turns_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_who_asks_and_who_lets_in_do_not_disturb_each_other() -> None:
    """Two workers let others join all the time, from their own threads, while the event loop counts those who wait to admit more."""
    clients, turns = 240, 25

    def work(kind: Kind, entries: Sequence[Entry], company: Company) -> list[Outcome]:
        here = list(entries)
        while here:
            for entry in here:
                company.settle(entry, Outcome(entry.ask.text))
            here = [*company.more(1, 100), *company.more(2, 100)]
        return []

    async def client(queue: Queue, number: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for turn in range(turns):
            text = f"{number} {turn}"
            try:
                [outcome] = await queue.ask(PLAIN, [Ask(text, 1 + (number + turn) % 20)])
                found["own" if outcome.answer == text else "another's"] += 1
            except FullError:
                found["full"] += 1
            except Exception as error:
                found[repr(error)] += 1
        return found

    async def run() -> Counter[str]:
        queue = Queue(work, Limits(waiting=200), Metrics(), workers=2)
        running = asyncio.create_task(queue.run())
        found = await asyncio.gather(*(client(queue, number) for number in range(clients)))
        assert (len(queue.waiting), sum(queue.waiting.tokens(aside=False).values())) == (0, 0)
        running.cancel()
        queue.close()
        return sum(found, Counter())

    found = finished(run())
    assert set(found) == {"own", "full"}, found
    assert found.total() == clients * turns


def test_what_is_cancelled_is_not_worked_on() -> None:
    async def run() -> Worker:
        worker = Worker(0.1)
        queue = Queue(worker, Limits(waiting=4), Metrics())
        running = asyncio.create_task(queue.run())
        first = asyncio.create_task(queue.ask(PLAIN, [Ask("a")]))
        await asyncio.sleep(0.05)
        leaving = asyncio.create_task(queue.ask(PLAIN, [Ask("b")] * 4))
        await asyncio.sleep(0)
        with pytest.raises(FullError):
            await queue.ask(PLAIN, [Ask("c")])
        leaving.cancel()
        await asyncio.sleep(0)
        [outcome] = await queue.ask(PLAIN, [Ask("c")])
        assert outcome.answer == "m C"
        await first
        queue.closing = True
        with pytest.raises(ClosingError):
            await queue.ask(PLAIN, [Ask("d")])
        running.cancel()
        queue.close()
        return worker

    assert finished(run()).batches == [["a"], ["c"]]
