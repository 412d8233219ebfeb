"""On a GPU, where positions are recorded as graphs and replayed, the words and scores are those of the CPU."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch

from regard.data.batch import Tokens
from regard.decoding import many, runner, table
from regard.decoding.kept import Kept
from regard.decoding.many import decode_many
from regard.decoding.replay import Replayed
from regard.decoding.runner import stream
from regard.decoding.sampling import Sampler, uniform
from regard.decoding.search import BeamSearch
from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.errors import ConfigError, RegardError
from regard.models import Generator
from tests.decoding.lively import KINDS, LONGEST, ONE_OF_EACH, SOURCES, assert_lively, assert_same, decoded, lively
from tests.families import sentences

pytestmark = pytest.mark.gpu

DEVICE, WITHIN = "cuda", 1e-4
RECURRENT = ("rnn-attention", "rnn-plain")
METHODS: dict[str, Method] = {
    "greedy": GREEDY,
    "beam": Beam(size=4, n_best=4),
    "short": Beam(size=3, length_penalty=0.0),  # where many sources are done early, and leave
    "groups": Beam(size=4, n_best=4, groups=2),
    "sampling": Sampling(seed=5),
    "filtered": Sampling(temperature=0.8, top_k=12, top_p=0.9, min_p=0.02, samples=2, seed=5),
}
STEERED: dict[str, dict[str, Any]] = {
    "lengths": {"min_length": "0.5x", "max_length": "3+1x"},
    "no_repeat": {"no_repeat": 2},
    "repetition": {"repetition_penalty": 1.3},
    "bans": {"banned": [[12], [16, 23], [28, 25], [17, 17, 17]]},
}


@pytest.fixture(autouse=True)
def _true_float32() -> Iterator[None]:
    """TF32 keeps ten bits of a number, too few for the same words."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def on_cpu(kind: str) -> Generator:
    """In float32; recurrent ones in float64, since what a cell rounds otherwise grows from word to word."""
    return lively(kind, torch.float64 if kind in RECURRENT else torch.float32)


@cache
def moved(kind: str) -> Generator:
    return copy.deepcopy(on_cpu(kind)).to(DEVICE)


class Watched(Replayed):
    """Counts what is recorded and replayed."""

    recorded = replayed = 0

    def __call__(self, *given: Any) -> None:
        graphs, warm = len(self.graphs), self.warm
        super().__call__(*given)
        Watched.recorded += len(self.graphs) - graphs
        Watched.replayed += warm


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(runner, "Replayed", Watched)
    Watched.recorded = Watched.replayed = 0
    return Watched


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_words_and_scores_are_those_of_the_cpu(kind: str, name: str, graphs: type[Watched]) -> None:
    want = decoded(on_cpu(kind), SOURCES, METHODS[name])
    found = decoded(moved(kind), SOURCES, METHODS[name])
    if name in ("greedy", "beam"):
        assert_lively([outputs[0] for outputs in found])
    assert_same(found, want, WITHIN)
    if kind in RECURRENT:
        assert not graphs.replayed
    else:  # all positions but the first and the one that warms up, unless all were done before
        assert graphs.recorded >= 1
        assert graphs.replayed >= 3


@pytest.mark.parametrize("slack", [1.0, table.SLACK])
@pytest.mark.parametrize("name", ["greedy", "beam", "groups", "sampling"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in RECURRENT])
def test_sources_come_and_go(kind: str, name: str, slack: float, graphs: type[Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    """At a table of few seats, whose positions go on being replayed whoever sits there."""
    monkeypatch.setitem(many.ROWS, DEVICE, 24)
    monkeypatch.setattr(table, "SLACK", slack)
    monkeypatch.setitem(runner.CHECK_EVERY, DEVICE, 3)
    tables: list[table.Size] = []
    begin = table.Table.__init__
    monkeypatch.setattr(table.Table, "__init__", lambda self, model, size, *rest: tables.append(size) or begin(self, model, size, *rest))
    sources, rules = [[*source] for source in SOURCES], Rules(max_length=LONGEST)
    want = decoded(on_cpu(kind), SOURCES, METHODS[name], numbers=range(len(SOURCES)))
    assert_same(decode_many(moved(kind), sources, METHODS[name], rules), want, WITHIN)
    assert tables
    assert graphs.replayed > 3 * graphs.recorded


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_and_in_half_precision_what_is_as_probable(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(many.ROWS, DEVICE, 24)
    sources, rules = [[*source] for source in SOURCES], Rules(max_length=LONGEST)
    exact = [outputs[0].score for outputs in decoded(on_cpu(kind), SOURCES, METHODS["beam"])]
    found = decode_many(copy.deepcopy(moved(kind)).to(dtype), sources, METHODS["beam"], rules)
    assert sum(abs(one - outputs[0].score) for one, outputs in zip(exact, found, strict=True)) / len(exact) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_is_recorded_for_each_size_that_attention_reads(kind: str, graphs: type[Watched]) -> None:
    """Eight hypotheses of forty positions are 320 slots, read in steps of 256."""
    rules, beam = Rules(max_length=40, min_length=40), Beam(size=8, n_best=8)
    want = decoded(on_cpu(kind), SOURCES[2:6], beam, rules)
    assert_same(decoded(moved(kind), SOURCES[2:6], beam, rules), want, WITHIN)
    if kind not in RECURRENT:
        assert graphs.recorded == 2
        assert graphs.replayed == 38  # of 40, one starts and one warms up


@pytest.mark.parametrize("name", ["greedy", "short", "sampling"])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_sources_that_are_done_leave(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Often, so that graphs are recorded anew; or never; or as it is."""
    kept: list[int] = []
    for search in (Sampler, BeamSearch):
        keep = search.keep

        def counted(this: Any, sources: Any, keep: Any = keep) -> None:
            kept.append(len(sources))
            keep(this, sources)

        monkeypatch.setattr(search, "keep", counted)
    found = []
    for every, share in ((8, 0.5), (1, 0.999), (1000, -1.0)):
        monkeypatch.setitem(runner.CHECK_EVERY, DEVICE, every)
        monkeypatch.setitem(runner.DROP_AT, DEVICE, share)
        kept.clear()
        found.append(decoded(moved(kind), SOURCES, METHODS[name]))
        assert bool(kept) or share != 0.999
        assert not kept or share > 0
    assert_same(found[0], found[1], WITHIN)
    assert_same(found[0], found[2], WITHIN)


@pytest.mark.parametrize("name", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_gives_the_same_alone_in_a_batch_and_in_any_order(kind: str, name: str) -> None:
    model, numbers = moved(kind), list(range(len(SOURCES)))
    together = decoded(model, SOURCES, METHODS[name], numbers=numbers)
    order = torch.randperm(len(SOURCES), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = decoded(model, [SOURCES[place] for place in order], METHODS[name], numbers=order)
    assert_same(shuffled, [together[place] for place in order], WITHIN)
    for place in (0, 16, 33):
        assert_same(decoded(model, [SOURCES[place]], METHODS[name], numbers=[place]), [together[place]], WITHIN)


@pytest.mark.parametrize("name", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("asked", STEERED)
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_rules_are_those_of_the_cpu(kind: str, asked: str, name: str, graphs: type[Watched]) -> None:
    rules = Rules(**({"max_length": LONGEST} | STEERED[asked]))
    prefixes = [[5, 6, 7][: number % 4] for number in range(len(SOURCES))] if asked != "lengths" else None
    want = decoded(on_cpu(kind), SOURCES, METHODS[name], rules, prefixes=prefixes)
    assert_same(decoded(moved(kind), SOURCES, METHODS[name], rules, prefixes=prefixes), want, WITHIN)
    assert graphs.replayed or kind in RECURRENT


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_required_words_are_those_of_the_cpu(kind: str, graphs: type[Watched]) -> None:
    beam, rules = Beam(size=5), Rules(max_length=LONGEST, required=[[5, 6], [20]])
    sources = [[word + 20 if word in (5, 6, 20) else word for word in source] for source in SOURCES[:16]]
    sources = [[word % 31 for word in source] for source in sources]
    want = decoded(on_cpu(kind), sources, beam, rules)
    assert_same(decoded(moved(kind), sources, beam, rules), want, WITHIN)
    assert graphs.replayed or kind in RECURRENT


@pytest.mark.parametrize("kind", ["before", "relative", "rnn-attention"])
def test_coverage_is_that_of_the_cpu(kind: str) -> None:
    beam = Beam(size=3, n_best=2, coverage=0.3, length_penalty=0.5)
    want = decoded(on_cpu(kind), SOURCES, beam)
    assert_same(decoded(moved(kind), SOURCES, beam), want, WITHIN)


@pytest.mark.parametrize("kind", ["learned", "gpt2", "window"])
def test_prompts_that_fill_the_context_do_not_disturb_others(kind: str) -> None:
    sources, rules = [*SOURCES[:9], *sentences(62, 60, seed=8)], Rules(max_length=100)
    want = decoded(on_cpu(kind), sources, GREEDY, rules)
    assert_same(decoded(moved(kind), sources, GREEDY, rules), want, WITHIN)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), Sampling(seed=5)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_stream_is_that_of_the_cpu(kind: str, sampling: Sampling) -> None:
    for source in SOURCES[2:6]:
        want = tuple(stream(on_cpu(kind), Tokens.pad([source]), sampling, Rules(max_length=LONGEST)))
        assert tuple(stream(moved(kind), Tokens.pad([source], device=DEVICE), sampling, Rules(max_length=LONGEST))) == want


def test_chance_is_that_of_the_cpu() -> None:
    numbers = torch.arange(10_000) * 1_000_003 - 5_000_000
    for seed, place in ((0, 0), (7, 3), (2**62, 500)):
        want = uniform(seed, numbers, torch.tensor([place]))
        assert torch.equal(uniform(seed, numbers.to(DEVICE), torch.tensor([place], device=DEVICE)).cpu(), want)


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3), Sampling()], ids=["greedy", "beam", "sampling"])
def test_what_goes_wrong_is_said(method: Method) -> None:
    with pytest.raises(ConfigError, match="the rules leave no word"):
        decoded(moved("before"), SOURCES[:3], method, Rules(banned=[[word] for word in range(31)]))
    damaged = copy.deepcopy(moved("before"))
    with torch.no_grad():
        damaged.embed.weight[5:].fill_(float("nan"))
    with pytest.raises(RegardError, match="scores that are not numbers"):
        decoded(damaged, SOURCES[:3], method)


@pytest.mark.filterwarnings("ignore:RNN module weights")  # PyTorch lays those of an LSTM together, but not in bfloat16
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_half_precision_finds_what_is_as_probable(kind: str, dtype: torch.dtype) -> None:
    """Other words now and then, but none that the exact model would find much worse."""
    exact = [outputs[0].score for outputs in decoded(moved(kind), SOURCES, METHODS["beam"])]
    rounded = [outputs[0].score for outputs in decoded(copy.deepcopy(moved(kind)).to(dtype), SOURCES, METHODS["beam"])]
    assert sum(abs(a - b) for a, b in zip(exact, rounded, strict=True)) / len(exact) < 0.1


def test_threads_decode_side_by_side() -> None:
    """Graphs are recorded by one at a time, and meanwhile the others go on."""
    model, want = moved("gpt2"), decoded(on_cpu("gpt2"), SOURCES, METHODS["beam"])
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: decoded(model, SOURCES, METHODS["beam"]), range(6)):
            assert_same(found, want, WITHIN)


@pytest.mark.parametrize("name", ["greedy", "beam", "sampling"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in RECURRENT])
def test_what_was_recorded_is_replayed_for_the_next_texts(kind: str, name: str, graphs: type[Watched]) -> None:
    """At tables that are kept: texts of nearly the same length, as many or fewer, and nothing is recorded again."""
    model, kept, rules = moved(kind), Kept(), Rules(max_length=LONGEST)
    recorded = []
    for start, end in ((0, 8), (8, 16), (20, 25), (3, 11)):
        sources, numbers = [[*source] for source in SOURCES[start:end]], range(start, end)
        want = decoded(on_cpu(kind), sources, METHODS[name], rules, numbers=numbers)
        assert_same(decode_many(model, sources, METHODS[name], rules, numbers=numbers, kept=kept), want, WITHIN)
        recorded.append(graphs.recorded)
    assert recorded[0] > 0
    assert recorded == [recorded[0]] * 4


def test_a_kept_table_is_given_up_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    model, kept, rules = moved("before"), Kept(), Rules(max_length=LONGEST)
    sources = [[*source] for source in SOURCES[:8]]
    want = decode_many(model, sources, GREEDY, rules, kept=kept)
    assert [kind.seats for kind in kept.kinds] == [8]

    def too_much(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(table.Table, "_go_on", too_much)
    assert_same(decode_many(model, sources, GREEDY, rules, kept=kept), want, WITHIN)
    assert kept.kinds == []


def test_threads_share_what_is_kept() -> None:
    model, kept, rules = moved("before"), Kept(), Rules(max_length=LONGEST)
    sources = [[*source] for source in SOURCES[:8]]
    want = decode_many(model, sources, METHODS["beam"], rules)
    with ThreadPoolExecutor(3) as threads:
        for found in threads.map(lambda _: decode_many(model, sources, METHODS["beam"], rules, kept=kept), range(12)):
            assert_same(found, want, WITHIN)
    assert 1 <= len(kept.kinds) <= 3
