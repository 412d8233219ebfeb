"""What may be written next: every rule against the same told on lists, against Hugging Face's, and against all outputs there are."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import NoBadWordsLogitsProcessor, NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from regard.data.batch import Tokens
from regard.decoding.rules import Steering
from regard.decoding.runner import decode
from regard.decoding.sampling import uniform
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Beam, Length, Method, Rules, Sampling
from regard.errors import ConfigError
from regard.models import Generator, LanguageModel
from tests.decoding.lively import ONE_OF_EACH, SOURCES, assert_lively, decoded, lively
from tests.decoding.plain import Output, log_probabilities
from tests.decoding.test_search import every_output, model_of

WORDS, END, OFF = 6, 2, float("-inf")
NAMES = ["transformer-tiny", "gpt-small", "rnn-attention"]
Word = tuple[int, ...]


# The rules as they are told, for one hypothesis


def runs(words: list[int], size: int) -> list[Word]:
    return [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]


def allowed(words: list[int], word: int, rules: Rules, written: int, source: int, forced: list[int]) -> bool:
    """Whether the word may follow these. What is forced comes before all other rules."""
    if written < len(forced):
        return word == forced[written]
    longer = [*words, word]
    if rules.no_repeat and tuple(longer[-rules.no_repeat :]) in runs(words, rules.no_repeat):
        return False
    if any(tuple(longer[-len(ban) :]) == ban for ban in rules.banned):
        return False
    if word == END and written < rules.min_length.of(source):
        return False
    return not (word == END and any(need not in runs(words, len(need)) for need in rules.required))


def steered(scores: Tensor, words: list[int], rules: Rules, written: int, source: int = 0, forced: list[int] | None = None) -> Tensor:
    """The scores (vocabulary,) of what may follow these words, -inf where it may not."""
    new = scores.clone()
    free = written >= len(forced or [])
    for word in range(len(scores)):
        if word in words and free:
            new[word] = scores[word] / rules.repetition_penalty if scores[word] > 0 else scores[word] * rules.repetition_penalty
        if not allowed(words, word, rules, written, source, forced or []):
            new[word] = OFF
    return new


@st.composite
def histories(draw: st.DrawFn) -> tuple[Tensor, list[list[list[int]]], int]:
    """A table (sources, hypotheses, length) with padding on both sides, its rows as lists, and how many of the words were written."""
    sources, hypotheses, written = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 7))
    prompts = [draw(st.lists(st.integers(0, WORDS - 1), max_size=5)) for _ in range(sources)]
    longest, room = max(map(len, prompts)), draw(st.integers(0, 3))
    lists = [
        [prompt + draw(st.lists(st.integers(0, WORDS - 1), min_size=written, max_size=written)) for _ in range(hypotheses)]
        for prompt in prompts
    ]
    table = [[[-1] * (longest + written - len(words)) + words + [-1] * room for words in row] for row in lists]
    return torch.tensor(table, dtype=torch.long).reshape(sources, hypotheses, -1), lists, written


def scores_for(table: Tensor, seed: int) -> Tensor:
    return torch.randn(*table.shape[:2], WORDS, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def applied(rules: Rules, scores: Tensor, table: Tensor, written: int, prefixes: list[list[int]] | None = None) -> Tensor:
    steering = Steering.of(rules, [0] * len(table), END, prefixes=prefixes)
    return steering.apply(scores.clone(), table, torch.full((len(table),), written))


SEEDS = st.integers(0, 1000)
BANS = st.lists(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=4).map(tuple), max_size=4)


@settings(deadline=None, max_examples=200)
@given(histories(), SEEDS, st.data())
def test_all_rules_equal_the_same_told_on_lists(history: tuple[Tensor, list[list[list[int]]], int], seed: int, data: st.DataObject) -> None:
    table, lists, written = history
    rules = Rules(
        max_length=20,
        min_length=data.draw(st.integers(0, 8)),
        no_repeat=data.draw(st.integers(0, 4)),
        repetition_penalty=data.draw(st.sampled_from([0.5, 1.0, 1.3])),
        banned=data.draw(BANS),
        required=data.draw(st.lists(st.lists(st.integers(0, WORDS - 1), min_size=1, max_size=3).map(tuple), max_size=2)),
    )
    prefixes = data.draw(st.none() | st.lists(st.lists(st.integers(0, WORDS - 1), max_size=9), min_size=len(lists), max_size=len(lists)))
    scores = scores_for(table, seed)
    got = applied(rules, scores, table, written, prefixes)
    for source, row in enumerate(lists):
        for hypothesis, words in enumerate(row):
            want = steered(scores[source, hypothesis], words, rules, written, forced=prefixes and prefixes[source])
            torch.testing.assert_close(got[source, hypothesis], want, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(histories(), SEEDS, st.integers(1, 5))
def test_no_repeat_equals_hugging_face(history: tuple[Tensor, list[list[list[int]]], int], seed: int, size: int) -> None:
    table, lists, written = history
    scores = scores_for(table, seed)
    got = applied(Rules(no_repeat=size), scores, table, written)
    for source, row in enumerate(lists):
        for hypothesis, words in enumerate(row):
            theirs = NoRepeatNGramLogitsProcessor(size)(torch.tensor([words], dtype=torch.long), scores[source, hypothesis][None].clone())
            assert torch.equal(got[source, hypothesis], theirs[0])


@settings(deadline=None, max_examples=60)
@given(histories(), SEEDS, st.sampled_from([0.7, 1.0, 1.2, 2.0]), st.booleans())
def test_repetition_penalty_equals_hugging_face(
    history: tuple[Tensor, list[list[list[int]]], int], seed: int, penalty: float, logs: bool
) -> None:
    """On logits, which have either sign, and on log-probabilities, which have one."""
    table, lists, written = history
    scores = scores_for(table, seed)
    scores = scores.log_softmax(-1) if logs else scores
    got = applied(Rules(repetition_penalty=penalty), scores, table, written)
    for source, row in enumerate(lists):
        for hypothesis, words in enumerate(row):
            theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([words], dtype=torch.long), scores[source, hypothesis][None])
            torch.testing.assert_close(got[source, hypothesis], theirs[0], rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(histories(), SEEDS, BANS.filter(bool))
def test_bans_equal_hugging_face(history: tuple[Tensor, list[list[list[int]]], int], seed: int, bans: list[Word]) -> None:
    table, lists, written = history
    scores = scores_for(table, seed)
    got = applied(Rules(banned=bans), scores, table, written)
    for source, row in enumerate(lists):
        for hypothesis, words in enumerate(row):
            processor = NoBadWordsLogitsProcessor([list(ban) for ban in bans])  # it keeps what it found at its first call
            theirs = processor(torch.tensor([words], dtype=torch.long), scores[source, hypothesis][None].clone())
            assert torch.equal(got[source, hypothesis], theirs[0])


def test_scores_are_left_alone() -> None:
    """What a rule turns off is turned off in a copy."""
    table = torch.tensor([[[3, 4, -1]]])
    scores = scores_for(table, 0)
    before = scores.clone()
    applied(Rules(no_repeat=1, repetition_penalty=1.5, min_length=9, banned=[(1,)]), scores, table, 2, [[5, 5, 5]])
    assert torch.equal(scores, before)


# Lengths


@given(st.integers(0, 500), st.decimals(0, 20, places=2), st.integers(0, 300), st.sampled_from(["{a}+{b}x", " {a} + {b} x ", "{b}x+{a}"]))
@example(0, Decimal("2.2"), 25, "{a}+{b}x")  # 55.00000000000001 in binary numbers
def test_a_length_is_what_it_says(plus: int, times: Decimal, source: int, written: str) -> None:
    length = Length.parse(written.format(a=plus, b=times))
    assert length.of(source) == plus + math.ceil(Fraction(times) * source)


def test_lengths_are_written_in_a_few_ways() -> None:
    assert Length.parse("60") == Length(plus=60) == Rules(max_length=60).max_length == Rules(max_length="60").max_length
    assert Length.parse("2x") == Length(times=2.0)
    assert Rules(min_length="0.5x").min_length.of(5) == 3
    assert Rules(max_length={"plus": 3, "times": 1.5}).max_length == Length.parse("3+1.5x")
    assert Rules().max_length == Length.parse("16+2x")


@pytest.mark.parametrize("written", ["", "x", "-3", "2x+", "16+2", "1.5", "16+x2", "a", "16 + 2x + 1", "nan", "1e3", -1, 1.5])
def test_what_is_no_length_is_said(written: Any) -> None:
    with pytest.raises(ConfigError, match=r"is no length; write a number of tokens such as 60, or 16\+2x"):
        Rules(max_length=written)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", [GREEDY, Beam(size=3, n_best=3), Sampling(seed=3)], ids=["greedy", "beam", "sampling"])
def test_outputs_are_as_long_as_they_may_and_must_be(name: str, method: Method) -> None:
    sources = [[3, 4, 3], [4], [3, 3, 4, 4, 3]]
    rules = Rules(min_length="2+1x", max_length="3+1.5x")
    found = decode(model_of(name), Tokens.pad(sources), method, rules)
    for source, outputs in zip(sources, found, strict=True):
        for output in outputs:
            written = len(output.tokens) + output.ended  # the end token counts as written
            assert written <= 3 + math.ceil(1.5 * len(source))
            assert len(output.tokens) >= 2 + len(source)
            assert output.ended or written == 3 + math.ceil(1.5 * len(source))


def test_a_minimum_above_the_maximum_is_the_maximum() -> None:
    found = decode(model_of("gpt-small"), Tokens.pad([[3, 4]]), Beam(size=2, n_best=2), Rules(min_length=9, max_length=4))
    assert [(len(output.tokens), output.ended) for output in found[0]] == [(4, False)] * 2


# Against all outputs there are


def keeps(rules: Rules, given: list[int], output: Output, forced: list[int]) -> bool:
    """Whether each word of an output was allowed when it was written."""
    words = [*output.tokens, END] if output.ended else list(output.tokens)
    return all(allowed(given + words[:place], word, rules, place, 0, forced) for place, word in enumerate(words))


def has(output: Output | Hypothesis, required: tuple[Word, ...]) -> bool:
    return all(word in runs(list(output.tokens), len(word)) for word in required)


RULE_SETS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "least": ({"min_length": 2}, []),
    "once": ({"no_repeat": 1}, []),
    "no pair twice": ({"no_repeat": 2}, []),
    "ban": ({"banned": [[3]]}, []),
    "bans": ({"banned": [[4, 1], [0], [3, 3, 3]]}, []),
    "ban on ending": ({"banned": [[4, 2], [1, 2]]}, []),
    "prefix": ({}, [4, 1]),
    "one word": ({"required": [[4]]}, []),
    "a pair": ({"required": [[1, 4]]}, []),
    "two words": ({"required": [[4], [1, 0]]}, []),
    "words that overlap": ({"required": [[1, 4], [4, 1]]}, []),
    "the same twice": ({"required": [[4, 4], [4, 4]]}, []),
    "one within another": ({"required": [[4], [1, 4]]}, []),
    "everything": ({"required": [[4]], "banned": [[0]], "no_repeat": 2, "min_length": 2}, [1]),
}


@pytest.mark.parametrize("asked", RULE_SETS)
@pytest.mark.parametrize("name", NAMES)
def test_a_beam_as_wide_as_everything_finds_all_that_keep_to_the_rules(name: str, asked: str) -> None:
    """And in order, with scores that are the model's own."""
    asked_for, forced = RULE_SETS[asked]
    rules, model, source = Rules(max_length=4, **asked_for), model_of(name), [3, 4, 3]
    if isinstance(model, LanguageModel):
        source = [3, 0, 3]  # has no required word
    given = source if isinstance(model, LanguageModel) else []
    every = [output for output in every_output(name, tuple(source), 4) if keeps(rules, given, output, forced)]
    want = sorted((output for output in every if has(output, rules.required)), key=lambda output: -output.score(0.6))
    beam = Beam(size=400, n_best=400, length_penalty=0.6)
    found = [output for output in decode(model, Tokens.pad([source]), beam, rules, prefixes=[forced])[0] if has(output, rules.required)]
    assert len(want) > 2
    assert [output.tokens for output in found] == [output.tokens for output in want]
    assert [output.score for output in found] == pytest.approx([output.score(0.6) for output in want], abs=1e-9)
    best = decode(model, Tokens.pad([source]), Beam(size=400, length_penalty=0.6), rules, prefixes=[forced])[0][0]
    assert best.tokens == want[0].tokens


# Against searches on lists


def logits(model: Generator, source: list[int], words: list[int]) -> Tensor:
    """Of the word after these, without a cache."""
    with torch.no_grad():
        if isinstance(model, LanguageModel):
            return model(Tokens.pad([[*source, *words]]))[0, -1].double()
        return model(Tokens.pad([source]), Tokens.pad([[model.config.start_token, *words]]))[0, -1].double()


def plainly(model: Generator, source: list[int], rules: Rules, forced: list[int], draw: tuple[int, int] | None = None) -> list[int]:
    """One word after another: the likeliest, or drawn by chance with (seed, number)."""
    given, words = source if isinstance(model, LanguageModel) else [], []
    for place in range(rules.max_length.of(len(source))):
        scores = steered(logits(model, source, words), [*given, *words], rules, place, len(source), forced)
        word = int(scores.argmax())
        if draw is not None:
            point = float(uniform(draw[0], torch.tensor([draw[1] * 1_000_003]), torch.tensor([place])))
            word = int((scores.softmax(-1).cumsum(-1) <= point).sum())
        words.append(word)
        if word == END:
            break
    return words


def plain_beam(model: Generator, source: list[int], rules: Rules, forced: list[int], size: int) -> list[tuple[list[int], float]]:
    """Hypotheses ordered by the model's own log P so far and the steered one of the next word; scored by the model's own."""
    given = source if isinstance(model, LanguageModel) else []
    open: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    limit = rules.max_length.of(len(source))
    for place in range(limit):
        candidates = []
        for words, total in open:
            own = logits(model, source, words).log_softmax(-1)
            scores = steered(own, [*given, *words], rules, place, len(source), forced)
            candidates += [(total + float(scores[word]), [*words, word], total + float(own[word])) for word in range(len(own))]
        candidates = sorted((one for one in candidates if one[0] > OFF), key=lambda one: -one[0])[: 2 * size]
        ends = [words[-1] == END or len(words) == limit for _, words, _ in candidates]
        finished += [(words, total) for (_, words, total), end in zip(candidates[:size], ends, strict=False) if end]
        open = [(words, total) for (_, words, total), end in zip(candidates, ends, strict=True) if not end][:size]
    return sorted(finished, key=lambda one: -one[1] / len(one[0]))[:size]


STEERED: dict[str, dict[str, Any]] = {
    "no_repeat": {"no_repeat": 2},
    "repetition": {"repetition_penalty": 1.4},
    "bans": {"banned": [[12], [16, 23], [28, 25], [17, 17, 17]], "min_length": "0.5x"},
    "all": {"no_repeat": 1, "repetition_penalty": 0.8, "banned": [[9]], "min_length": 4},
}
FEW = SOURCES[:4]
PREFIXES = [[], [7], [9, 9, 8, 4], [5, 6]]


def with_end(output: Hypothesis) -> list[int]:
    return [*output.tokens, END] if output.ended else list(output.tokens)


@pytest.mark.parametrize("asked", STEERED)
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_searches_with_rules_equal_those_on_lists(kind: str, asked: str) -> None:
    """Greedy, by chance, and a beam; half of the outputs begin as they must."""
    model, rules = lively(kind), Rules(max_length=8, **STEERED[asked])
    prefixes = PREFIXES if asked == "repetition" else [[]] * len(FEW)
    free = decoded(model, FEW, GREEDY, Rules(max_length=8))
    greedy = decoded(model, FEW, GREEDY, rules, prefixes=prefixes)
    drawn = decoded(model, FEW, Sampling(seed=5), rules, prefixes=prefixes)
    beam = decoded(model, FEW, Beam(size=3, n_best=3), rules, prefixes=prefixes)
    assert [output[0].tokens for output in greedy] != [output[0].tokens for output in free]  # the rules matter here
    for number, source in enumerate(FEW):
        assert with_end(greedy[number][0]) == plainly(model, source, rules, prefixes[number])
        assert with_end(drawn[number][0]) == plainly(model, source, rules, prefixes[number], draw=(5, number))
        want = plain_beam(model, source, rules, prefixes[number], 3)
        assert [with_end(output) for output in beam[number]] == [words for words, _ in want]
        assert [output.log_probability for output in beam[number]] == pytest.approx([total for _, total in want], abs=1e-9)


# Prefixes


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("method", [GREEDY, Beam(size=3, n_best=3), Sampling(seed=3, samples=2)], ids=["greedy", "beam", "sampling"])
def test_outputs_begin_as_they_must_and_go_on_as_the_model_would(kind: str, method: Method) -> None:
    model = lively(kind)
    found = decoded(model, FEW, method, prefixes=PREFIXES)
    for source, prefix, outputs in zip(FEW, PREFIXES, found, strict=True):
        assert len(outputs) == (3 if method == Beam(size=3, n_best=3) else 2 if isinstance(method, Sampling) else 1)
        for output in outputs:
            assert list(output.tokens[: len(prefix)]) == prefix
            own = log_probabilities(model, source, output.tokens)
            assert output.log_probabilities == pytest.approx([float(own[i, word]) for i, word in enumerate(with_end(output))], abs=1e-9)


def test_a_prefix_may_be_all_there_is_to_write() -> None:
    found = decoded(lively("gpt2"), FEW[:2], Beam(size=2), Rules(max_length=3), prefixes=[[5, 6, 7], [8, END]])
    assert [(output[0].tokens, output[0].ended) for output in found] == [((5, 6, 7), False), ((8,), True)]


def test_a_prefix_longer_than_may_be_written_is_written() -> None:
    """And nothing after it; one that the model has no room for is an error."""
    found = decoded(lively("gpt2"), FEW[:2], GREEDY, Rules(max_length=3), prefixes=[[], [5, 6, 7, 8]])
    assert len(found[0][0].tokens) <= 3
    assert found[1][0].tokens == (5, 6, 7, 8)
    with pytest.raises(ConfigError, match=r"a prefix has 70 tokens, and the model has room for \d+; shorten it"):
        decoded(lively("gpt2"), FEW[:1], GREEDY, Rules(max_length=3), prefixes=[[5] * 70])


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_outputs_here_are_worth_looking_at(kind: str) -> None:
    assert_lively([output[0] for output in decoded(lively(kind), SOURCES, GREEDY)])
