"""Continuous batching: whoever comes and goes, each source is decoded as if it were alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from regard.decoding import line, many, runner, table
from regard.decoding.line import ALIKE, Line, lines_of
from regard.decoding.many import Load, decode_many
from regard.decoding.pack import packed
from regard.decoding.products import FloatProduct, available
from regard.decoding.runner import Run
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Beam, Length, Method, Rules, Sampling
from regard.decoding.table import Asked, Size, Table, comes_and_goes, decode_as_they_come
from regard.errors import RegardError
from regard.models import Generator, state
from tests.decoding.lively import KINDS, SOURCES, assert_same, decoded, lively, made_lively

RULES = Rules(max_length=Length(plus=4, times=1.0))
METHODS = {
    "greedy": GREEDY,
    "beam": Beam(size=3, n_best=2),
    "groups": Beam(size=4, n_best=3, groups=2),
    "sampling": Sampling(temperature=0.9, top_k=5, seed=3),
}
TRANSFORMERS = [kind for kind in KINDS if not kind.startswith("rnn")]


class Waiting:
    """In the order of a list, so many at a time."""

    def __init__(self, asked: Sequence[Asked], at_once: int = 100) -> None:
        self.asked, self.at_once = list(asked), at_once

    def take(self, most: int, size: Size | None) -> list[Asked]:
        count = 0
        while count < min(most, self.at_once, len(self.asked)) and (size is None or size.fits(self.asked[count])):
            count += 1
        found, self.asked = self.asked[:count], self.asked[count:]
        return found


class Late(Waiting):
    """Two come first, then nobody, then all the others."""

    calls = 0

    def take(self, most: int, size: Size | None) -> list[Asked]:
        self.calls += 1
        self.at_once = 1 if self.calls < 3 else 0 if self.calls < 5 else 12
        return super().take(most, size)


def those(count: int, prefixes: Sequence[Sequence[int]] = ((),)) -> list[Asked]:
    return [Asked(SOURCES[number], number, prefixes[number % len(prefixes)], key=number) for number in range(count)]


def at_a_table(
    model: Generator, asked: Sequence[Asked], method: Method, rules: Rules, size: Size, at_once: int = 100
) -> list[list[Hypothesis]]:
    found: dict[object, list[Hypothesis]] = {}

    def done(one: Asked, hypotheses: list[Hypothesis]) -> None:
        assert one.key not in found
        found[one.key] = hypotheses

    decode_as_they_come(
        model, lambda first: replace(size, read=max(size.read, len(first[0].ids))), Waiting(asked, at_once), done, method, rules
    )
    return [found[one.key] for one in asked]


def alone(model: Generator, asked: Sequence[Asked], method: Method, rules: Rules) -> list[list[Hypothesis]]:
    prefixes = [[*one.prefix] for one in asked] if any(one.prefix for one in asked) else None
    found = []
    for number, one in enumerate(asked):
        found += decoded(
            model, [one.ids], method, rules, numbers=[one.number], prefixes=None if prefixes is None else [prefixes[number]], partial=True
        )
    return found


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_whoever_comes_and_goes_each_is_as_if_alone(kind: str, method: Method) -> None:
    model, asked = lively(kind), those(12)
    wanted = alone(model, asked, method, RULES)
    assert len({len(one[0].tokens) for one in wanted}) > 3  # they do not end together
    assert_same(at_a_table(model, asked, method, RULES, Size(4, 17)), wanted, 1e-9)


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("seats", [1, 3])
def test_one_by_one_and_with_few_seats(at_once: int, seats: int) -> None:
    model, asked = lively("before"), those(9)
    wanted = alone(model, asked, Beam(size=3), RULES)
    assert_same(at_a_table(model, asked, Beam(size=3), RULES, Size(seats, 17), at_once), wanted, 1e-9)


@pytest.mark.parametrize("kind", ["before", "gpt2", "window"])
@pytest.mark.parametrize(
    "rules",
    [
        {"min_length": 6, "no_repeat": 2},
        {"repetition_penalty": 1.5, "banned": ((5, 6), (7,))},
        {"max_length": 1},
        {"never": (4, 9, 12), "min_length": 3},
    ],
    ids=["min_length", "penalty", "one word", "never"],
)
def test_rules_hold_for_each_from_where_it_began(kind: str, rules: dict[str, object]) -> None:
    model, asked = lively(kind), those(10)
    given = Rules(**({"max_length": Length(plus=4, times=1.0)} | rules))
    for method in (GREEDY, Beam(size=3)):
        assert_same(at_a_table(model, asked, method, given, Size(3, 17), 2), alone(model, asked, method, given), 1e-9)


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3)], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_each_has_its_own_prefix(kind: str, method: Method) -> None:
    model, asked = lively(kind), those(9, prefixes=[(), (5, 6, 7), (8,)])
    wanted = alone(model, asked, method, RULES)
    assert [one[0].tokens[: len(each.prefix)] == tuple(each.prefix) for one, each in zip(wanted, asked, strict=True)] == [True] * 9
    assert_same(at_a_table(model, asked, method, RULES, Size(3, 17, 3), 2), wanted, 1e-9)


def test_a_table_grows_and_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes alone, then many, then one: seats are there for those who are, however many there may be."""
    model, asked = lively("before"), those(14)
    seats: list[int] = []
    go_on = Table._go_on
    monkeypatch.setattr(Table, "_go_on", lambda self, run: seats.append(len(self.guests)) or go_on(self, run))

    for method in (GREEDY, Beam(size=3)):
        seats.clear()
        found: dict[object, list[Hypothesis]] = {}
        decode_as_they_come(
            model, lambda _: Size(16, 17), Late(asked), lambda one, some, found=found: found.update({one.key: some}), method, RULES
        )
        assert_same([found[one.key] for one in asked], alone(model, asked, method, RULES), 1e-9)
        assert seats[0] <= 2
        assert max(seats) >= 12
        assert seats[-1] <= 4


def test_required_words() -> None:
    model, asked, rules = lively("before"), those(7), Rules(max_length=Length(plus=8, times=1.0), required=((5,), (9, 11)))
    assert_same(at_a_table(model, asked, Beam(size=4), rules, Size(3, 17), 1), alone(model, asked, Beam(size=4), rules), 1e-9)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_slots_are_cleared_when_there_are_no_more(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only then, as on a GPU."""
    monkeypatch.setattr(state, "CLEAR_EVERY", 10**9)
    monkeypatch.setattr(table, "SLACK", 1.0)
    cleared: list[bool] = []
    clear = state.StackState.clear
    monkeypatch.setattr(state.StackState, "clear", lambda self, *, now=False: cleared.append(now) or clear(self, now=now))
    model, asked = lively("gpt2"), those(24)
    assert_same(at_a_table(model, asked, method, RULES, Size(3, 17)), alone(model, asked, method, RULES), 1e-9)
    assert cleared
    assert all(cleared)


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("method", [GREEDY, Beam(size=4)], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_who_is_done_may_stay_until_somebody_looks(kind: str, method: Method, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where it is looked every eighth position, and texts may be shorter than that."""
    monkeypatch.setitem(runner.CHECK_EVERY, "cpu", 8)
    model, asked, rules = lively(kind), those(9), Rules(max_length=most)
    assert_same(at_a_table(model, asked, method, rules, Size(3, 17)), alone(model, asked, method, rules), 1e-9)


def test_a_model_in_training_decodes_nothing_however_many_there_are(small_machine: list[Size]) -> None:
    model = made_lively(KINDS["before"]).train()
    with pytest.raises(RegardError, match="training mode"):
        decode_many(model, [[*source] for source in SOURCES], GREEDY, RULES)


def test_whoever_does_not_fit_waits_for_a_new_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    begin = Table.__init__
    monkeypatch.setattr(Table, "__init__", lambda self, model, size, *rest: made.append(size.read) or begin(self, model, size, *rest))
    model, asked = lively("before"), those(17)
    asked = sorted(asked, key=lambda one: len(one.ids))
    assert_same(at_a_table(model, asked, GREEDY, RULES, Size(4, 8)), alone(model, asked, GREEDY, RULES), 1e-9)
    assert made == [8, *range(9, 18)]


def test_nothing_left_to_write_is_no_output_of_that_source_alone() -> None:
    model = lively("before")
    rules = Rules(max_length=6, banned=tuple((word,) for word in range(3, model.config.vocabulary)), min_length=3, never=(0, 1))
    asked = those(5, prefixes=[(), (5, 6, 7, 8)])
    wanted = alone(model, asked, GREEDY, rules)
    assert not all(wanted)
    assert any(wanted)
    assert_same(at_a_table(model, asked, GREEDY, rules, Size(2, 17, 4)), wanted, 1e-9)


def test_a_damaged_model_is_an_error() -> None:
    model = made_lively(KINDS["before"])
    with torch.no_grad():
        model.deembed.weight.fill_(float("nan"))
    with pytest.raises(RegardError, match="not numbers"):
        at_a_table(model, those(5), GREEDY, RULES, Size(2, 17))


def test_who_can_come_and_go() -> None:
    assert comes_and_goes(lively("before"), Beam())
    assert comes_and_goes(lively("gpt2"), Sampling())
    assert not comes_and_goes(lively("gpt2"), Sampling(samples=2))
    assert not comes_and_goes(lively("before"), Beam(coverage=0.2))
    assert not comes_and_goes(lively("rnn-attention"), Beam())


# Many sources


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Size]]:
    """Two cores, and tables of few seats; the sizes of those that are made."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(many, "ENOUGH", 8)
    monkeypatch.setattr("regard.decoding.crew.ENOUGH", 8)
    made: list[Size] = []
    begin = Table.__init__
    monkeypatch.setattr(Table, "__init__", lambda self, model, size, *rest: made.append(size) or begin(self, model, size, *rest))
    yield made
    torch.set_num_threads(before)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_a_long_line_is_decoded_at_tables_and_in_order(
    kind: str, method: Method, small_machine: list[Size], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources = lively(kind), [[*source] for source in SOURCES[:40]]
    found = decode_many(model, sources, method, RULES)
    assert len(small_machine) > 2
    assert max(size.seats for size in small_machine) <= 8
    monkeypatch.setattr(many, "comes_and_goes", lambda *given: False)
    assert_same(found, decode_many(model, sources, method, RULES), 1e-9)


@pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
def test_with_the_flat_decoder(small_machine: list[Size]) -> None:
    model, sources = lively("before", torch.float32), [[*source] for source in SOURCES[:40]]
    assert_same(decode_many(packed(model, FloatProduct), sources, Beam(size=3), RULES), decoded(model, sources, Beam(size=3), RULES), 1e-4)
    assert small_machine


def test_few_sources_need_no_table(small_machine: list[Size]) -> None:
    decode_many(lively("before"), [[*source] for source in SOURCES[:3]], GREEDY, RULES)
    assert decode_many(lively("before"), [], GREEDY, RULES) == []
    assert not small_machine


def test_when_one_table_fails_the_others_let_nobody_in(small_machine: list[Size], monkeypatch: pytest.MonkeyPatch) -> None:
    failed, after = threading.Event(), []
    position = Run.position

    def fails(run: Run) -> None:
        if not failed.is_set():
            failed.set()
            raise ValueError("spilt")
        position(run)

    take = Line.take
    monkeypatch.setattr(Run, "position", fails)
    monkeypatch.setattr(Line, "take", lambda self, *given: after.append(take(self, *given)) or after[-1])
    with pytest.raises(ValueError, match="spilt"):
        decode_many(lively("before"), [[*source] for source in SOURCES * 4], GREEDY, RULES)
    assert sum(map(len, after)) < 4 * len(SOURCES) / 2


def test_who_sits_with_whom_is_always_the_same(small_machine: list[Size], monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast each table is: or else what rounds by company would be another answer every time."""
    position, chance, seen = Run.position, random.Random(0), []

    def slow(run: Run) -> None:
        time.sleep(chance.random() * 0.004)
        position(run)

    let_in = Table._let_in
    monkeypatch.setattr(Run, "position", slow)
    monkeypatch.setattr(Table, "_let_in", lambda self, arrived: seen.append(tuple(one.key for one in arrived)) or let_in(self, arrived))
    both = []
    for _ in range(2):
        seen.clear()
        decode_many(lively("before"), [[*source] for source in SOURCES], GREEDY, RULES)
        both.append(sorted(seen))
    assert both[0] == both[1]


def test_without_memory_the_rest_is_decoded_in_batches(small_machine: list[Size], monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources = lively("before"), [[*source] for source in SOURCES[:40]]
    monkeypatch.setattr(many, "crew_for", lambda rows: 1)
    done = line.decode_as_they_come

    def too_much(*given: object) -> None:
        done(*given[:2], Waiting(given[2].take(20, None)), *given[3:])  # type: ignore[arg-type,attr-defined]
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(line, "decode_as_they_come", too_much)
    assert_same(decode_many(model, sources, GREEDY, RULES), decoded(model, sources, GREEDY, RULES), 1e-9)
    assert small_machine


def test_the_line_is_in_order_of_length_and_alike() -> None:
    sources = [[1] * length for length in (3, 10, 7, 2, 9)]
    [waiting] = lines_of(sources, 1, numbers=[5, 6, 7, 8, 9])
    first = waiting.take(1, None)
    assert [(one.key, one.number, len(one.ids)) for one in first] == [(1, 6, 10)]
    size = Size(4, 10)
    assert [len(one.ids) for one in waiting.take(4, size)] == [9, 7]
    assert ALIKE * 10 > 3
    assert waiting.take(4, size) == []
    assert [len(one.ids) for one in waiting.take(1, None)] == [3]
    assert [len(one.ids) for one in waiting.take(4, Size(4, 3))] == [2]
    assert waiting.take(1, None) == []
    both = lines_of(sources, 2)
    assert [[len(one.ids) for one in line.take(9, Size(9, 1))] for line in both] == [[10, 7, 2], [9, 3]]


def test_seats_are_as_many_as_the_machine_bears() -> None:
    load = Load(lively("before"), Beam(size=4), Rules())
    assert load.seats(5) * 4 == many.ENOUGH
    assert load.seats(2000) == 4  # of 8,192 tokens
    assert load.seats(20_000) == 1
