"""Words guessed ahead change how fast it goes and nothing else, whoever guesses, and however wrongly."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.batch import Tokens
from regard.decoding import speculation
from regard.decoding.pack import packed
from regard.decoding.products import FloatProduct, available
from regard.decoding.runner import decode, stream
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.decoding.speculation import LONGEST, MOST, Guess, Ngrams, Pace, Speculation, drafting
from regard.decoding.tree import Tree
from regard.errors import ConfigError
from regard.models import Generator
from tests.decoding.lively import KINDS, SOURCES, Kind, assert_lively, assert_same, decoded, lively, made_lively
from tests.families import VOCABULARY, small

TRANSFORMERS = [kind for kind in KINDS if not kind.startswith("rnn")]
ONE_OF_EACH = ["before", "gpt2", "window"]  # an encoder-decoder; language models, the last with grouped heads, rotary, and a window
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "alibi-lm": ("gpt2", {"positions": "alibi"}),
    "alibi-window": ("llama-tiny", {"positions": "alibi", "window": 3}),
    "grouped-across": ("transformer-base", {"kv_heads": 2, "positions": "alibi"}),
    "one-key": ("llama-tiny", {"kv_heads": 1, "positions": "relative"}),
    "sinusoidal-lm": ("gpt2", {"positions": "sinusoidal"}),
}
METHODS: dict[str, Method] = {
    "greedy": GREEDY,
    "sampling": Sampling(seed=5),
    "filtered": Sampling(temperature=0.8, top_k=12, top_p=0.9, min_p=0.02, seed=9),
}
STEERED: dict[str, dict[str, Any]] = {
    "lengths": {"min_length": "0.5x", "max_length": "3+1x"},
    "no_repeat": {"no_repeat": 2},
    "repetition": {"repetition_penalty": 1.3},
    "bans": {"banned": [[12], [16, 23], [28, 25], [17, 17, 17]]},
    "never": {"never": [3, 9, 27]},
    "all": {"min_length": 4, "max_length": 14, "no_repeat": 3, "repetition_penalty": 1.1, "banned": [[5], [6, 7]], "never": [8]},
}


class Scripted:
    """Guesses what a function of what was written and of how many are wanted says, true or not."""

    def __init__(self, words: Callable[[list[int], int], Sequence[int]], *, free: bool = True, known: int = LONGEST) -> None:
        self.words, self.free, self.known, self.asked = words, free, known, 0

    def guess(self, written: Sequence[int], most: int) -> Guess:
        self.asked += 1
        return Guess(self.words(list(written), most), self.known)

    def begin(self, *_: object) -> Scripted:
        return self


def outputs_of(truth: Hypothesis) -> list[int]:
    return [*truth.tokens, *([2] if truth.ended else [])]


def right(truth: Hypothesis) -> Scripted:
    return Scripted(lambda written, most: outputs_of(truth)[len(written) :][:most])


def right_for_a_while(truth: Hypothesis) -> Scripted:
    """Every third word is wrong."""
    wrong = [word if place % 3 else (word + 1) % VOCABULARY for place, word in enumerate(outputs_of(truth))]
    return Scripted(lambda written, most: wrong[len(written) :][:most])


def past_the_end(truth: Hypothesis) -> Scripted:
    """Goes on after the end token, and beyond what was asked for."""
    return Scripted(lambda written, _: [*outputs_of(truth)[len(written) :], 2, 2, *[7] * 40])


def always_wrong(truth: Hypothesis) -> Scripted:
    return Scripted(lambda written, most: [(word + 1) % VOCABULARY for word in [*outputs_of(truth), *[0] * 99]][len(written) :][:most])


def by_chance(_: Hypothesis) -> Scripted:
    chance = random.Random(3)
    return Scripted(lambda _, most: [chance.randrange(VOCABULARY) for _ in range(chance.randrange(most + 1))])


def no_words(_: Hypothesis) -> Scripted:
    return Scripted(lambda written, most: [written[-1], -1, VOCABULARY, 10**9][len(written) % 2 :])


GUESSERS = [right, right_for_a_while, past_the_end, always_wrong, by_chance, no_words]


@pytest.fixture
def keen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are always read, whatever came of those before."""
    monkeypatch.setattr(Pace, "worth", lambda *_: MOST)


@pytest.fixture
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything takes the same time."""
    ticks = count()
    monkeypatch.setattr(speculation, "perf_counter", lambda: float(next(ticks)))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many words each pass of a language model read, after the prompt."""
    seen: list[int] = []
    for name in ("step", "extend"):
        original = getattr(type(lively("gpt2")), name)

        def counted(self: Generator, ids: torch.Tensor, state: Any, original: Any = original) -> torch.Tensor:
            seen.append(ids.shape[1])
            return original(self, ids, state)

        monkeypatch.setattr(type(lively("gpt2")), name, counted)
    return seen


def model_of(kind: str) -> Generator:
    if kind in KINDS:
        return lively(kind)
    preset, more = OTHERS[kind]
    return made_lively(Kind(preset, more, 0.3, 1, 2))


def assert_unchanged(
    model: Generator, source: list[int], method: Method, guess: Any, rules: Rules | None = None, within: float = 1e-9, **more: Any
) -> Hypothesis:
    """With a guesser as without: words, log-probabilities and score, at once and streamed. Gives what is written."""
    plain = decoded(model, [source], method, rules, **more)
    begin = guess(plain[0][0]).begin if guess in GUESSERS else guess
    assert_same(decoded(model, [source], method, rules, speculation=begin, **more), plain, within)
    if not more:
        sampling = method if isinstance(method, Sampling) else None
        given = Tokens.pad([source]), sampling, rules or Rules(max_length=16)
        assert tuple(stream(model, *given, speculation=begin)) == tuple(stream(model, *given))
    return plain[0][0]


# The law


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [*TRANSFORMERS, *OTHERS])
def test_every_kind_of_model_writes_as_without(kind: str, method: str) -> None:
    model = model_of(kind)
    for source in SOURCES[5:8]:
        assert_unchanged(model, source, METHODS[method], right_for_a_while)
        assert_unchanged(model, source, METHODS[method], Ngrams.begin)


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("guess", GUESSERS)
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_whoever_guesses(kind: str, guess: Any) -> None:
    found = [assert_unchanged(lively(kind), source, Sampling(seed=4), guess, numbers=[place]) for place, source in enumerate(SOURCES[:12])]
    assert_lively(found)
    for source in SOURCES[:3]:
        assert_unchanged(lively(kind), source, GREEDY, guess)


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rules", STEERED)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_rules_hold_as_without(kind: str, rules: str, method: str) -> None:
    for source in SOURCES[3:6]:
        for guess in (right_for_a_while, past_the_end):
            assert_unchanged(lively(kind), source, METHODS[method], guess, Rules(**({"max_length": 16} | STEERED[rules])))


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("guess", [right, by_chance, past_the_end])
def test_prefixes_stop_tokens_and_numbers(guess: Any) -> None:
    assert_unchanged(lively("before"), SOURCES[4], Sampling(seed=2), guess, prefixes=[[5, 9, 9, 2, 11]])
    model = made_lively(KINDS["gpt2"])
    model.config = model.config.model_copy(update={"stop_tokens": (4, 11, 19)})
    for source in SOURCES[:6]:
        assert_unchanged(model, source, Sampling(seed=1), guess, numbers=[12345])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=20), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.sampled_from(["gpt2", "before"]),
    st.integers(1, 20),
)
def test_whatever_is_guessed(script: list[list[int]], seed: int, kind: str, longest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pace, "worth", lambda *_: MOST)
        guesser = Scripted(lambda written, _: script[len(written) % len(script)])
        assert_unchanged(lively(kind), SOURCES[seed % 64], Sampling(seed=seed, temperature=0.7), guesser.begin, Rules(max_length=longest))


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_up_to_the_last_place_of_the_context(positions: str) -> None:
    model = small("gpt2", context=20, positions=positions)
    assert isinstance(model, Generator)
    prompt = [*range(5, 14)]
    for guess in (right, past_the_end, always_wrong, by_chance):
        found = assert_unchanged(model, prompt, GREEDY, guess, Rules(max_length=99, min_length=99))
        assert len(found.tokens) == 11


@pytest.mark.usefixtures("keen")
@pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_the_flat_decoder_reads_several_words(kind: str) -> None:
    model = packed(lively(kind, torch.float32), FloatProduct)
    for source in SOURCES[5:8]:
        for guess in (right, right_for_a_while):
            assert_unchanged(model, source, Sampling(seed=3), guess, within=1e-4)


def test_what_is_taken_back_leaves_no_trace() -> None:
    """Logits and state after words were read and taken back are those of a state that never saw them."""
    for kind in ONE_OF_EACH:
        model = lively(kind)
        with torch.inference_mode():
            memory = model.encode(Tokens.pad([SOURCES[6]]))
            (one, _), (other, _) = (model.start(memory, room=24) for _ in range(2))
            for taken_back in ([5, 6, 7], [8], [9] * 12):
                model.extend(torch.tensor([[4, *taken_back]]), one)
                one.forget(len(taken_back))
                model.step(torch.tensor([[4]]), other)
                for name in ("visible", "lengths"):
                    assert torch.equal(getattr(one, name), getattr(other, name))
                assert (one.cache.used, int(one.cache.next)) == (other.cache.used, int(other.cache.next))
            ids = torch.tensor([[3, 8]])
            torch.testing.assert_close(model.extend(ids, one), model.extend(ids, other), rtol=0, atol=1e-12)


# Where the rules leave nothing, and what is refused


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("guess", [right_for_a_while, always_wrong, past_the_end])
def test_what_comes_before_nothing_is_left_is_streamed(guess: Any) -> None:
    """No word twice, and no end: after the last word of the vocabulary there is none."""
    model, source = lively("gpt2"), Tokens.pad([SOURCES[3]])
    rules = Rules(no_repeat=1, min_length=60, max_length=60)

    def streamed(begin: Speculation | None) -> list[int]:
        said: list[int] = []
        words = map(said.append, stream(model, source, None, rules, speculation=begin))
        with pytest.raises(ConfigError, match="the rules leave no word"):
            deque(words, maxlen=0)
        return said

    plain = streamed(None)
    assert len(plain) > 15
    truth = Hypothesis(tuple(plain), (), ended=False, score=0.0)
    assert streamed(guess(truth).begin) == plain
    assert decode(model, source, GREEDY, rules, partial=True, speculation=guess(truth).begin) == [[]]


def test_what_can_not_be_guessed_ahead_is_refused() -> None:
    gpt2, across = lively("gpt2"), lively("before")
    with pytest.raises(ConfigError, match="a beam has several; use a beam of 1"):
        decoded(gpt2, SOURCES[:1], Beam(size=2), speculation=Ngrams.begin)
    with pytest.raises(ConfigError, match="a recurrent model can't take back"):
        decoded(lively("rnn-attention"), SOURCES[:1], GREEDY, speculation=Ngrams.begin)
    with pytest.raises(ConfigError, match=r"a draft of kind 'seq2seq' .* for a model of kind 'lm'"):
        decoded(gpt2, SOURCES[:1], GREEDY, speculation=drafting(across))
    fewer = small("gpt2", vocabulary=VOCABULARY - 1)
    assert isinstance(fewer, Generator)
    with pytest.raises(ConfigError, match=r"with 30 words can't guess .* with 31; take one of the same kind"):
        decoded(gpt2, SOURCES[:1], GREEDY, speculation=drafting(fewer))


def test_company_and_watchers_get_what_they_would() -> None:
    """Several sources and samples are read together, and whoever watches is told of each position: nothing is guessed."""
    model, untouched = lively("gpt2"), Scripted(lambda *_: pytest.fail("nobody should be asked"))
    for method, sources in ((GREEDY, SOURCES[:3]), (Sampling(samples=3), SOURCES[:1])):
        assert_same(decoded(model, sources, method, speculation=untouched.begin), decoded(model, sources, method))
    tree = Tree()
    assert_same(decoded(model, SOURCES[:1], GREEDY, speculation=untouched.begin, tree=tree), decoded(model, SOURCES[:1], GREEDY))


# That it is faster


@pytest.mark.usefixtures("even_clock")
def test_right_guesses_save_passes(passes: list[int]) -> None:
    model, rules = lively("gpt2"), Rules(max_length=48, min_length=48)
    for method in METHODS.values():
        plain = decoded(model, [SOURCES[5]], method, rules)[0][0]
        passes.clear()
        decoded(model, [SOURCES[5]], method, rules, speculation=right(plain).begin)
        assert sum(passes) == 47  # none was read in vain
        assert len(passes) <= 10
        passes.clear()
        decoded(model, [SOURCES[5]], method, rules)
        assert passes == [1] * 47


@pytest.mark.usefixtures("even_clock")
def test_wrong_guesses_are_soon_left_alone(passes: list[int]) -> None:
    """Those that take no time are still asked for; others now and then."""
    model = made_lively(KINDS["gpt2"])
    model.config = model.config.model_copy(update={"context": 1000})
    model.decoder.positions = small("gpt2", context=1000).decoder.positions  # type: ignore[assignment, union-attr]
    rules = Rules(max_length=400, min_length=400)
    plain = decoded(model, [SOURCES[5]], GREEDY, rules)[0][0]
    for free, at_most in ((True, 30), (False, 45)):
        passes.clear()
        guesser = always_wrong(plain)
        guesser.free = free
        assert decoded(model, [SOURCES[5]], GREEDY, rules, speculation=guesser.begin)[0][0].tokens == plain.tokens
        tried = [words for words in passes if words > 1]
        assert 5 < len(tried) <= at_most
        assert sum(passes) - 399 < 60  # words read in vain, all in all
        assert guesser.asked == 398 if free else guesser.asked == len(tried)


def test_better_times_are_noticed() -> None:
    pace = Pace()
    for _ in range(60):
        pace.learn(LONGEST, [1, 1], [2])
    assert pace.worth(LONGEST) == 0
    pace.learn(LONGEST, [1, 1], [1, 1])
    assert pace.worth(LONGEST) > 0


def test_pace_weighs_what_guesses_bring_against_what_they_take() -> None:
    pace = Pace()
    pace.rates = [0.9] * (LONGEST + 1)
    pace.plain.append(1.0)
    pace.ahead.append(1.0)
    free = pace.worth(0)
    assert free > 8
    pace.guessed.append(0.2)  # a guess takes a fifth of a pass
    assert 0 < pace.worth(0) < free
    pace.guessed[0] = 1.0  # as long as a pass
    assert pace.worth(0) == 0
    pace.guessed.clear()
    pace.ahead[0] = 5.0  # reading ahead takes five times as long as a recorded position
    assert pace.worth(0) > 0
    pace.rates = [0.6] * (LONGEST + 1)
    assert pace.worth(0) == 0


# Who guesses


def found_by_looking(text: list[int], most: int) -> tuple[list[int], int]:
    """The longest run at the end that stands there before, its latest place, and what follows."""
    for known in range(min(LONGEST, len(text)), 0, -1):
        for place in range(len(text) - 1, known - 1, -1):
            if text[place - known : place] == text[-known:]:
                return text[place : place + most], known
    return [], 0


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=8),
    st.integers(1, 6),
)
def test_ngrams_find_what_followed_before(prompt: list[int], pieces: list[list[int]], most: int) -> None:
    ngrams, written = Ngrams(prompt), list[int]()
    for piece in pieces:
        written += piece
        words, known = ngrams.guess(written, most)
        assert (list(words), known) == found_by_looking([*prompt, *written], most)


def test_ngrams_look_into_the_source_where_its_words_are_those_written() -> None:
    source, search = Tokens.pad([[5, 6, 7, 8]]), None
    across = Ngrams.begin(lively("before"), source, search)  # type: ignore[arg-type]
    assert across.guess([6], 9) == ([7, 8, -1, 6], 1)  # up to its end: what is no word is left out
    apart = small("transformer-base", source_vocabulary=40)
    assert isinstance(apart, Generator)
    assert Ngrams.begin(apart, source, search).guess([6], 9) == ((), 0)  # type: ignore[arg-type]
    assert Ngrams.begin(lively("gpt2"), source, search).guess([6], 9) == ([7, 8, 6], 1)  # type: ignore[arg-type]


@pytest.mark.usefixtures("even_clock")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_draft_that_is_the_model_itself_is_always_right(kind: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance and filters are those of the search; and so its cache is never wrong."""
    monkeypatch.setattr(Pace, "worth", lambda *_: 5)
    model, guessed = lively(kind), list[tuple[int, ...]]()
    original = speculation.Drafted.guess

    def told(self: speculation.Drafted, written: Sequence[int], most: int) -> Guess:
        found = original(self, written, most)
        guessed.append((*written, *found.words))
        return found

    monkeypatch.setattr(speculation.Drafted, "guess", told)
    for source in SOURCES[4:9]:
        guessed.clear()
        truth = outputs_of(assert_unchanged(model, source, METHODS[method], drafting(model)))
        shared = [tuple(truth)[: len(words)] == words[: len(truth)] for words in guessed]
        assert all(shared)


@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_another_draft_changes_nothing(kind: str, method: str) -> None:
    preset, more, noise, push, seed = KINDS[kind]
    for draft in (
        made_lively(Kind(preset, more, noise, push, seed + 1)),
        made_lively(Kind(preset, {**more, "context": 24}, noise, push, seed)),
    ):
        for source in SOURCES[5:8]:
            assert_unchanged(lively(kind), source, METHODS[method], drafting(draft))


def test_a_draft_with_no_room_says_nothing() -> None:
    draft = made_lively(Kind("gpt2", {"context": 8}, 0.3, 1, 2))
    for source in (SOURCES[6], SOURCES[7], SOURCES[12]):  # one word short of its context, as long as it, and longer
        assert_unchanged(lively("gpt2"), source, GREEDY, drafting(draft))


@pytest.mark.gpu
@pytest.mark.usefixtures("keen")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_on_a_gpu_as_on_a_cpu(kind: str, method: str) -> None:
    """Guessed passes between replays of the recorded one."""
    model = made_lively(KINDS[kind]).to("cuda")
    for source in SOURCES[4:9]:
        plain = decoded(lively(kind), [source], METHODS[method])
        for guesser in (right_for_a_while(plain[0][0]), Scripted(lambda written, _: [3, 4] if len(written) % 3 == 0 else [])):
            assert_same(decoded(model, [source], METHODS[method], speculation=guesser.begin), plain, 1e-6)
