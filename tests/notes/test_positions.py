"""Positions: why they are needed, why they are sines and cosines, and the other ways to tell them."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from regard.config import EncoderConfig
from regard.data.batch import Tokens
from regard.models import Encoder
from regard.nn.backends import attend
from regard.nn.embedding import Embedder
from regard.nn.positions import Learned, Rotary, Sinusoidal, frequencies, sinusoid
from regard.nn.recurrent import RecurrentEncoder


def table(length: int, width: int) -> Tensor:
    return sinusoid(torch.arange(length), width, dtype=torch.float64)


def reader(positions: str) -> Encoder:
    torch.manual_seed(1)
    config = EncoderConfig.model_validate(
        {"vocabulary": 10, "layers": 2, "width": 16, "heads": 2, "feedforward": 32, "positions": positions, "dropout": 0.0}
    )
    return Encoder(config).eval().double()


THE, SUN, RISES, IN, EAST = range(3, 8)
SUNRISE = [THE, SUN, RISES, IN, THE, EAST]


@pytest.mark.parametrize("order", [[2, 3, 0, 1, 4, 5], [0, 5, 2, 3, 4, 1]])  # rises in the sun the east; the east rises in the sun
def test_without_positions_the_order_of_words_is_lost(order: list[int]) -> None:
    ids = torch.tensor([SUNRISE])
    model = reader("none")
    torch.testing.assert_close(model(Tokens(ids[:, order])), model(Tokens(ids))[:, order])
    placed = reader("sinusoidal")
    assert (placed(Tokens(ids[:, order])) - placed(Tokens(ids))[:, order]).abs().max() > 0.01


def test_who_killed_whom_needs_positions() -> None:
    nithish, killed, lion = 3, 4, 5
    both = Tokens(torch.tensor([[nithish, killed, lion], [lion, killed, nithish]]))
    model = reader("none")
    one, other = model.pool(model(both), both)
    torch.testing.assert_close(one, other)
    placed = reader("sinusoidal")
    one, other = placed.pool(placed(both), both)
    assert (one - other).abs().max() > 0.01


def test_a_recurrent_network_knows_the_order_by_itself() -> None:
    torch.manual_seed(1)
    embedder, encoder = Embedder(10, 16), RecurrentEncoder(16, 1, bidirectional=False)
    _, hidden = encoder(embedder(torch.tensor([[3, 4, 5], [5, 4, 3]])), torch.tensor([3, 3]))
    assert (hidden.state[:, 0] - hidden.state[:, 1]).abs().max() > 0.01


def test_encoder_input_of_the_two_cats() -> None:
    """YOUR CAT IS A LOVELY CAT: one embedding, two positions, and the sums that the notes give for them."""
    your, cat, is_, a, lovely = range(5)
    embedder, positions = Embedder(5, 4, scaled=False).double(), Learned(6, 4).double()
    with torch.no_grad():
        embedder.weight[cat] = torch.tensor([171.411, 3276.350, 9192.819, 3633.421])
        positions.weight[1] = torch.tensor([1664.068, 8080.133, 2620.399, 9386.405])
        positions.weight[5] = torch.tensor([1281.458, 7902.890, 912.970, 1659.217])
    tokens = Tokens(torch.tensor([[your, cat, is_, a, lovely, cat]]))
    inputs = positions.embed(embedder(tokens.ids), tokens.positions)[0]
    expected = torch.tensor([[1835.479, 11356.483, 11813.218, 13019.826], [1452.869, 11179.24, 10105.789, 5292.638]], dtype=torch.float64)
    torch.testing.assert_close(inputs[[1, 5]], expected, atol=1e-3, rtol=0)


def test_a_plain_counter_is_unbounded_and_sines_are_not() -> None:
    far = torch.tensor([0, 100, 1_000_000])
    assert sinusoid(far, 512, dtype=torch.float64).abs().max() <= 1.0 < far.max()


def test_positions_change_smoothly() -> None:
    """A counter knows whole numbers only; these are defined between them, and a small step is a small change."""
    start = torch.linspace(0, 50, 101, dtype=torch.float64)
    for step in (1e-1, 1e-3, 1e-5):
        change = sinusoid(start + step, 64, dtype=torch.float64) - sinusoid(start, 64, dtype=torch.float64)
        assert change.abs().max() <= step  # no frequency is above 1


def test_each_function_is_periodic() -> None:
    positions, width = torch.arange(20, dtype=torch.float64), 8
    here = sinusoid(positions, width, dtype=torch.float64)
    for pair, speed in enumerate(frequencies(width, 10000.0, torch.device("cpu"), torch.float64)):
        later = sinusoid(positions + 2 * math.pi / speed, width, dtype=torch.float64)
        columns = slice(2 * pair, 2 * pair + 2)
        torch.testing.assert_close(later[:, columns], here[:, columns])


def test_more_functions_keep_positions_apart() -> None:
    """One sine gives far positions almost the same number; the more functions, the farther apart the nearest two of 500."""
    sine = table(500, 2)[:, :1]
    nearest = [torch.pdist(sine).min()] + [torch.pdist(table(500, width)).min() for width in (2, 4, 8, 32, 128)]
    assert nearest[0] < 1e-4
    assert all(more > fewer for fewer, more in itertools.pairwise(nearest))
    assert nearest[-1] > 1.0


def test_river_at_position_0_is_0_1_0_1_0_1() -> None:
    assert sinusoid(torch.tensor(0), 6).tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("position", [1, 2, 17])
def test_positions_follow_the_formula(position: int) -> None:
    expected = []
    for i in range(3):  # d = 6: i is 0, 1, 2
        angle = position / 10000 ** (2 * i / 6)
        expected += [math.sin(angle), math.cos(angle)]
    torch.testing.assert_close(sinusoid(torch.tensor(position), 6, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64))


def test_fifty_words_of_128_numbers_barely_differ_in_the_last() -> None:
    picture = table(50, 128)
    assert picture[0].tolist() == [0, 1] * 64
    span = picture.amax(0) - picture.amin(0)
    assert span[:2].min() > 1.9
    assert span[-2:].max() < 0.01


def test_frequency_falls_along_the_dimension() -> None:
    speed = frequencies(128, 10000.0, torch.device("cpu"), torch.float64)
    assert speed[0] == 1
    assert (speed.diff() < 0).all()
    crossings = (table(2000, 128)[:, 0::2].sign().diff(dim=0) != 0).sum(0)
    assert (crossings.diff() <= 0).all()
    assert crossings[0] > 50 * crossings[32] > 0


def test_sines_count_like_binary_digits() -> None:
    """With each frequency half the last, the sign of every sine is one digit: the lowest turns at each step, the highest seldom."""
    numbers = torch.arange(16)
    sines = sinusoid((numbers + 0.5) * math.pi, 8, base=16.0, dtype=torch.float64)[:, 0::2]
    digits = [[int(sine < 0) for sine in row.flip(0)] for row in sines]
    assert digits == [[int(digit) for digit in f"{number:04b}"] for number in numbers.tolist()]


@pytest.mark.parametrize("offset", [1, 5, 30])
def test_an_offset_is_one_rotation_for_all_positions(offset: int) -> None:
    """PE(pos + k) = R(k) PE(pos), the same R(k) wherever pos is: so relative positions are a linear map away."""
    width = 16
    blocks = [
        torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], dtype=torch.float64)
        for angle in (offset * frequencies(width, 10000.0, torch.device("cpu"), torch.float64)).tolist()
    ]
    rotation = torch.block_diag(*blocks)
    positions = table(100, width)
    torch.testing.assert_close(positions[:-offset] @ rotation.T, positions[offset:])


def test_near_positions_are_nearer_than_far_ones() -> None:
    positions = table(60, 512)
    similarity = positions @ positions.T
    for distance in range(1, 25):
        torch.testing.assert_close(similarity.diagonal(distance), similarity[0, distance].expand(60 - distance))
    assert (similarity[0, :25].diff() < 0).all()


def test_sinusoids_are_fixed_and_as_wide_as_the_words() -> None:
    scheme, positions = Sinusoidal(16), torch.arange(5)[None]
    one, other = torch.randn(2, 1, 5, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert list(scheme.parameters()) == []
    torch.testing.assert_close(scheme.embed(one, positions) - one, scheme.embed(other, positions) - other)
    torch.testing.assert_close(scheme.embed(one, positions) - one, table(5, 16)[None])


def test_equal_words_have_equal_rows_until_positions_are_added() -> None:
    generator = torch.Generator().manual_seed(1)
    your, cat, is_, a, lovely = torch.randn(5, 64, dtype=torch.float64, generator=generator)
    sentence = torch.stack((your, cat, is_, a, lovely, cat))
    plain = attend(sentence, sentence, sentence).weights
    torch.testing.assert_close(plain[1], plain[5])
    placed = sentence + table(6, 64)
    weights = attend(placed, placed, placed).weights
    assert (weights[1] - weights[5]).abs().max() > 0.01


def test_learned_positions_are_learned_like_words() -> None:
    scheme = Learned(8, 4).double()
    x = torch.zeros(1, 3, 4, dtype=torch.float64)
    target = torch.randn(1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    before = scheme.weight.detach().clone()
    (scheme.embed(x, torch.arange(3)[None]) - target).square().sum().backward()
    with torch.no_grad():
        scheme.weight -= 0.5 * scheme.weight.grad  # one step to the minimum of a square
    torch.testing.assert_close(scheme.embed(x, torch.arange(3)[None]), target)
    torch.testing.assert_close(scheme.weight[3:], before[3:])  # positions that did not occur were not touched


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    return Rotary(x.shape[-1]).turn(positions, torch.float64).apply(x)


def test_rotary_positions_turn_by_the_same_angles_and_keep_lengths() -> None:
    x = torch.randn(1, 2, 10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    turned = rotated(x, torch.arange(10)[None])
    assert (turned - x)[:, :, 1:].abs().max() > 0.1
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    unit = torch.tensor([0.0, 1.0] * 4, dtype=torch.float64).expand(1, 1, 10, 8)  # turning (0, 1) gives (-sin, cos)
    signs = torch.tensor([-1.0, 1.0] * 4, dtype=torch.float64)
    torch.testing.assert_close(rotated(unit, torch.arange(10)[None])[0, 0] * signs, table(10, 8))


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def score(query_at: int, key_at: int) -> Tensor:
        turned = rotated(query, torch.tensor([[query_at]])), rotated(key, torch.tensor([[key_at]]))
        return attend(*turned, key).scores

    torch.testing.assert_close(score(5, 2), score(105, 102))
    assert (score(5, 2) - score(5, 3)).abs() > 1e-3
