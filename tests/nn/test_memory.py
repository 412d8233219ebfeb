"""What a layer keeps beyond one segment: the states themselves, or a sum of keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError, ShapeError
from regard.nn.attention import Attention
from regard.nn.masks import Causal
from regard.nn.memory import Compressed, CompressiveAttention, SegmentRecurrence, compress, in_segments, retrieve
from regard.nn.positions import Alibi, Learned, Positions, RelativeBias, Rotary, Sinusoidal

WIDTH, HEADS, LENGTH = 16, 2, 12


def words(rows: int = 2, length: int = LENGTH, width: int = WIDTH) -> Tensor:
    return torch.randn(rows, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def layer(positions: Positions | None = None, reach: int = LENGTH, kv_heads: int | None = None) -> SegmentRecurrence:
    torch.manual_seed(2)
    return SegmentRecurrence(Attention(WIDTH, HEADS, kv_heads=kv_heads), reach, positions).double()


def relative(name: str) -> Positions | None:
    torch.manual_seed(3)
    schemes = {"rotary": Rotary(WIDTH // HEADS), "alibi": Alibi(HEADS), "bias": RelativeBias(HEADS, both_ways=False), "none": None}
    return schemes[name]


@pytest.mark.parametrize("scheme", ["none", "rotary", "alibi", "bias"])
@pytest.mark.parametrize("size", [1, 4, 5, 100])
def test_segments_with_enough_memory_equal_the_whole_text(scheme: str, size: int) -> None:
    recurrence, x = layer(relative(scheme)), words()
    slots = torch.arange(LENGTH)[None]
    place = recurrence.positions.place(slots, slots, x.dtype)
    whole = recurrence.attention(x, mask=Causal().build(LENGTH), positions=place)
    torch.testing.assert_close(in_segments(recurrence, x, size)[0], whole)


def test_segments_serve_grouped_heads_too() -> None:
    recurrence, x = layer(kv_heads=1), words()
    torch.testing.assert_close(in_segments(recurrence, x, 4)[0], recurrence.attention(x, mask=Causal().build(LENGTH)))


def test_without_memory_a_segment_knows_nothing_of_the_last() -> None:
    recurrence, x = layer(reach=0), words()
    outputs, memory = in_segments(recurrence, x, 4)
    assert memory is not None
    assert memory.shape == (2, 0, WIDTH)
    alone, _ = recurrence(x[:, 4:8])
    torch.testing.assert_close(outputs[:, 4:8], alone)


def test_memory_holds_the_newest_states_and_no_more() -> None:
    x = words()
    _, memory = in_segments(layer(reach=6), x, 4)
    torch.testing.assert_close(memory, x[:, -6:])


def test_no_gradient_flows_into_the_memory() -> None:
    recurrence, x = layer(), words().requires_grad_()
    given = words(length=3).requires_grad_()
    first, memory = recurrence(x[:, :4], given)
    second, _ = recurrence(x[:, 4:8], memory)
    second.sum().backward()
    assert not memory.requires_grad
    assert x.grad is not None
    assert x.grad[:, :4].abs().max() == 0
    assert x.grad[:, 4:8].abs().min() > 0
    first.sum().backward()
    assert given.grad is None
    assert x.grad[:, :4].abs().min() > 0


def test_reach_grows_with_each_layer() -> None:
    """One segment is kept, and yet the second layer knows of the segment before that one: it looks at states which had looked."""
    lower, upper = layer(reach=4), layer(reach=4)

    def last(x: Tensor, layers: list[SegmentRecurrence]) -> Tensor:
        for recurrence in layers:
            x, _ = in_segments(recurrence, x, 4)
        return x[:, 8:]

    x = words()
    changed = x.clone()
    changed[:, 0] += 1.0
    torch.testing.assert_close(last(x, [lower]), last(changed, [lower]))
    assert (last(x, [lower, upper]) - last(changed, [lower, upper])).abs().max() > 1e-4


def test_wrong_memories_and_settings_are_explained() -> None:
    with pytest.raises(ShapeError, match="same rows"):
        layer()(words(rows=2), words(rows=3))
    with pytest.raises(ConfigError, match="reach"):
        layer(reach=-1)
    with pytest.raises(ConfigError, match="at least 1"):
        in_segments(layer(), words(), 0)
    for absolute in (Sinusoidal(WIDTH), Learned(LENGTH, WIDTH)):
        with pytest.raises(ConfigError, match="Rotary"):
            layer(absolute)
    with pytest.raises(ConfigError, match="does not divide"):
        CompressiveAttention(10, 3)


def heads(seed: int, length: int = 5, width: int = 4) -> Tensor:
    return torch.randn(2, 3, length, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def nothing(width: int = 4) -> Compressed:
    return Compressed(torch.zeros(2, 3, width, width, dtype=torch.float64), torch.zeros(2, 3, width, dtype=torch.float64))


def test_retrieval_is_linear_attention_over_all_that_was_stored() -> None:
    keys, values, query = [heads(i) for i in range(3)], [heads(i + 10) for i in range(3)], heads(20)
    memory = nothing()
    for key, value in zip(keys, values, strict=True):
        memory = compress(key, value, memory)
    # The same as attention whose weights are σ(q)·σ(k), divided by their sum.
    weights = (F.elu(query) + 1) @ (F.elu(torch.cat(keys, 2)) + 1).transpose(-2, -1)
    expected = weights / weights.sum(-1, keepdim=True) @ torch.cat(values, 2)
    torch.testing.assert_close(retrieve(query, memory), expected)


def test_compression_adds_up_word_by_word() -> None:
    key, value = heads(1), heads(2)
    matrix, total = torch.zeros(2, 3, 4, 4, dtype=torch.float64), torch.zeros(2, 3, 4, dtype=torch.float64)
    for word in range(key.shape[2]):
        sigma = torch.where(key[:, :, word] > 0, key[:, :, word] + 1, key[:, :, word].exp())
        matrix += sigma[..., :, None] * value[:, :, word][..., None, :]
        total += sigma
    memory = compress(key, value, nothing())
    torch.testing.assert_close(memory.matrix, matrix)
    torch.testing.assert_close(memory.total, total)


def test_an_empty_memory_gives_zeros_and_finite_gradients() -> None:
    query = heads(1).requires_grad_()
    found = retrieve(query, nothing())
    assert found.abs().max() == 0
    found.sum().backward()
    assert query.grad is not None
    assert query.grad.isfinite().all()


def test_delta_rule_stores_the_same_pair_once() -> None:
    key, value = heads(1, length=1), heads(2, length=1)
    once = compress(key, value, nothing(), delta=True)
    torch.testing.assert_close(retrieve(key, once), value)
    torch.testing.assert_close(compress(key, value, once, delta=True).matrix, once.matrix)
    torch.testing.assert_close(compress(key, value, once).matrix, 2 * once.matrix)


def test_delta_rule_overwrites_where_plain_sums_mix() -> None:
    """A new value under an old key: the matrix then holds the new one alone."""
    key, old, new = heads(1, length=1), heads(2, length=1), heads(3, length=1)
    changed = compress(key, new, compress(key, old, nothing(), delta=True), delta=True)
    torch.testing.assert_close(changed.matrix, compress(key, new, nothing()).matrix)


def compressive(positions: Positions | None = None, *, delta: bool = False, backend: str = "sdpa") -> CompressiveAttention:
    torch.manual_seed(4)
    return CompressiveAttention(WIDTH, HEADS, positions=positions, delta=delta, backend=backend).double()


def test_memory_is_as_large_after_many_segments_as_after_one() -> None:
    attention = compressive()
    _, one = in_segments(attention, words(length=4), 4)
    _, many = in_segments(attention, words(length=400), 4)
    assert one is not None
    assert many is not None
    assert one.matrix.shape == many.matrix.shape == (2, HEADS, WIDTH // HEADS, WIDTH // HEADS)
    assert one.total.shape == many.total.shape == (2, HEADS, WIDTH // HEADS)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("scheme", ["none", "rotary", "alibi", "bias"])
def test_gate_shut_is_causal_attention_within_the_segment(backend: str, scheme: str) -> None:
    attention, x = compressive(relative(scheme), backend=backend), words()
    plain = Attention(WIDTH, HEADS).double()
    plain.load_state_dict({name: value for name, value in attention.state_dict().items() if name.startswith(("project", "join"))})
    nn.init.constant_(attention.gate, -1e9)
    slots = torch.arange(4)[None]
    place = attention.positions.place(slots, slots, x.dtype)
    expected = [plain(segment, mask=Causal().build(4), positions=place) for segment in x.split(4, 1)]
    torch.testing.assert_close(in_segments(attention, x, 4)[0], torch.cat(expected, 1))


def test_gate_open_reads_the_segments_before_alone() -> None:
    attention, x = compressive(), words()
    nn.init.constant_(attention.gate, 1e9)
    outputs, _ = in_segments(attention, x, 4)
    query, key, value = attention.project(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    weights = (F.elu(query) + 1)[:, :, 8:] @ (F.elu(key) + 1)[:, :, :8].transpose(-2, -1)
    found = weights / weights.sum(-1, keepdim=True) @ value[:, :, :8]
    torch.testing.assert_close(outputs[:, 8:], attention.join(found.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(outputs[:, :4], attention.join.bias.expand(2, 4, WIDTH))  # nothing was stored yet


@pytest.mark.parametrize("delta", [False, True])
def test_gate_learns_and_the_past_is_reached_but_never_the_future(delta: bool) -> None:
    attention, x = compressive(delta=delta), words().requires_grad_()
    outputs, _ = in_segments(attention, x, 4)
    outputs[:, 6].sum().backward()
    assert x.grad is not None
    assert x.grad[:, :4].abs().amax(-1).min() > 0  # through the memory, from the first segment on
    assert x.grad[:, 7:].abs().max() == 0
    assert attention.gate.grad is not None
    assert attention.gate.grad.abs().min() > 0
