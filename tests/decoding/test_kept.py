"""Tables that are kept for whoever comes next: each source is decoded as if it were alone, and at a new table."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
import torch

from regard.data.batch import Tokens
from regard.decoding import kept, many, table
from regard.decoding.kept import Kept, roundly
from regard.decoding.line import decode_in_lines, lines_of
from regard.decoding.many import decode_many
from regard.decoding.runner import Run
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.decoding.table import Asked, Size, Table, decode_as_they_come
from regard.models import Generator
from regard.nn import record, using
from tests.decoding.lively import assert_same, lively
from tests.decoding.test_table import METHODS, RULES, TRANSFORMERS, Late, Waiting, alone, those


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seats of all tables that are new."""
    made: list[int] = []
    new = Table._new
    monkeypatch.setattr(Table, "_new", lambda self, like, seats: made.append(seats) or new(self, like, seats))
    return made


def served(
    model: Generator, asked: Sequence[Asked], method: Method, rules: Rules, tables: Kept, size: Size, waiting: Waiting | None = None
) -> list[list[Hypothesis]]:
    found: dict[object, list[Hypothesis]] = {}
    decode_as_they_come(
        model, lambda _: size, waiting or Waiting(asked), lambda one, some: found.update({one.key: some}), method, rules, tables
    )
    return [found[one.key] for one in asked]


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_at_a_table_used_before_each_is_as_if_alone(kind: str, method: Method, laid: list[int]) -> None:
    model, tables, everybody = lively(kind), Kept(), those(22)
    for asked in (everybody[:4], everybody[10:13], everybody[13:22], everybody[4:8]):
        assert_same(served(model, asked, method, RULES, tables, Size(4, 32)), alone(model, asked, method, RULES), 1e-9)
    assert laid == [4]


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3, n_best=2)], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_with_prefixes(kind: str, method: Method, laid: list[int]) -> None:
    model, tables = lively(kind), Kept()
    for given in ([(5, 6, 7), ()], [(8,), (9, 10, 11)], [()]):
        asked = those(4, prefixes=given)
        assert_same(served(model, asked, method, RULES, tables, Size(4, 32, 3)), alone(model, asked, method, RULES), 1e-9)
    assert laid == [4]


@pytest.mark.parametrize("kind", ["before", "gpt2", "window"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_whoever_comes_late_all_move_to_a_larger_table_and_back(
    kind: str, method: Method, laid: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "FEW", 0)
    moved: list[tuple[int, int]] = []
    move = Table._move
    monkeypatch.setattr(Table, "_move", lambda self, run, seats: moved.append((len(self.guests), seats)) or move(self, run, seats))
    model, tables, asked = lively(kind), Kept(), those(14)
    for _ in range(2):
        found = served(model, asked, method, RULES, tables, Size(16, 32), Late(asked))
        assert_same(found, alone(model, asked, method, RULES), 1e-9)
    assert any(before < after for before, after in moved)
    assert any(before > after for before, after in moved)
    assert len(laid) == len(set(laid)) <= 5  # 1, 2, 4, 8 and 16: each of them once


@pytest.mark.parametrize("before", [[], [2], [4, 2, 1]])
def test_how_many_rows_are_computed_does_not_depend_on_what_was_decoded_before(
    before: list[int], laid: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else half precision would round otherwise, and the same command might write other words."""
    seats: list[int] = []
    go_on = Table._go_on
    model, tables, asked = lively("before"), Kept(), those(8)
    for count in before:
        served(model, asked[:count], GREEDY, RULES, tables, Size(8, 32))
    monkeypatch.setattr(Table, "_go_on", lambda self, run: seats.append(len(self.guests)) or go_on(self, run))
    served(model, asked, GREEDY, RULES, tables, Size(8, 32))
    wanted = list(seats)
    seats.clear()
    served(model, asked, GREEDY, RULES, Kept(), Size(8, 32))
    assert seats == wanted


def test_many_rows_move_together(laid: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FEW", 4)
    model, asked = lively("before"), those(8)
    assert_same(served(model, asked, GREEDY, RULES, Kept(), Size(8, 32)), alone(model, asked, GREEDY, RULES), 1e-9)
    assert laid[0] == 8
    assert min(laid) < 8


def test_what_differs_has_another_table(laid: list[int]) -> None:
    model, tables, asked = lively("before"), Kept(), those(2)
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    served(lively("gpt2"), asked, GREEDY, RULES, tables, Size(2, 32))
    served(model, asked, Beam(size=2), RULES, tables, Size(2, 32))
    served(model, asked, GREEDY, RULES.model_copy(update={"no_repeat": 2}), tables, Size(2, 32))
    served(model, asked, GREEDY, RULES, tables, Size(2, 64))
    served(model, asked, GREEDY, RULES, tables, Size(2, 32, 1))
    assert laid == [2] * 6
    served(model, asked, GREEDY, Rules(**RULES.model_dump()), tables, Size(2, 32))
    assert laid == [2] * 6


def test_when_weights_are_elsewhere_so_is_what_was_recorded(laid: list[int]) -> None:
    model, tables, asked = copy.deepcopy(lively("before")), Kept(), those(2)
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    with torch.no_grad():
        model.embed.weight.mul_(1.0)  # as an optimiser would
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    assert laid == [2]
    model.float()
    assert_same(served(model, asked, GREEDY, RULES, tables, Size(2, 32)), alone(model, asked, GREEDY, RULES), 1e-5)
    assert laid == [2, 2]


def test_where_hooks_listen_no_table_is_used_again(laid: list[int]) -> None:
    """What was recorded there calls none of them, and what is laid with them is not for those who come without."""
    model, tables, asked = copy.deepcopy(lively("before")), Kept(), those(2)
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    handle = model.register_forward_hook(lambda *_: None)
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    assert laid[:2] == [2, 2]
    handle.remove()
    new = len(laid)
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    assert len(laid) == new
    assert len(tables.kinds) == 1


def test_a_table_where_something_failed_is_not_kept(laid: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    model, tables, asked = lively("before"), Kept(), those(2)
    position = Run.position

    def fails(run: Run) -> None:
        monkeypatch.setattr(Run, "position", position)
        raise ValueError("spilt")

    monkeypatch.setattr(Run, "position", fails)
    with pytest.raises(ValueError, match="spilt"):
        served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    assert_same(served(model, asked, GREEDY, RULES, tables, Size(2, 32)), alone(model, asked, GREEDY, RULES), 1e-9)
    assert laid == [2, 2]


def test_those_used_last_are_kept(laid: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST", 2)
    model, tables, asked = lively("before"), Kept(), those(4)
    for count in (4, 2, 1, 2, 4):
        served(model, asked[:count], GREEDY, RULES, tables, Size(4, 32))
    assert laid == [4, 2, 1, 4]
    monkeypatch.setattr(kept, "BYTES", 1)
    served(model, asked[:2], GREEDY, RULES, tables, Size(4, 32))
    assert [kind.seats for kind in tables.kinds] == [4]


def test_a_table_too_large_to_be_kept_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tables, asked = lively("before"), Kept(), those(8)
    for count in (1, 2):
        served(model, asked[:count], GREEDY, RULES, tables, Size(8, 32))
    monkeypatch.setattr(kept, "BYTES", sum(laid.bytes for laid in tables._laid))
    served(model, asked, GREEDY, RULES, tables, Size(8, 32))
    assert [kind.seats for kind in tables.kinds] == [1, 2]


def test_kept_tables_can_be_given_up() -> None:
    model, tables = lively("before"), Kept()
    served(model, those(2), GREEDY, RULES, tables, Size(2, 32))
    [kind] = tables.kinds
    tables.clear()
    assert tables.kinds == []
    assert tables.take(kind) is None


def test_weights_that_are_replaced_while_a_table_is_in_use(laid: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was recorded reads them where they were."""
    model, tables, asked = copy.deepcopy(lively("before")), Kept(), those(2)
    position = Run.position

    def replaces(run: Run) -> None:
        monkeypatch.setattr(Run, "position", position)
        position(run)
        model.embed.weight.data = model.embed.weight.data.clone()

    monkeypatch.setattr(Run, "position", replaces)
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    served(model, asked, GREEDY, RULES, tables, Size(2, 32))
    assert laid == [2, 2]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_threads_share_what_is_kept(kind: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FEW", 0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        model, tables, asked = lively(kind), Kept(), those(14)
        wanted = alone(model, asked, method, RULES)
        with ThreadPoolExecutor(3) as threads:
            for found in threads.map(lambda _: served(model, asked, method, RULES, tables, Size(16, 32), Late(asked)), range(6)):
                assert_same(found, wanted, 1e-9)
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("holds", [lambda model: using("explicit"), record, lambda model: torch.autocast("cpu", torch.bfloat16)])
def test_what_holds_for_one_thread_alone_is_not_kept(holds: Callable[[Generator], AbstractContextManager[object]]) -> None:
    model, tables, sources = lively("before", torch.float32), Kept(), [[5, 6, 7], [8, 9]]
    decode_many(model, sources, GREEDY, RULES, kept=tables)
    assert len(tables.kinds) == 1
    taken = Kept.take
    with pytest.MonkeyPatch.context() as patched, holds(model):
        patched.setattr(Kept, "take", lambda self, kind: pytest.fail("it was taken"))
        decode_many(model, sources, GREEDY, RULES, kept=tables)
    assert Kept.take is taken
    assert len(tables.kinds) == 1


def test_where_memory_is_short_tables_are_given_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what is decoded without one, which is then done whole."""
    model, tables, sources = lively("before"), Kept(), [[5, 6, 7], [8, 9]]
    several = Sampling(samples=2)
    wanted = decode_many(model, sources, several, RULES)
    decode_many(model, sources, GREEDY, RULES, kept=tables)
    decode, sizes = many.decode, list[int]()

    def short(model: Generator, tokens: Tokens, *given: object, **options: object) -> list[list[Hypothesis]]:
        if tables.kinds:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(tokens.ids))
        return decode(model, tokens, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(many, "decode", short)
    assert_same(decode_many(model, sources, several, RULES, kept=tables), wanted, 1e-9)
    assert tables.kinds == []
    assert sizes == [1, 1]


def test_lines_of_nearly_the_same_length_find_the_same_table(laid: list[int]) -> None:
    model, tables = lively("before"), Kept()
    for sources in ([[5] * 9, [6] * 4], [[7] * 11, [8] * 3], [[9] * 2, [3] * 30]):
        found: dict[int, list[Hypothesis]] = {}
        decode_in_lines(model, lines_of(sources, 1), lambda longest: 8, GREEDY, RULES, found, tables)
        wanted = alone(model, [Asked(source, number) for number, source in enumerate(sources)], GREEDY, RULES)
        assert_same([found[0], found[1]], wanted, 1e-9)
    assert laid == [2]


def test_lengths_in_steps() -> None:
    assert [roundly(length, 100) for length in (1, 32, 33, 97, 100, 120)] == [32, 32, 64, 100, 100, 120]
    assert [roundly(length, 2048) for length in (65, 97, 129, 600, 1025)] == [96, 128, 256, 1024, 2048]
    assert [roundly(length, 100, 8) for length in (1, 9, 33)] == [8, 16, 64]


def test_those_at_a_table_are_alike_however_much_room_it_has() -> None:
    [waiting] = lines_of([[1] * length for length in (33, 25, 20, 19, 12, 5)], 1)
    assert [len(one.ids) for one in waiting.take(1, None)] == [33]
    assert [len(one.ids) for one in waiting.take(4, Size(5, 64))] == [25, 20]
    assert [len(one.ids) for one in waiting.take(1, None)] == [19]
    assert [len(one.ids) for one in waiting.take(4, Size(5, 32))] == [12]
