"""The search of a position as two kernels is the search as PyTorch does it: the same words, of the same hypotheses, with the same scores.

The kernels run on a GPU, or, slowly, on a CPU in Triton's interpreter.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.decoding import fused, many
from regard.decoding.grammar import Grammar
from regard.decoding.many import decode_many
from regard.decoding.rows import Search
from regard.decoding.rules import OFF, Steering
from regard.decoding.sampling import Sampler
from regard.decoding.search import BeamSearch
from regard.decoding.settings import GREEDY, Beam, Length, Method, Rules, Sampling
from regard.decoding.tree import Tree
from tests.decoding.lively import LONGEST, SOURCES, assert_same, lively
from tests.without_gpu import needs_kernels

devices = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=[needs_kernels, pytest.mark.slow]), pytest.param("cuda", marks=pytest.mark.gpu)]
)
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|divide by zero) encountered:RuntimeWarning")  # NumPy's, in the interpreter
END, WITHIN = 2, 2e-5
WORDS = 1024  # of a block


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that few words are several blocks."""
    if fused.HAS_TRITON:
        from regard.decoding import fused_kernels

        assert fused_kernels.BLOCK == WORDS
        monkeypatch.setattr(fused_kernels, "BLOCK", 64)
        monkeypatch.setattr(fused_kernels, "COLUMNS", 4)


def made(
    method: Method, rules: Rules, lengths: Sequence[int], device: str, *, stops: Sequence[int] = (), given: int = 0, room: int | None = None
) -> Any:
    """A search over sources of these lengths."""
    steering = Steering.of(rules, lengths, END, stops=stops, device=device)
    before = torch.arange(given, device=device).expand(len(lengths), -1) if given else None
    if isinstance(method, Beam) and method.size > 1:
        return BeamSearch(method, steering, given=before, room=room)
    sampling = method if isinstance(method, Sampling) else Sampling(temperature=0)
    return Sampler(sampling, steering, torch.arange(len(lengths), device=device), given=before, room=room)


class Logits:
    """Such as a model gives: a slice of longer rows, no two alike in a row, and ends now and then."""

    def __init__(self, vocabulary: int, dtype: torch.dtype, device: str, ends: Sequence[int] = (END,)) -> None:
        self.vocabulary, self.dtype, self.device, self.ends = vocabulary, dtype, device, list(ends)
        self.generator = torch.Generator().manual_seed(vocabulary)
        grid = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
        self.grid = grid[grid.isfinite() & (grid.abs() < 6) & (grid.abs() > 1e-3)].unique()  # what all kinds of numbers hold exactly

    def __call__(self, sources: int, hypotheses: int) -> Tensor:
        rows = sources * hypotheses
        few = min(self.vocabulary, len(self.grid) // 2)  # so that rows differ in what they have; all others are unlikely
        scores = self.grid[torch.rand(rows, len(self.grid), generator=self.generator).argsort(1)[:, :few]]
        scores = torch.cat((scores, -7 - 9 * torch.rand(rows, self.vocabulary - few, generator=self.generator)), 1)
        scores = scores.gather(1, torch.rand(scores.shape, generator=self.generator).argsort(1))
        if self.dtype == torch.float32:  # and of these there are more
            scores = scores + 1e-3 * torch.rand(scores.shape, generator=self.generator)
        likely = torch.rand(rows, len(self.ends), generator=self.generator) < 0.3
        scores[:, self.ends] = torch.where(likely, 6.0 + torch.arange(len(self.ends)) / 4, scores[:, self.ends])
        wide = torch.full((rows, self.vocabulary + 7), 99.0)
        wide[:, : self.vocabulary] = scores
        return wide.view(sources, hypotheses, -1).to(self.device, self.dtype)[..., : self.vocabulary]


def advance(search: Search, logits: Tensor) -> None:
    """With the kernels, where they serve."""
    if isinstance(search, BeamSearch):
        if fused.serves_beam(search, logits):
            fused.beam(search, logits)
        else:
            search.advance(logits)
    else:
        assert isinstance(search, Sampler)
        assert fused.serves_greedy(search, logits)
        fused.greedy(search, logits)


def both(plain: Search, quick: Search, logits: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """One position, in the plain way and in the quick one."""
    with monkeypatch.context() as patch:
        patch.setattr(fused, "HAS_TRITON", False)
        plain.advance(logits.clone())
        advance(quick, logits)
    assert_alike(quick, plain)


def assert_alike(ours: Any, theirs: Any) -> None:
    """In everything that anybody reads."""
    assert torch.equal(ours.open, theirs.open)
    assert torch.equal(ours.written, theirs.written)
    assert torch.equal(ours.broken, theirs.broken)
    if isinstance(ours, Sampler):
        assert torch.equal(ours.stuck, theirs.stuck)
        assert torch.equal(ours.words, theirs.words)
        assert torch.equal(ours.history, theirs.history)
        torch.testing.assert_close(ours.logs, theirs.logs, atol=WITHIN, rtol=0)
        return
    alive = theirs.total[:, 0] > OFF
    torch.testing.assert_close(ours.total, theirs.total, atol=WITHIN, rtol=0)
    for name in ("words", "parents", "history"):
        assert torch.equal(getattr(ours, name)[alive], getattr(theirs, name)[alive]), name
    torch.testing.assert_close(ours.logs[alive], theirs.logs[alive], atol=WITHIN, rtol=0)
    assert int(ours.parents.max()) < ours.hypotheses
    assert int(ours.words.min()) >= 0
    there = theirs.finished.rank > OFF
    torch.testing.assert_close(ours.finished.rank, theirs.finished.rank, atol=WITHIN, rtol=0)
    torch.testing.assert_close(ours.finished.score[there], theirs.finished.score[there], atol=WITHIN, rtol=0)
    for name in ("length", "ended"):
        assert torch.equal(getattr(ours.finished, name)[there], getattr(theirs.finished, name)[there]), name
    read = torch.arange(ours.limit + 1, device=there.device) < theirs.finished.length[..., None]
    read &= there[..., None]
    assert torch.equal(ours.finished.words[read], theirs.finished.words[read])
    torch.testing.assert_close(ours.finished.logs[read], theirs.finished.logs[read], atol=WITHIN, rtol=0)
    every = torch.arange(len(ours.open), device=there.device)
    assert_same(ours.results(every), theirs.results(every), WITHIN)


def run(method: Method, rules: Rules, logits: Logits, device: str, monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    """Until all sources are done, and a position longer."""
    lengths = [1, 6, 3]
    plain, quick = (made(method, rules, lengths, device, **more) for _ in range(2))
    both(plain, quick, logits(len(lengths), 1), monkeypatch)
    going = True
    while going:
        going = bool(plain.open.any())
        both(plain, quick, logits(len(lengths), plain.hypotheses), monkeypatch)
    assert quick.tables is not None
    return quick


METHODS: dict[str, Method] = {
    "greedy": GREEDY,
    "two": Beam(size=2),
    "four": Beam(size=4, length_penalty=0.6, n_best=3),
    "five": Beam(size=5, length_penalty=0.0, n_best=5),
    "eight": Beam(size=8, n_best=2),
}
RULES: dict[str, Rules] = {
    "plain": Rules(max_length="3+1x"),
    "lengths": Rules(max_length="6+1x", min_length="1+1x"),
    "never": Rules(max_length="2+1x", never=[0, 5, 6, 64, 65, 130, 150]),
    "both": Rules(max_length="4+1x", min_length=3, never=[1, 7]),
}


@devices
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", METHODS)
def test_many_positions_are_those_of_pytorch(name: str, rules: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = torch.float32 if rules in ("plain", "both") else torch.bfloat16
    run(METHODS[name], RULES[rules], Logits(151, dtype, device), device, monkeypatch, given=3 if rules == "never" else 0)


@devices
@pytest.mark.parametrize("name", ["greedy", "two", "four", "five"])
def test_several_words_end(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = (END, 70, 3) if name == "four" else (END, 70)
    logits = Logits(128, torch.float16, device, ends)
    run(METHODS[name], Rules(max_length=9, min_length=2), logits, device, monkeypatch, stops=ends[1:])


@devices
@pytest.mark.parametrize("name", ["greedy", "four"])
@pytest.mark.parametrize("vocabulary", [5, 64, 65, 1500])
def test_vocabularies_of_any_size(name: str, vocabulary: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if vocabulary == 1500:
        from regard.decoding import fused_kernels

        monkeypatch.setattr(fused_kernels, "BLOCKS", 4)  # so that blocks are larger
    run(METHODS[name], Rules(max_length=5), Logits(vocabulary, torch.bfloat16, device), device, monkeypatch)


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["greedy", "two"])
def test_blocks_as_large_as_they_are(name: str, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.decoding import fused_kernels

    monkeypatch.setattr(fused_kernels, "BLOCK", WORDS)
    plain, quick = (made(METHODS[name], Rules(max_length=4), [3, 3], device) for _ in range(2))
    logits = Logits(50_257, dtype, device)
    for position in range(3):
        both(plain, quick, logits(2, plain.hypotheses if position else 1), monkeypatch)


@devices
@pytest.mark.parametrize("name", ["greedy", "four"])
def test_sources_leave_and_others_take_their_places(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, rules = METHODS[name], Rules(max_length="6+1x", min_length=4)
    logits = Logits(151, torch.float32, device)
    pair = [made(method, rules, [2, 5, 1], device, given=3, room=16) for _ in range(2)]
    for search in pair:
        search.vacate(torch.arange(3, device=device))

    def seat(lengths: Sequence[int], places: Sequence[int]) -> None:
        new = [made(method, rules, lengths, device, given=2) for _ in range(2)]
        both(*new, logits(len(lengths), 1), monkeypatch)
        for search, comes in zip(pair, new, strict=True):
            search.seat(comes, torch.tensor(places, device=device))

    def go(positions: int) -> None:
        for _ in range(positions):
            both(*pair, logits(len(pair[0].open), pair[0].hypotheses), monkeypatch)

    go(1)  # nobody is there
    seat([2, 9], [0, 2])
    go(3)
    tables = pair[1].tables
    seat([4], [1])
    go(2)
    for search in pair:
        search.keep(torch.tensor([2, 1, 0, 0, 0], device=device))
        search.vacate(torch.tensor([3, 4], device=device))
    go(2)
    seat([1, 7], [4, 3])
    go(18)
    assert pair[1].tables is tables
    assert not pair[1].open.any()
    assert int(pair[1].written.min()) >= 4


@devices
@pytest.mark.parametrize("name", ["greedy", "two", "five"])
def test_nothing_may_be_written(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = Rules(max_length=6, min_length=3, never=[word for word in range(70) if word != END])
    plain, quick = (made(METHODS[name], rules, [3, 3], device) for _ in range(2))
    logits = Logits(70, torch.bfloat16, device)
    for position in range(3):
        both(plain, quick, logits(2, plain.hypotheses if position else 1), monkeypatch)
    assert not quick.broken
    assert quick.stuck.all() if isinstance(quick, Sampler) else not quick.open.any()


@devices
@pytest.mark.parametrize("word", [0, 63, 64, 150])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["greedy", "four"])
def test_what_is_no_number_is_noticed(name: str, number: float, word: int, device: str) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        search, logits = made(METHODS[name], Rules(max_length=9, never=[64]), [3, 3, 3], device), Logits(151, dtype, device)
        search.advance(logits(3, 1))
        advance(search, logits(3, search.hypotheses))
        assert not search.broken
        damaged = logits(3, search.hypotheses)
        damaged[1, -1, word] = number
        advance(search, damaged)
        assert search.broken
        assert int(search.words.max()) < 151  # or else the next position would read beyond the embedding


@devices
@pytest.mark.parametrize("name", ["greedy", "four"])
def test_a_whole_row_without_a_word_is_noticed_and_a_block_is_not(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, quick = (made(METHODS[name], Rules(max_length=9), [3, 3], device) for _ in range(2))
    logits = Logits(151, torch.float32, device)
    both(plain, quick, logits(2, 1), monkeypatch)
    empty = logits(2, plain.hypotheses)
    empty[..., 64:128] = OFF
    both(plain, quick, empty, monkeypatch)
    assert not quick.broken
    empty = empty.clone()
    empty[0, 0] = OFF
    advance(quick, empty)
    assert quick.broken


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_of_equals_the_first_is_chosen(dtype: torch.dtype, device: str) -> None:
    """Where PyTorch may take any."""
    scores = torch.randint(-3, 3, (6, 1, 300), generator=torch.Generator().manual_seed(4)).to(device, dtype)
    scores[scores == 0] *= -1  # one zero is as good as another
    scores[0], scores[1] = 0.0, scores[1].clamp(max=0)
    scores[0, 0, :200] = -0.0
    greedy = made(GREEDY, Rules(max_length=9), [3] * 6, device)
    advance(greedy, scores)
    assert greedy.words[:, 0].tolist() == [int((row == row.max()).nonzero()[0]) for row in scores[:, 0]]
    beam = made(Beam(size=3), Rules(max_length=9), [3] * 2, device)
    beam.advance(torch.randn(2, 1, 300, device=device))
    before = beam.total[:, 0, :, None]
    scores = scores.view(2, 3, 300)
    scores[..., END] = -9.0
    ranks = before + scores.float().log_softmax(-1)
    order = ranks.flatten(1).argsort(dim=1, descending=True, stable=True)[:, :3]
    advance(beam, scores)
    assert torch.equal(beam.parents * 300 + beam.words, order)


@devices
def test_of_equals_what_was_finished_first_stays_first(device: str) -> None:
    search = made(Beam(size=3, n_best=3), Rules(max_length=9), [3], device)
    logits = torch.randn(1, 3, 70, generator=torch.Generator().manual_seed(1)).to(device)
    logits[..., END] = torch.tensor([9.0, -9.0, 8.0], device=device)
    search.advance(logits[:, :1] * (torch.arange(70, device=device) != END))
    trial = copy.deepcopy(search)
    advance(trial, logits)
    found = trial.finished.rank[0, 0]
    assert (found > OFF).tolist() == [True, True, False]
    search.finished.rank[0, 0, 0], search.finished.length[0, 0, 0] = found[0], 7
    advance(search, logits)
    assert search.finished.length[0, 0].tolist() == [7, 2, 2]
    assert torch.equal(search.finished.rank[0, 0], found[[0, 0, 1]])


class Quick:
    """Counts the positions that the kernels search."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(fused, "greedy", partial(self.counted, fused.greedy))
        monkeypatch.setattr(fused, "beam", partial(self.counted, fused.beam))

    def counted(self, search: Any, *given: Any) -> None:
        self.count += 1
        search(*given)


@pytest.mark.gpu
@pytest.mark.parametrize("seats", [8, 200])
@pytest.mark.parametrize("method", [GREEDY, Beam(size=4, n_best=2), Beam(size=5, length_penalty=0.6)], ids=str)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_what_is_decoded_is_the_same(kind: str, method: Method, seats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With positions recorded and replayed, and sources that come and go."""
    monkeypatch.setitem(many.ROWS, "cuda", seats)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    model, sources = copy.deepcopy(lively(kind, torch.float32)).to("cuda"), [[*source] for source in SOURCES]
    rules = Rules(max_length=Length(plus=LONGEST), min_length=Length(plus=2), never=(4,))
    quick = Quick(monkeypatch)
    found = decode_many(model, sources, method, rules)
    assert quick.count >= 2
    before = quick.count
    monkeypatch.setattr(fused, "HAS_TRITON", False)
    want = decode_many(model, sources, method, rules)
    torch.backends.cuda.matmul.allow_tf32 = allowed
    assert quick.count == before
    assert_same(found, want, 1e-4)


REFUSED: dict[str, Any] = {
    "no_repeat": 2,
    "repetition_penalty": 1.2,
    "banned": [[5]],
    "required": [[5]],
    "grammar": Grammar(kinds=(0,) * 9, follows=((0,),)),
}


@pytest.mark.parametrize("rule", [name for name in Rules.model_fields if name not in ("max_length", "min_length", "never")])
def test_other_rules_are_left_to_pytorch(rule: str) -> None:
    rules, logits = Rules(**{rule: REFUSED[rule]}), torch.zeros(1, 4, 9)
    assert not fused.serves_greedy(made(GREEDY, rules, [3], "cpu"), logits[:, :1])
    assert not fused.serves_beam(wide(made(Beam(size=4), rules, [3], "cpu")), logits)


def wide(search: BeamSearch) -> BeamSearch:
    """With all its hypotheses, though nobody writes there."""
    search.vacate(torch.arange(len(search.open)))
    return search


def test_what_is_served() -> None:
    logits, rules = torch.zeros(1, 4, 9), Rules(min_length=2, never=[4])
    sampler, beam = made(GREEDY, rules, [3], "cpu"), wide(made(Beam(size=4), rules, [3], "cpu"))
    assert fused.serves_greedy(sampler, logits[:, :1])
    assert fused.serves_beam(beam, logits)
    assert not fused.suits_greedy(sampler, logits[:, :1])  # no kernel runs here
    assert not fused.suits_beam(beam, logits, None)
    assert not fused.serves_greedy(sampler, logits[:, :1].double())
    assert not fused.serves_beam(beam, logits[..., ::2])
    assert not fused.serves_greedy(made(Sampling(), rules, [3], "cpu"), logits[:, :1])
    assert not fused.serves_beam(made(Beam(size=4), rules, [3], "cpu"), logits[:, :1])
    for other in (Beam(size=4, groups=2), Beam(size=4, coverage=0.1), Beam(size=9)):
        assert not fused.serves_beam(wide(made(other, rules, [3], "cpu")), torch.zeros(1, other.size, 9))
    assert not fused.serves_beam(wide(made(Beam(size=8), rules, [3], "cpu", stops=[5])), torch.zeros(1, 8, 9))
    forced = Steering.of(rules, [3], END, prefixes=[[5]])
    assert not fused.serves_greedy(Sampler(Sampling(temperature=0), forced, torch.arange(1)), logits[:, :1])
    assert not fused.serves_beam(wide(BeamSearch(Beam(size=4), forced)), logits)
    sampler.tree = beam.tree = Tree()
    assert not fused.serves_greedy(sampler, logits[:, :1])
    assert not fused.serves_beam(beam, logits)
