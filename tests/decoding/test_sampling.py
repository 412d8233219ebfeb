"""Words drawn by chance: as often as the softmax says, and repeatable, whatever else is drawn at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LogitsProcessorList, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from regard.data.batch import Tokens
from regard.decoding.runner import decode, stream
from regard.decoding.sampling import draw, probabilities, uniform
from regard.decoding.settings import GREEDY, Beam, Rules, Sampling
from regard.errors import ConfigError, RegardError
from tests.decoding.lively import KINDS, LONGEST, ONE_OF_EACH, SOURCES, assert_lively, assert_same, decoded, lively
from tests.decoding.plain import log_probabilities
from tests.decoding.test_search import every_output, model_of

SURE = 1e-4  # how improbable the counts of a right sampler may look; all seeds are fixed, so what passes once passes always


def chance_of(counts: Sequence[float], expected: Sequence[float]) -> float:
    """The p-value of Pearson's chi-square; what is expected less than 5 times is counted together."""
    pairs = [pair for pair in zip(expected, counts, strict=True) if pair != (0, 0)]
    few = [pair for pair in pairs if pair[0] < 5]
    bins = [pair for pair in pairs if pair[0] >= 5]
    if few:
        bins.append((sum(pair[0] for pair in few), sum(pair[1] for pair in few)))
    statistic = sum((count - want) ** 2 / want for want, count in bins)
    return float(torch.special.gammaincc(torch.tensor((len(bins) - 1) / 2), torch.tensor(statistic / 2)))


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1])


# Chance


def mixed(x: int) -> int:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift)) * factor % 2**64
    return x ^ (x >> 31)


def plain_uniform(seed: int, number: int, place: int) -> float:
    """The same in Python's whole numbers."""
    row = mixed((number * 0x9E3779B97F4A7C15 + seed) % 2**64)
    return (mixed((row + place * 0xC2B2AE3D27D4EB4F + 1) % 2**64) >> 11) / 2**53


@given(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_chance_is_a_function_of_seed_number_and_position(seed: int, number: int, place: int) -> None:
    assert float(uniform(seed, torch.tensor([number]), torch.tensor([place]))) == plain_uniform(seed, number, place)


MANY = 20_000
AXES: dict[str, Callable[[], Tensor]] = {
    "numbers": lambda: uniform(7, torch.arange(MANY), torch.tensor([3]))[:, 0],
    "sources": lambda: uniform(7, torch.arange(MANY) * 1_000_003, torch.tensor([3]))[:, 0],
    "positions": lambda: uniform(7, torch.zeros(MANY, dtype=torch.long), torch.arange(MANY))[:, 0],
    "seeds": lambda: torch.cat([uniform(seed, torch.tensor([5]), torch.tensor([3])) for seed in range(5000)])[:, 0],
}


@pytest.mark.parametrize("axis", AXES)
def test_chance_is_even_and_neighbours_are_strangers(axis: str) -> None:
    points = AXES[axis]()
    assert points.dtype == torch.double
    assert 0 <= float(points.min()) <= float(points.max()) < 1
    counts = points.mul(100).long().bincount(minlength=100)
    assert chance_of(counts.tolist(), [len(points) / 100] * 100) > SURE
    pairs = (points[:-1].mul(10).long() * 10 + points[1:].mul(10).long()).bincount(minlength=100)
    assert chance_of(pairs.tolist(), [(len(points) - 1) / 100] * 100) > SURE
    for apart in (1, 2, 3, 64):
        assert abs(correlation(points[:-apart], points[apart:])) < 4 / len(points) ** 0.5


def test_seeds_and_positions_are_strangers_to_each_other() -> None:
    numbers = torch.arange(MANY) * 1_000_003
    here, next_place, next_seed = (uniform(*at)[:, 0] for at in ((0, numbers, 0), (0, numbers, 1), (1, numbers, 0)))
    far = uniform(2**62, numbers, 0)[:, 0]
    for one, other in ((here, next_place), (here, next_seed), (next_place, next_seed), (here, far)):
        assert abs(correlation(one, other)) < 4 / MANY**0.5


@given(
    st.lists(st.floats(0, 1).map(lambda x: x if x > 0.2 else 0.0), min_size=1, max_size=8).filter(any), st.floats(0, 1, exclude_max=True)
)
def test_a_draw_is_where_the_summed_chances_pass_the_point(chances: list[float], point: float) -> None:
    table = torch.tensor([chances]) / sum(chances)
    word = int(draw(table, torch.tensor([[point]], dtype=torch.double)))
    assert chances[word] > 0  # what can't be drawn never is
    summed = table[0].double().cumsum(0)
    assert (float(summed[word - 1]) if word else 0.0) <= point * float(summed[-1]) < float(summed[word])


# Filters

SETTINGS = st.builds(
    dict,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.8]),
    top_k=st.sampled_from([0, 1, 3, 10, 31, 99]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
)


def theirs(logits: Tensor, asked: dict[str, float]) -> Tensor:
    """What Hugging Face would draw from."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(float(asked["temperature"]))])
    if asked["top_k"]:
        warpers.append(TopKLogitsWarper(int(asked["top_k"])))
    if asked["top_p"] < 1:
        warpers.append(TopPLogitsWarper(asked["top_p"]))
    if asked["min_p"]:
        warpers.append(MinPLogitsWarper(asked["min_p"]))
    return warpers(torch.zeros(len(logits), 1, dtype=torch.long), logits).softmax(-1)


@settings(deadline=None)
@given(SETTINGS, st.integers(0, 10_000))
def test_filters_equal_hugging_face(asked: dict[str, float], seed: int) -> None:
    logits = torch.randn(3, 31, generator=torch.Generator().manual_seed(seed), dtype=torch.double) * 3
    logits[:, ::7] = float("-inf")  # what a rule turned off
    torch.testing.assert_close(probabilities(logits, Sampling(**asked)), theirs(logits, asked), rtol=1e-9, atol=1e-12)


def test_equal_words_stay_together_in_the_top_k() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    assert (probabilities(logits, Sampling(top_k=2)) > 0).tolist() == [[True, True, True, True, False]]


@pytest.mark.parametrize("temperature", [1e-3, 1e-12, 1e-40, 1e-300])
def test_next_to_no_temperature_is_none(temperature: float) -> None:
    logits = torch.tensor([[30.0, -80.0, 31.0, 5.0]])
    torch.testing.assert_close(probabilities(logits, Sampling(temperature=temperature)), torch.tensor([[0.0, 0.0, 1.0, 0.0]]))


@pytest.mark.parametrize(
    "asked", [{"temperature": -1}, {"temperature": float("inf")}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": 2}, {"top_k": -1},
              {"samples": 0}, {"seed": -1}, {"seed": 2**63}, {"temperature": float("nan")}]
)  # fmt: skip
def test_senseless_settings_are_refused(asked: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"'{next(iter(asked))}' = "):
        Sampling(**asked)


# How often


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0.7}, {"temperature": 1.5}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1},
              {"temperature": 0.7, "top_k": 12, "top_p": 0.9, "min_p": 0.02}],
    ids=lambda asked: "-".join(asked) or "plain",
)  # fmt: skip
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_words_come_as_often_as_they_should(kind: str, asked: dict[str, float]) -> None:
    """The first word of many samples, against what Hugging Face's filters leave of the softmax."""
    model, source, many = lively(kind), SOURCES[9], 1000
    drawn = decoded(model, [source], Sampling(samples=many, seed=2, **asked), Rules(max_length=1))[0]
    counts = Counter(output.tokens[0] if output.tokens else 2 for output in drawn)
    own = log_probabilities(model, source, ())
    want = theirs(own, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | asked)[0]
    assert all(want[word] > 0 for word in counts)  # nothing that was cut off
    assert all(word in counts for word, chance in enumerate(want.tolist()) if chance > 0.01)
    assert chance_of([counts[word] for word in range(31)], (want * many).tolist()) > SURE
    for output in drawn[:50]:  # what is told is the model's own opinion, whatever was made of it for the draw
        assert output.log_probability == pytest.approx(float(own[0, output.tokens[0] if output.tokens else 2]), abs=1e-9)
        assert output.score == output.log_probability


@pytest.mark.parametrize("name", ["transformer-tiny", "gpt-small", "rnn-attention"])
def test_whole_outputs_come_as_often_as_they_are_probable(name: str) -> None:
    rows, many = 6, 6000
    outputs = decode(model_of(name), Tokens.pad([[3, 4, 3]] * rows), Sampling(samples=many // rows, seed=11), Rules(max_length=3))
    drawn = [output for row in outputs for output in row]
    every = every_output(name, (3, 4, 3), 3)
    counts = Counter((output.tokens, output.ended) for output in drawn)
    expected = {(output.tokens, output.ended): many * float(torch.tensor(output.log_probability).exp()) for output in every}
    assert sum(expected.values()) == pytest.approx(many)
    assert counts.keys() <= expected.keys()
    assert chance_of([counts[output] for output in expected], list(expected.values())) > SURE


# Again, elsewhere, and in other company

SAMPLING = Sampling(temperature=0.9, top_p=0.95, seed=4)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_seed_repeats_and_another_differs(kind: str) -> None:
    model = lively(kind)
    first, again = (decoded(model, SOURCES, SAMPLING) for _ in range(2))
    assert first == again
    assert_lively([output[0] for output in first])
    other = decoded(model, SOURCES, SAMPLING.model_copy(update={"seed": 5}))
    assert sum(one[0].tokens != two[0].tokens for one, two in zip(first, other, strict=True)) > 48


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_the_state_of_torch_is_neither_used_nor_changed(kind: str) -> None:
    model = lively(kind)  # which draws its weights, where nobody had it made before
    torch.manual_seed(1)
    first, state = decoded(model, SOURCES[:8], SAMPLING), torch.get_rng_state()
    torch.manual_seed(2)
    assert decoded(model, SOURCES[:8], SAMPLING) == first
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_continues_alike_alone_in_a_batch_and_in_any_order(kind: str) -> None:
    model, numbers = lively(kind), [3 * place + 5 for place in range(len(SOURCES))]
    together = decoded(model, SOURCES, SAMPLING, numbers=numbers)
    order = torch.randperm(len(SOURCES), generator=torch.Generator().manual_seed(0)).tolist()
    shuffled = decoded(model, [SOURCES[place] for place in order], SAMPLING, numbers=[numbers[place] for place in order])
    assert_same(shuffled, [together[place] for place in order])
    for place in (0, 1, 17, 40, 63):
        assert_same(decoded(model, [SOURCES[place]], SAMPLING, numbers=[numbers[place]]), [together[place]])


def test_by_default_a_source_goes_by_its_place() -> None:
    model = lively("gpt2")
    assert_same(decoded(model, SOURCES, SAMPLING), decoded(model, SOURCES, SAMPLING, numbers=range(len(SOURCES))))
    twins = decoded(model, [SOURCES[5]] * 6, SAMPLING)
    assert len({output[0].tokens for output in twins}) > 3


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_more_samples_leave_the_first_as_they_were(kind: str) -> None:
    model = lively(kind)
    one, three, six = (decoded(model, SOURCES[:12], SAMPLING.model_copy(update={"samples": count})) for count in (1, 3, 6))
    assert [len(outputs) for outputs in six] == [6] * 12
    assert_same([outputs[:3] for outputs in six], three)
    assert_same([outputs[:1] for outputs in three], one)
    assert sum(len({output.tokens for output in outputs}) for outputs in six) > 40


def test_samples_each_begin_with_the_prefix_of_their_source() -> None:
    prefixes = [[5], [], [7, 8]]
    found = decoded(lively("before"), SOURCES[:3], Sampling(samples=4), prefixes=prefixes)
    for prefix, outputs in zip(prefixes, found, strict=True):
        assert all(list(output.tokens[: len(prefix)]) == prefix for output in outputs)


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_no_temperature_is_greedy(kind: str) -> None:
    model = lively(kind)
    greedy = decoded(model, SOURCES, GREEDY)
    for sampling in (Sampling(temperature=0, seed=9), Sampling(top_k=1, seed=9)):
        found = decoded(model, SOURCES, sampling)
        assert [(output[0].tokens, output[0].log_probabilities) for output in found] == [
            (output[0].tokens, output[0].log_probabilities) for output in greedy
        ]


# Word by word


@pytest.mark.parametrize(
    "rules", [Rules(max_length=LONGEST), Rules(max_length=9, no_repeat=2, min_length=3, banned=[(25,)]), Rules(max_length=1)]
)
@pytest.mark.parametrize("sampling", [None, Sampling(temperature=0.8, seed=6)], ids=["greedy", "sampling"])
@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_a_stream_is_what_decode_gives(kind: str, sampling: Sampling | None, rules: Rules) -> None:
    model = lively(kind)
    for source in SOURCES[2:7]:
        want = decoded(model, [source], sampling or GREEDY, rules)[0][0]
        assert tuple(stream(model, Tokens.pad([source]), sampling, rules)) == want.tokens


def test_a_stream_can_be_left() -> None:
    """And others run meanwhile: nothing is shared between them."""
    model = lively("gpt2")
    want = [decoded(model, [source], GREEDY)[0][0].tokens for source in SOURCES[4:6]]
    first, second = (stream(model, Tokens.pad([source]), rules=Rules(max_length=LONGEST)) for source in SOURCES[4:6])
    got: tuple[list[int], list[int]] = ([], [])
    for _ in range(3):
        got[0].append(next(first))
        got[1].append(next(second))
    first.close()
    got[1].extend(second)
    assert tuple(got[0]) == want[0][:3]
    assert tuple(got[1]) == want[1]
    assert not torch.is_inference_mode_enabled()


def test_a_stream_of_a_model_in_training_is_refused() -> None:
    model = lively("gpt2").train()
    try:
        with pytest.raises(RegardError, match=r"call model\.eval"):
            next(stream(model, Tokens.pad([SOURCES[0]])))
    finally:
        model.eval()


def test_a_stream_says_that_rules_leave_nothing() -> None:
    with pytest.raises(ConfigError, match="the rules leave no word"):
        list(stream(lively("gpt2"), Tokens.pad([SOURCES[0]]), rules=Rules(banned=[(word,) for word in range(31)], max_length=3)))


def test_a_beam_takes_no_chances() -> None:
    model = lively("gpt2")
    assert decoded(model, SOURCES[:4], Beam(size=3), numbers=[5, 6, 7, 8]) == decoded(model, SOURCES[:4], Beam(size=3))
