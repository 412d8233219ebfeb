"""Texts that are decoded as they come: each has the answer that it would have alone, and as soon as it is there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from regard.decoding import table as decoder
from regard.decoding.runner import Run
from regard.door import Model
from regard.door.one_by_one import OneByOne
from regard.errors import ConfigError, RegardError
from regard.serve.arrivals import Arrivals
from regard.serve.cores import Cores
from regard.serve.metrics import Metrics
from regard.serve.queue import Ask, Company, Entry, Job, Kind, Outcome, Queue
from regard.serve.settings import Limits
from regard.serve.trace_work import Remembered
from regard.serve.work import work

KIND = Kind("translator", "translate")
TEXTS = ["1 2 3", "4 5 6 7 8", "9", "", "2 2 2 2", "7 1", "3 4 5 6"]


def entry(text: str, kind: Kind = KIND, to: str | None = "back", **more: Any) -> Entry:
    return Entry(kind, Ask(text, len(text), to=to, **more), job=SimpleNamespace(done=SimpleNamespace(done=lambda: False)))  # type: ignore[arg-type]


class Others:
    """Who come later, one at a time, and what became of everyone."""

    def __init__(self, waiting: Sequence[Entry] = ()) -> None:
        self.waiting, self.outcomes = list(waiting), dict[str, Outcome]()

    def more(self, most: int, tokens: int) -> list[Entry]:
        assert most > 0
        return [self.waiting.pop(0)] if self.waiting else []

    def settle(self, entry: Entry, outcome: Outcome) -> None:
        assert entry.ask.text not in self.outcomes
        self.outcomes[entry.ask.text] = outcome


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"temperature": 0.9, "seed": 4}, {"n_best": 2, "no_repeat": 2}], ids=str)
def test_answers_are_those_of_each_alone(models: dict[str, Model], options: dict[str, Any]) -> None:
    model = models["translator"]
    entries = [entry(text, number=place) for place, text in enumerate(TEXTS)]
    others = Others(entries[2:])
    Arrivals(model, OneByOne(model, "translate", options), entries[:2], others, tables=2).decode()
    wanted = {text: model.translate([text], "back", numbers=[place], **options)[0] for place, text in enumerate(TEXTS)}
    assert {text: outcome.answer.text for text, outcome in others.outcomes.items()} == {text: one.text for text, one in wanted.items()}
    for text, one in wanted.items():
        found = others.outcomes[text].answer
        assert [other.text for other in found.alternatives] == [other.text for other in one.alternatives]
        assert found.score == pytest.approx(one.score, abs=1e-4)


def test_prompts_too(models: dict[str, Model]) -> None:
    model, options = models["writer"], {"temperature": 0.7, "seed": 1, "max_length": "8"}
    prompts = ["the cat", "a", "my sister reads", ""]
    others = Others([entry(text, to=None, number=place) for place, text in enumerate(prompts)])
    Arrivals(model, OneByOne(model, "generate", options), [others.waiting.pop(0)], others, tables=1).decode()  # type: ignore[arg-type]
    wanted = model.generate(prompts, numbers=range(4), **options)  # type: ignore[arg-type]
    assert [others.outcomes[text].answer.text for text in prompts] == [one.text for one in wanted]


@pytest.mark.filterwarnings("ignore:.*translated in")
def test_a_long_text_is_in_parts_and_says_so_and_each_has_its_own_prefix(models: dict[str, Model]) -> None:
    model = models["translator"]
    long = " ".join("12345678" for _ in range(30))
    others = Others([entry("1 2 3", prefix="9 9", place=4), entry("5 5")])
    Arrivals(model, OneByOne(model, "translate", {}), [entry(long, place=2)], others, tables=1).decode()
    assert others.outcomes[long].answer.text == model.translate(long, "back").text
    assert [warning.split(":")[0] for warning in others.outcomes[long].warnings] == ["text 3"]
    assert others.outcomes["1 2 3"].answer.text == model.translate("1 2 3", "back", prefix="9 9").text
    assert others.outcomes["5 5"].answer.text == model.translate("5 5", "back").text


def test_what_is_wrong_with_one_is_said_of_it_alone(models: dict[str, Model]) -> None:
    model = models["translator"]
    others = Others([entry("4 4", to="klingon")])
    Arrivals(model, OneByOne(model, "translate", {}), [entry("1 2")], others, tables=1).decode()
    assert isinstance(others.outcomes["4 4"].error, ConfigError)
    assert others.outcomes["1 2"].answer.text == model.translate("1 2", "back").text


def test_what_goes_wrong_at_the_table_is_tried_again_request_by_request(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    position, failed = Run.position, []

    def fails_once(run: Run) -> None:
        if not failed:
            failed.append(True)
            raise RuntimeError("spilt")
        position(run)

    monkeypatch.setattr(Run, "position", fails_once)
    others = Others()
    assert work(models, Remembered(), 1, KIND, [entry("1 2"), entry("3 4")], others) == []
    wanted = [one.text for one in models["translator"].translate(["1 2", "3 4"], "back")]
    assert [others.outcomes[text].answer.text for text in ("1 2", "3 4")] == wanted
    assert "tried again" in caplog.text


def test_long_prompts_have_a_table_too(models: dict[str, Model], caplog: pytest.LogCaptureFixture) -> None:
    """A prompt that takes nearly all of the context leaves room for a word or two."""
    model = models["writer"]
    words = " ".join(["the cat sat on the mat"] * 40)
    while len(model.tokenizer.encode(words)) > model.config.context - 4:
        words = words[:-1]
    kind = Kind("writer", "generate", (("beam_size", 1), ("max_length", "8")))
    others = Others([entry("the dog", kind, to=None)])
    assert work(models, Remembered(), 1, kind, [entry(words, kind, to=None)], others) == []
    assert not caplog.text
    wanted = model.generate([words, "the dog"], beam_size=1, max_length="8")  # type: ignore[call-overload]
    assert [others.outcomes[text].answer.text for text in (words, "the dog")] == [one.text for one in wanted]


def test_all_that_are_here_fit_the_table_that_is_laid(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    laid = []
    begin = decoder.Table.__init__
    monkeypatch.setattr(decoder.Table, "__init__", lambda self, model, size, *rest: laid.append(size) or begin(self, model, size, *rest))
    monkeypatch.setattr("regard.serve.arrivals.roundly", lambda length, *_: length)
    model, others = models["translator"], Others()
    Arrivals(model, OneByOne(model, "translate", {}), [entry(text) for text in ("1 2", "3 4 5 6 7 8 9 1 2", "5")], others, 1).decode()
    assert len(laid) == 1
    assert len(others.outcomes) == 3


def test_whoever_has_gone_takes_no_seat(models: dict[str, Model]) -> None:
    gone = Entry(KIND, Ask("4 4", 3, to="back"), job=SimpleNamespace(done=SimpleNamespace(done=lambda: True)))  # type: ignore[arg-type]
    others, model = Others([gone, entry("5")]), models["translator"]
    Arrivals(model, OneByOne(model, "translate", {}), [entry("1 2")], others, 1).decode()
    assert others.outcomes["4 4"].answer is None
    assert others.outcomes["5"].answer.text == model.translate("5", "back").text


def test_where_no_text_of_a_request_has_an_output_that_is_an_error(models: dict[str, Model]) -> None:
    model, rules = models["translator"], {"require": ["3 4 5 6 7"], "max_length": "2"}
    writing = OneByOne(model, "translate", rules)  # type: ignore[arg-type]
    others = Others()
    Arrivals(model, writing, [entry("1 2"), entry("")], others, 1).decode()
    assert isinstance(others.outcomes["1 2"].nothing, ConfigError)
    assert others.outcomes[""].empty

    async def settled(outcomes: Sequence[Outcome]) -> BaseException | None:
        job = Job(asyncio.get_running_loop().create_future(), [None] * len(outcomes))
        for place, outcome in enumerate(outcomes):
            job.settle(place, outcome)
        return job.done.exception()

    with ThreadPoolExecutor(1) as apart:
        both, answered = (
            apart.submit(asyncio.run, settled(each)).result()
            for each in (list(others.outcomes.values()), [*others.outcomes.values(), Outcome("an answer")])
        )
    assert isinstance(both, ConfigError)
    assert answered is None


def test_samples_belong_together_and_are_worked_on_in_a_batch(models: dict[str, Model]) -> None:
    kind = Kind("translator", "translate", (("samples", 2), ("temperature", 1.0)))
    outcomes = work(models, Remembered(), 1, kind, [entry("1 2", kind)], Others())
    assert len(outcomes[0].answer.alternatives) == 1


# In the queue


class Table:
    """Work that lets others in for as long as the test likes."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.joined: list[list[str]] = []
        self.seats = 2

    def __call__(self, kind: Kind, entries: Sequence[Entry], company: Company) -> list[Outcome]:
        self.begun.set()
        assert self.go.wait(20)
        joined = company.more(self.seats, 50)
        self.joined.append([each.ask.text for each in joined])
        for each in joined:
            company.settle(each, Outcome(each.ask.text.upper()))
        if kind.model == "fails":
            raise RegardError("spilt")
        return [Outcome(each.ask.text.upper()) for each in entries]


def queued(table: Table, first: Kind, then: Sequence[tuple[Kind, Sequence[Ask]]]) -> list[Any]:
    async def run() -> list[Any]:
        queue = Queue(table, Limits(), Metrics(), workers=1, cores=Cores(2))
        running = asyncio.create_task(queue.run())
        asked = [asyncio.create_task(queue.ask(first, [Ask("first", 5)]))]
        await asyncio.to_thread(table.begun.wait, 20)
        asked += [asyncio.create_task(queue.ask(kind, asks)) for kind, asks in then]
        await asyncio.sleep(0.05)
        table.go.set()
        try:
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            running.cancel()
            queue.close()

    with ThreadPoolExecutor(1) as apart:
        return apart.submit(asyncio.run, run()).result()


def test_others_of_the_kind_join_in_the_order_they_came() -> None:
    table, kind = Table(), Kind("m", "translate")
    found = queued(table, kind, [(kind, [Ask("a", 5), Ask("b", 5)]), (kind, [Ask("c", 5)])])
    assert table.joined[0] == ["a", "b"]
    assert [[outcome.answer for outcome in each] for each in found] == [["FIRST"], ["A", "B"], ["C"]]


def test_nobody_is_passed_over_by_whoever_came_later() -> None:
    kind, other = Kind("m", "translate"), Kind("n", "translate")
    for hindered in ((other, [Ask("x", 5)]), (kind, [Ask("long", 500)])):
        table = Table()
        found = queued(table, kind, [hindered, (kind, [Ask("c", 5)])])
        assert table.joined[0] == []
        assert found[2][0].answer == "C"


def test_a_failure_is_that_of_those_who_have_no_answer_yet() -> None:
    table, kind = Table(), Kind("fails", "translate")
    found = queued(table, kind, [(kind, [Ask("a", 5)])])
    assert isinstance(found[0], RegardError)
    assert found[1][0].answer == "A"


def test_whoever_waits_when_it_closes_holds_up_nobody() -> None:
    """The thread that works lets others in without the event loop, which may be waiting for it."""
    table, kind, other = Table(), Kind("m", "translate"), Kind("n", "translate")

    async def run() -> None:
        queue = Queue(table, Limits(), Metrics(), workers=1, cores=Cores(2))
        running = asyncio.create_task(queue.run())
        asked = [asyncio.create_task(queue.ask(kind, [Ask("first", 5)]))]
        await asyncio.to_thread(table.begun.wait, 20)
        asked += [asyncio.create_task(queue.ask(each, [Ask("a", 5)])) for each in (other, kind)]
        await asyncio.sleep(0.05)
        running.cancel()
        threading.Timer(0.2, table.go.set).start()
        queue.close()  # which keeps the event loop busy until the work is done
        for each in asked:
            each.cancel()

    with ThreadPoolExecutor(1) as apart:
        apart.submit(asyncio.run, run()).result(timeout=20)
    assert table.joined == [[]]
