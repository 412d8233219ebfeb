"""What a search finds is the model's own, and depends on nothing but the source: not on the batch, the padding, the cache or packing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding import runner
from regard.decoding.pack import packed
from regard.decoding.products import FloatProduct, available
from regard.decoding.ready import made_ready
from regard.decoding.runner import decode
from regard.decoding.sampling import Sampler
from regard.decoding.search import BeamSearch, Hypothesis
from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.errors import ConfigError, RegardError
from regard.models import Generator, LanguageModel
from regard.nn import record, using
from tests.decoding.lively import END, KINDS, LONGEST, ONE_OF_EACH, SOURCES, assert_lively, assert_same, decoded, lively
from tests.decoding.plain import log_probabilities, plain_beam_search
from tests.families import sentences

BEAM = Beam(size=4, n_best=4)
METHODS = [GREEDY, BEAM]
NAMES = ["greedy", "beam"]


def with_end(output: Hypothesis) -> list[int]:
    return [*output.tokens, END] if output.ended else list(output.tokens)


def assert_own(model: Generator, source: list[int], output: Hypothesis, length_penalty: float = 1.0) -> None:
    """Each log-probability is what one teacher-forced pass without a cache says, and the score follows from them."""
    words = with_end(output)
    own = log_probabilities(model, source, output.tokens)
    assert output.log_probabilities == pytest.approx([float(own[place, word]) for place, word in enumerate(words)], abs=1e-9)
    assert output.score == pytest.approx(sum(output.log_probabilities) / len(words) ** length_penalty, abs=1e-9)


# In any company


@pytest.mark.parametrize(
    ("method", "dtype", "within"),
    [(BEAM, torch.float64, 1e-9), (GREEDY, torch.float32, 1e-4), (BEAM, torch.float32, 1e-4)],
    ids=["beam", "greedy-float32", "beam-float32"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_gives_the_same_alone_in_a_batch_and_in_any_order(kind: str, method: Method, dtype: torch.dtype, within: float) -> None:
    model = lively(kind, dtype)
    together = decoded(model, SOURCES, method)
    assert_lively([outputs[0] for outputs in together])
    order = torch.randperm(len(SOURCES), generator=torch.Generator().manual_seed(1)).tolist()[:12]
    assert_same(decoded(model, [SOURCES[place] for place in order], method), [together[place] for place in order], within)
    assert_same(decoded(model, SOURCES[7:10], method), together[7:10], within)
    for place in (0, 33):
        assert_same(decoded(model, [SOURCES[place]], method), [together[place]], within)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_may_stand_on_either_side_or_nowhere(kind: str) -> None:
    model, sources = lively(kind), SOURCES[:6]
    want = decoded(model, sources, BEAM)
    longest = max(map(len, sources))
    ids = torch.tensor([[9] * (longest - len(source)) + source for source in sources])  # padding may be any word
    real = torch.tensor([[False] * (longest - len(source)) + [True] * len(source) for source in sources])
    assert_same(decode(model, Tokens(ids, real), BEAM, Rules(max_length=LONGEST)), want)
    assert_same(decode(model, Tokens(torch.tensor([sources[3]])), BEAM, Rules(max_length=LONGEST)), want[3:4])


def test_a_model_in_training_is_refused() -> None:
    model = lively("gpt2").train()
    try:
        with pytest.raises(RegardError, match=r"call model\.eval"):
            decoded(model, SOURCES[:1], GREEDY)
    finally:
        model.eval()


# Those that are done leave

SHORT = Beam(size=3, n_best=2, length_penalty=0.0)  # long outputs are forgiven nothing, so many sources are done early
SHORT_GROUPS = Beam(size=4, groups=2, length_penalty=0.0)


class Counted:
    """Counts the calls of a method and does what it does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.calls: list[Any] = []
        original: Callable[..., Any] = getattr(owner, name)

        def counted(this: Any, *given: Any) -> Any:
            self.calls.append(given)
            return original(this, *given)

        monkeypatch.setattr(owner, name, counted)


@pytest.mark.parametrize("method", [GREEDY, SHORT, Sampling(seed=1), SHORT_GROUPS], ids=[*NAMES, "sampling", "groups"])
@pytest.mark.parametrize("kind", ["before", "relative", "window", "rnn-attention", "rnn-plain"])
def test_sources_that_are_done_may_leave_at_any_time(kind: str, method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never, when enough are done, or at every position."""
    model = lively(kind)
    leaving = Counted(monkeypatch, Sampler if not isinstance(method, Beam) or method.size == 1 else BeamSearch, "keep")
    as_it_is = decoded(model, SOURCES, method)
    assert leaving.calls
    assert len(leaving.calls[-1][0]) < len(SOURCES)
    leaving.calls.clear()
    monkeypatch.setitem(runner.DROP_AT, "cpu", -1.0)
    assert_same(decoded(model, SOURCES, method), as_it_is)
    assert not leaving.calls
    monkeypatch.setitem(runner.DROP_AT, "cpu", 0.999)
    monkeypatch.setitem(runner.CHECK_EVERY, "cpu", 3)
    assert_same(decoded(model, SOURCES, method), as_it_is)
    assert leaving.calls


def test_coverage_leaves_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Beam(size=3, n_best=2, coverage=0.4, length_penalty=0.0)
    for kind in ("before", "rnn-attention"):
        monkeypatch.setitem(runner.DROP_AT, "cpu", -1.0)
        want = decoded(lively(kind), SOURCES, method)
        monkeypatch.setitem(runner.DROP_AT, "cpu", 0.999)
        assert_same(decoded(lively(kind), SOURCES, method), want)


# The model's own


@pytest.mark.parametrize("method", [*METHODS, Beam(size=6, groups=3, n_best=6), Sampling(seed=2)], ids=[*NAMES, "groups", "sampling"])
@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_uncached(kind: str, method: Method) -> None:
    model = lively(kind)
    for source, outputs in zip(SOURCES[:4], decoded(model, SOURCES[:12], method)[:4], strict=True):
        for output in outputs:
            assert_own(model, source, output, 1.0 if isinstance(method, Beam) else 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_equals_uncached_far_beyond_what_attention_reads_at_first(kind: str) -> None:
    """Forty positions of four hypotheses are 160 slots, in views that grow by 64."""
    model, rules = lively(kind), Rules(max_length=40, min_length=40)
    for source, outputs in zip(SOURCES[3:5], decoded(model, SOURCES[3:5], BEAM, rules), strict=True):
        assert [len(output.tokens) for output in outputs] == [40] * 4
        for output in outputs:
            assert_own(model, source, output)


@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_several_hypotheses_are_sorted_and_differ(kind: str, length_penalty: float) -> None:
    model = lively(kind)
    for source, outputs in zip(
        SOURCES[:16], decoded(model, SOURCES[:16], Beam(size=5, n_best=4, length_penalty=length_penalty)), strict=True
    ):
        scores = [output.score for output in outputs]
        assert scores == sorted(scores, reverse=True)
        assert len({(output.tokens, output.ended) for output in outputs}) == len(outputs) == 4
        assert outputs[0].log_probability == pytest.approx(sum(outputs[0].log_probabilities))
        assert_own(model, source, outputs[0], length_penalty)


# Stopping


@pytest.mark.parametrize("length_penalty", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_the_best_is_that_of_a_search_that_never_stops(kind: str, length_penalty: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, steps = lively(kind), Counted(monkeypatch, runner.Run, "position")
    early = 0
    for source in SOURCES[3:5]:
        steps.calls.clear()
        found = decoded(model, [source], Beam(size=3, length_penalty=length_penalty))[0][0]
        early += len(steps.calls) < LONGEST - 1
        want = plain_beam_search(model, source, size=3, max_length=LONGEST, length_penalty=length_penalty)[0]
        assert found.tokens == want.tokens
        assert found.score == pytest.approx(want.score(length_penalty), abs=1e-9)
    assert early or length_penalty > 0.5  # it stops where it may: the less length is forgiven, the sooner


@pytest.mark.parametrize("kind", ["before", "alibi", "gpt2", "rnn-plain"])
def test_the_best_is_the_first_of_several(kind: str) -> None:
    for more in ({"length_penalty": 0.0}, {"length_penalty": 0.6}, {"coverage": 0.5, "length_penalty": 0.3}):
        if "coverage" in more and kind in ("gpt2", "rnn-plain"):
            continue
        several = decoded(lively(kind), SOURCES, Beam(size=4, n_best=4, **more))
        assert_same(decoded(lively(kind), SOURCES, Beam(size=4, **more)), [outputs[:1] for outputs in several])


# Room


@pytest.mark.parametrize("method", [GREEDY, Beam(size=2, n_best=2)], ids=NAMES)
@pytest.mark.parametrize("kind", ["learned", "gpt2", "window", "rnn-attention"])
def test_no_output_is_longer_than_allowed_or_than_the_context(kind: str, method: Method) -> None:
    model = lively(kind)
    sources = [*SOURCES[:5], *sentences(60, 64 if not isinstance(model, LanguageModel) else 63, seed=8)]
    for rules in (Rules(max_length=7), Rules(max_length="1+1x"), Rules(max_length=100)):
        together = decoded(model, sources, method, rules)
        for source, outputs in zip(sources, together, strict=True):
            room = min(rules.max_length.of(len(source)), 64 - len(source) if isinstance(model, LanguageModel) else 64)
            assert all((output.ended and len(output.tokens) < room) or len(output.tokens) == room for output in outputs)
        for place in (1, 5):
            assert_same(decoded(model, [sources[place]], method, rules), [together[place]])


def test_a_prompt_without_room_to_go_on_is_said() -> None:
    with pytest.raises(ConfigError, match="the prompt is 64 tokens long and the model's context 64: there is no room to go on"):
        decoded(lively("gpt2"), [[5], [5] * 64], GREEDY)


# Groups


def plain_groups(model: Generator, source: list[int], beam: Beam, limit: int) -> list[list[tuple[list[int], float]]]:
    """Group by group on lists: what a word costs more is counted from what the groups before go on with. (words, log P) of each group."""
    width = beam.size // beam.groups
    open: list[list[tuple[list[int], float]]] = [[([], 0.0)] for _ in range(beam.groups)]
    finished: list[list[tuple[list[int], float]]] = [[] for _ in range(beam.groups)]

    def score(output: tuple[list[int], float]) -> float:
        return output[1] / len(output[0]) ** beam.length_penalty

    for place in range(limit):
        times = torch.zeros(model.config.vocabulary)
        for group in range(beam.groups):
            candidates = []
            for words, total in open[group]:
                logs = log_probabilities(model, source, tuple(words))[-1]
                ranks = total + logs - beam.diversity * times
                candidates += [(float(ranks[word]), [*words, word], total + float(logs[word])) for word in range(len(logs))]
            candidates = sorted(candidates, key=lambda one: -one[0])[: 1 if width == 1 else 2 * width]
            done = [words[-1] == END or place + 1 == limit for _, words, _ in candidates]
            finished[group] += [(words, total) for (_, words, total), end in zip(candidates[:width], done, strict=False) if end]
            finished[group] = sorted(finished[group], key=score, reverse=True)[:width]
            going = [(words, total) for _, words, total in candidates if words[-1] != END][:width]
            for words, _ in going:
                times[words[-1]] += 1
            open[group] = [] if place + 1 == limit else going
            needed = min(beam.n_best, width)  # a group is closed when what it has can't be bettered, and then chooses no words
            if going and len(finished[group]) >= needed:
                best = max(total for _, total in going) / limit**beam.length_penalty
                open[group] = [] if best <= score(finished[group][needed - 1]) else open[group]
    return finished


@pytest.mark.parametrize("beam", [
    Beam(size=4, groups=2, n_best=4, diversity=0.8), Beam(size=3, groups=3, n_best=3, diversity=2.0),
    Beam(size=6, groups=2, n_best=6, diversity=0.3, length_penalty=0.0),
], ids=["2x2", "3x1", "2x3"])  # fmt: skip
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_groups_equal_those_on_lists(kind: str, beam: Beam) -> None:
    """All groups together, best first, what two of them came to but once; and the first group is a plain beam of its width."""
    model, sources, width = lively(kind), SOURCES[2:5], beam.size // beam.groups
    found = decoded(model, sources, beam, Rules(max_length=10))
    plain = Beam(size=width, n_best=width, length_penalty=beam.length_penalty)
    firsts = decoded(model, sources, plain, Rules(max_length=10))
    for source, outputs, first in zip(sources, found, firsts, strict=True):
        groups = plain_groups(model, source, beam, 10)
        everything = [output for group in groups for output in group]
        different = {tuple(words): log for words, log in everything}
        want = sorted(((words, log) for words, log in different.items()), key=lambda one: -one[1] / len(one[0]) ** beam.length_penalty)
        assert [(tuple(with_end(output)), pytest.approx(output.log_probability, abs=1e-9)) for output in outputs] == want
        assert [with_end(output) for output in first] == [words for words, _ in groups[0]]


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_one_group_is_no_group_and_more_are_more_varied(kind: str) -> None:
    model = lively(kind)
    assert decoded(model, SOURCES, Beam(size=4, n_best=4, groups=1, diversity=9.0)) == decoded(model, SOURCES, BEAM)

    def variety(beam: Beam) -> int:
        return sum(len({word for output in outputs for word in output.tokens}) for outputs in decoded(model, SOURCES, beam))

    assert variety(Beam(size=4, n_best=4, groups=4, diversity=1.0)) > 1.1 * variety(BEAM)
    alike = decoded(model, SOURCES[:8], Beam(size=4, n_best=4, groups=4, diversity=0.0))  # no cost: every group is greedy
    greedy = decoded(model, SOURCES[:8], GREEDY)
    assert [{output.tokens for output in outputs} for outputs in alike] == [{outputs[0].tokens} for outputs in greedy]


# Coverage


def looks(model: Generator, source: list[int], words: list[int]) -> Tensor:
    """How much attention each word of the source got in all, in one explicit, teacher-forced pass."""
    with torch.no_grad(), using("explicit"), record(model) as taps:
        model(Tokens.pad([source]), Tokens.pad([[model.config.start_token, *words[:-1]]]))
    if model.config.kind == "rnn":
        return taps["decoder.attention.weights"][0].sum(0)
    return taps["decoder.layers.1.cross.weights"][0].mean(0).sum(0)


@pytest.mark.parametrize("beam", [
    Beam(size=4, n_best=4, coverage=0.3), Beam(size=1, coverage=1.0, length_penalty=0.0), Beam(size=4, n_best=4, groups=2, coverage=0.2),
], ids=["beam", "greedy", "groups"])  # fmt: skip
@pytest.mark.parametrize("kind", ["before", "relative", "rnn-attention"])
def test_coverage_is_its_formula(kind: str, beam: Beam) -> None:
    """score = log P / length^α + β Σ log min(1, attention that each source word got)."""
    model = lively(kind)
    found = decoded(model, SOURCES[:20], beam)
    for source, outputs in zip(SOURCES[:20:3], found[::3], strict=True):
        for output in outputs:
            words = with_end(output)
            covered = float(looks(model, source, words).clamp(1e-6, 1.0).log().sum())
            want = output.log_probability / len(words) ** beam.length_penalty + beam.coverage * covered
            assert output.score == pytest.approx(want, abs=1e-9)
        assert [output.score for output in outputs] == sorted((output.score for output in outputs), reverse=True)


def test_coverage_matters_and_none_is_none() -> None:
    model = lively("before")
    without, with_much = (decoded(model, SOURCES, Beam(size=4, coverage=coverage)) for coverage in (0.0, 2.0))
    assert without == decoded(model, SOURCES, Beam(size=4))
    assert [outputs[0].tokens for outputs in without] != [outputs[0].tokens for outputs in with_much]


@pytest.mark.parametrize("kind", ["gpt2", "rnn-plain"])
def test_coverage_of_nothing_looked_at_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="looks at no source"):
        decoded(lively(kind), SOURCES[:2], Beam(size=2, coverage=0.1))


# Packed weights


@pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
@pytest.mark.parametrize("method", [GREEDY, BEAM, Sampling(seed=3), Beam(size=2, coverage=0.2)], ids=[*NAMES, "sampling", "coverage"])
@pytest.mark.parametrize("kind", ["after", "before", "relative", "rnn-attention", "gpt2", "prefix", "rnn-plain"])
def test_packed_weights_give_the_same(kind: str, method: Method) -> None:
    if isinstance(method, Beam) and method.coverage and kind in ("gpt2", "prefix", "rnn-plain"):
        pytest.skip("looks at no source")
    model = lively(kind, torch.float32)
    ready, sources = packed(model, FloatProduct), SOURCES[:20]
    assert ready is not model
    assert any(type(module).__name__.startswith("Packed") for module in ready.modules())
    assert_same(decoded(ready, sources, method), decoded(model, sources, method), 1e-5)


@pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
@pytest.mark.parametrize("kind", ["before", "gpt2", "rnn-attention"])
def test_packing_leaves_the_model_as_it_was(kind: str) -> None:
    model = lively(kind, torch.float32)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules = [type(module) for module in model.modules()]
    ready = packed(model, FloatProduct)
    decoded(ready, SOURCES[:4], GREEDY)
    assert [type(module) for module in model.modules()] == modules
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    mine = {id(parameter) for parameter in model.parameters()}
    assert all(id(parameter) in mine for parameter in ready.parameters())  # what is not packed is shared, not copied
    given = [Tokens.pad([[1, 4, 5]])] if isinstance(model, LanguageModel) else [Tokens.pad([[5, 6]]), Tokens.pad([[1, 4, 5]])]
    gradients = torch.autograd.grad(model(*given).square().sum(), list(model.parameters()), allow_unused=True)
    assert sum(gradient is not None and bool(gradient.any()) for gradient in gradients) > len(gradients) / 2


def test_packing_is_for_float32_on_a_cpu() -> None:
    assert made_ready(lively("gpt2", torch.float64)) is lively("gpt2", torch.float64)
