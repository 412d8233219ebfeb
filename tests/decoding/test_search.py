"""Search over the protocol, for every family that writes, against enumeration of all outputs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from regard.data.batch import Tokens
from regard.decoding.rules import Steering
from regard.decoding.runner import decode
from regard.decoding.search import BeamSearch, Hypothesis
from regard.decoding.settings import GREEDY, Beam, Length, Rules
from regard.errors import ConfigError
from regard.models import Generator, build
from regard.presets import preset
from tests.decoding.plain import Output, log_probabilities, plain_beam_search

WORDS = 5  # 0 pad, 1 start, 2 end, and two more: all outputs of a few words can be enumerated
SOURCES = [[3, 4, 3], [4], [3, 3, 4, 4, 3]]


@cache
def model_of(name: str) -> Generator:
    torch.manual_seed(7)
    shape = {"vocabulary": WORDS, "width": 16, "pad_token": 0, "start_token": 1, "end_token": 2}
    if not name.startswith("rnn"):
        shape |= {"layers": 2, "heads": 2, "feedforward": 32}
    model = build(preset(name, **shape)).double().eval()
    assert isinstance(model, Generator)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # sharper than at birth, so that outputs differ in probability
    return model


@cache
@torch.no_grad()
def every_output(name: str, source: tuple[int, ...], max_length: int) -> list[Output]:
    """All outputs there can be: those that end, and those cut off at `max_length`."""
    model, outputs = model_of(name), []
    for length in range(max_length + 1):
        for words in product([word for word in range(WORDS) if word != 2], repeat=length):
            logs = log_probabilities(model, list(source), words)
            total = sum(float(logs[i, word]) for i, word in enumerate(words))
            if length < max_length:
                outputs.append(Output(words, total + float(logs[length, 2]), ended=True))
            else:
                outputs.append(Output(words, total, ended=False))
    return outputs


def beam_search(
    model: Generator, source: Tokens, *, beam_size: int, max_length: int, length_penalty: float = 0.0, n_best: int | None = None
) -> list[list[Hypothesis]]:
    beam = Beam(size=beam_size, length_penalty=length_penalty, n_best=n_best or beam_size)
    return decode(model, source, beam, Rules(max_length=Length(plus=max_length)))


def greedy(model: Generator, source: Tokens, *, max_length: int) -> list[Hypothesis]:
    return [found[0] for found in decode(model, source, GREEDY, Rules(max_length=Length(plus=max_length)))]


FAMILIES = ["transformer-tiny", "gpt-small", "rnn-attention", "rnn-plain"]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_takes_the_most_probable_word(name: str) -> None:
    model = model_of(name)
    for source, found in zip(SOURCES, greedy(model, Tokens.pad(SOURCES), max_length=6), strict=True):
        words: tuple[int, ...] = ()
        while len(words) < 6:
            word = int(log_probabilities(model, source, words)[-1].argmax())
            if word == 2:
                break
            words += (word,)
        assert found.tokens == words
        assert found.ended == (len(words) < 6)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
def test_beam_equals_exhaustive_search(name: str, length_penalty: float) -> None:
    model, longest = model_of(name), 3
    found = beam_search(model, Tokens.pad(SOURCES), beam_size=WORDS**longest, max_length=longest, length_penalty=length_penalty)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        want = sorted(every_output(name, tuple(source), longest), key=lambda hypothesis: -hypothesis.score(length_penalty))
        assert [hypothesis.tokens for hypothesis in hypotheses] == [hypothesis.tokens for hypothesis in want]
        for ours, theirs in zip(hypotheses, want, strict=True):
            assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_score_is_the_sum_of_the_chosen_words(name: str) -> None:
    model = model_of(name)
    for source, hypotheses in zip(SOURCES, beam_search(model, Tokens.pad(SOURCES), beam_size=3, max_length=8), strict=True):
        assert len(hypotheses) == 3
        for hypothesis in hypotheses:
            words = (*hypothesis.tokens, 2) if hypothesis.ended else hypothesis.tokens
            with torch.no_grad():
                logs = log_probabilities(model, source, hypothesis.tokens)
            assert hypothesis.log_probability == pytest.approx(sum(float(logs[i, word]) for i, word in enumerate(words)), abs=1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_result_never_depends_on_the_batch(name: str) -> None:
    model = model_of(name)
    together = beam_search(model, Tokens.pad(SOURCES), beam_size=3, max_length=8, length_penalty=1.0)
    for source, hypotheses in zip(SOURCES, together, strict=True):
        alone = beam_search(model, Tokens.pad([source]), beam_size=3, max_length=8, length_penalty=1.0)[0]
        assert [hypothesis.tokens for hypothesis in alone] == [hypothesis.tokens for hypothesis in hypotheses]
        for one, other in zip(alone, hypotheses, strict=True):
            assert one.log_probability == pytest.approx(other.log_probability, abs=1e-9)


def test_a_wider_beam_is_never_worse_than_exhaustive_allows() -> None:
    model = model_of("transformer-tiny")
    best = max(every_output("transformer-tiny", tuple(SOURCES[0]), 4), key=lambda hypothesis: hypothesis.log_probability)
    scores = [beam_search(model, Tokens.pad(SOURCES[:1]), beam_size=size, max_length=4)[0][0].log_probability for size in (1, 2, 4, 600)]
    assert all(score <= best.log_probability + 1e-9 for score in scores)
    assert scores[-1] == pytest.approx(best.log_probability, abs=1e-9)


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="'size' = 0"):
        Beam(size=0)
    with pytest.raises(ConfigError, match="widen the beam"):
        Beam(size=2, n_best=3)
    with pytest.raises(ConfigError, match="does not divide"):
        Beam(size=4, groups=3)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_beam_equals_the_plain_one(name: str, size: int, length_penalty: float) -> None:
    """All hypotheses, in order, with their scores; and the best alone is the same, though its search may stop earlier."""
    model = model_of(name)
    found = beam_search(model, Tokens.pad(SOURCES), beam_size=size, max_length=9, length_penalty=length_penalty)
    best = beam_search(model, Tokens.pad(SOURCES), beam_size=size, max_length=9, length_penalty=length_penalty, n_best=1)
    for source, hypotheses, only in zip(SOURCES, found, best, strict=True):
        want = plain_beam_search(model, source, size=size, max_length=9, length_penalty=length_penalty)
        assert [hypothesis.tokens for hypothesis in hypotheses] == [output.tokens for output in want]
        assert only[0].tokens == want[0].tokens
        for ours, theirs in zip(hypotheses, want, strict=True):
            assert ours.score == pytest.approx(theirs.score(length_penalty), abs=1e-9)
            assert ours.ended == theirs.ended
            assert len(ours.log_probabilities) == len(ours.tokens) + ours.ended


@pytest.mark.parametrize(("groups", "stops"), [(1, ()), (1, (9,)), (2, ())])
@pytest.mark.parametrize("n_best", [1, 2, 4])
def test_what_is_found_is_told_exactly(n_best: int, groups: int, stops: tuple[int, ...]) -> None:
    """Put there by hand: best first, each once though it was come to in two ways, nothing where nothing is, and no number rounded."""
    steering = Steering.of(Rules(), [3, 3, 3], 2, stops=stops, most=[6, 6, 6])
    search = BeamSearch(Beam(size=4, groups=groups, n_best=n_best), steering, room=6)
    third = float(torch.tensor(1 / 3))  # as float32 has it
    one, two = Hypothesis((4, 5), (-third, -0.1, -third), True, -0.2), Hypothesis((2**40 + 1,), (-0.25,), False, -1 / 3)
    # The same tokens twice, which two groups or two ways to end can bring about.
    first = [one, None, one, two] if groups > 1 else [one, one, two, None] if stops else [one, two, None, None]
    rows = [first, [None] * 4, [one, None, None, None]]
    for row, hypotheses in enumerate(rows):
        for place, hypothesis in enumerate(hypotheses):
            if hypothesis is not None:
                at, found = (row, place // search.width, place % search.width), search.finished
                length = len(hypothesis.log_probabilities)
                found.rank[at] = found.score[at] = hypothesis.score
                found.words[at][:length] = torch.tensor([*hypothesis.tokens, 2][:length])
                found.logs[at][:length] = torch.tensor(hypothesis.log_probabilities)
                found.length[at], found.ended[at] = length, hypothesis.ended
    exact = replace(one, log_probabilities=tuple(torch.tensor(one.log_probabilities).tolist()))
    assert search.results(torch.tensor([2, 0, 1])) == [[exact], [exact, two][:n_best], []]
    assert search.results(torch.tensor([], dtype=torch.long)) == []
