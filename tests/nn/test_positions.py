"""Position schemes against the papers' formulas and other people's code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from regard.config import RotaryScaling
from regard.nn.positions import Alibi, Learned, Positions, RelativeBias, Rotary, Sinusoidal, alibi_slopes, sinusoid


@given(position=st.integers(0, 5000), half=st.integers(1, 40))
def test_sinusoid_is_the_formula(position: int, half: int) -> None:
    width = 2 * half
    want = [(math.sin, math.cos)[j % 2](position / 10000 ** (2 * (j // 2) / width)) for j in range(width)]
    got = sinusoid(torch.tensor([position]), width, dtype=torch.double)[0]
    torch.testing.assert_close(got, torch.tensor(want, dtype=torch.double))
    halves = sinusoid(torch.tensor([position]), width, layout="halves", dtype=torch.double)[0]
    torch.testing.assert_close(halves, torch.tensor(want[0::2] + want[1::2], dtype=torch.double))


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@given(shift=st.integers(0, 3000), distance=st.integers(-50, 50))
def test_rotary_depends_on_the_distance_alone(layout: str, shift: int, distance: int) -> None:
    rotary = Rotary(16, layout=layout)
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 16, dtype=torch.double)

    def score(where: int) -> torch.Tensor:
        place = rotary.place(torch.tensor([[where]]), torch.tensor([[where + distance]]), torch.double)
        assert place.query is not None
        assert place.key is not None
        return (place.turn_query(query) * place.turn_key(key)).sum()

    torch.testing.assert_close(score(60), score(60 + shift))
    turned = rotary.turn(torch.tensor([[shift]]), torch.double).apply(query)
    torch.testing.assert_close(turned.norm(), query.norm())  # only the direction changes


@pytest.mark.parametrize("scaling", [None, "linear", "llama3"])
def test_rotary_equals_llama(scaling: str | None) -> None:
    theirs: dict[str, Any] = {"rope_type": scaling or "default", "rope_theta": 500.0}
    ours = None
    if scaling == "linear":
        theirs["factor"] = 4.0
        ours = RotaryScaling(kind="linear", factor=4.0)
    if scaling == "llama3":
        theirs |= {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        ours = RotaryScaling(kind="llama3", factor=8.0, original_context=64)
    embedding = LlamaRotaryEmbedding(LlamaConfig(hidden_size=64, num_attention_heads=4, rope_parameters=theirs))
    query, positions = torch.randn(2, 4, 9, 16), torch.stack((torch.arange(9), torch.arange(9) * 7))
    want, _ = apply_rotary_pos_emb(query, query, *embedding(query, positions))
    turn = Rotary(16, base=500.0, layout="halves", scaling=ours).turn(positions, torch.float32)
    torch.testing.assert_close(turn.apply(query), want)


def test_rotary_layouts_are_one_scheme() -> None:
    """Interleaved pairs and halves differ by an order of the numbers that both queries and keys share."""
    x, positions = torch.randn(1, 2, 5, 8), torch.arange(5)[None]
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    interleaved = Rotary(8).turn(positions, torch.float32).apply(x)
    halves = Rotary(8, layout="halves").turn(positions, torch.float32).apply(x[..., order])
    torch.testing.assert_close(interleaved[..., order], halves)


def test_rotary_phases_are_float32_for_half_precision() -> None:
    """In bfloat16 a position past 256 can't even be written down."""
    place = Rotary(8).place(torch.tensor([[1001]]), torch.tensor([[1001]]), torch.bfloat16)
    assert place.query is not None
    assert place.query.cos.dtype == torch.float32
    torch.testing.assert_close(place.query.cos[0, 0, 0, 0], torch.tensor(1001.0).cos())
    assert place.turn_query(torch.ones(1, 1, 1, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_slopes_equal_bloom(heads: int) -> None:
    theirs = build_alibi_tensor(torch.ones(1, 5), heads, torch.float32).reshape(heads, 5)  # slope × key position
    torch.testing.assert_close(alibi_slopes(heads)[:, None] * torch.arange(5), theirs)
    bias = Alibi(heads).place(torch.tensor([[4]]), torch.arange(5)[None], torch.float32).bias
    assert bias is not None
    torch.testing.assert_close(bias[0, :, 0].softmax(-1), theirs.softmax(-1))  # they count from the first key, we from the query


@pytest.mark.parametrize("both_ways", [True, False])
@given(offset=st.integers(-300, 300), buckets=st.sampled_from([8, 32]), distance=st.sampled_from([20, 128]))
def test_relative_buckets_equal_t5(both_ways: bool, offset: int, buckets: int, distance: int) -> None:
    ours = RelativeBias(2, buckets, distance, both_ways=both_ways).bucket(torch.tensor([offset]))
    theirs = T5Attention._relative_position_bucket(torch.tensor([offset]), both_ways, buckets, distance)
    assert ours.tolist() == theirs.tolist()


def test_rows_may_stand_at_different_places() -> None:
    """Each scheme, row by row, gives what it gives for that row alone."""
    where = torch.tensor([[0, 1, 2], [7, 8, 9], [3, 3, 0]])
    x = torch.randn(3, 3, 8, dtype=torch.double)
    schemes = [Positions(), Sinusoidal(8), Learned(16, 8).double(), Rotary(8), Alibi(2), RelativeBias(2, both_ways=True).double()]
    for scheme in schemes:
        embedded, place = scheme.embed(x, where), scheme.place(where, where, torch.double)
        for row in range(3):
            one = where[row : row + 1]
            torch.testing.assert_close(embedded[row : row + 1], scheme.embed(x[row : row + 1], one))
            alone = scheme.place(one, one, torch.double)
            if place is not None and place.bias is not None:
                assert alone is not None
                torch.testing.assert_close(place.bias[row : row + 1], alone.bias)
            if place is not None and place.query is not None:
                assert alone is not None
                assert alone.query is not None
                torch.testing.assert_close(place.query.cos[row : row + 1], alone.query.cos)
