"""One definition, many speeds: every backend, with every mask, position scheme and cache, equals `explicit`, forwards and backwards."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.config import LanguageModelConfig, Seq2SeqConfig
from regard.errors import ConfigError, MaskError
from regard.models.state import StackState
from regard.nn import using
from regard.nn.attention import Attention
from regard.nn.backends import BACKENDS, choose
from regard.nn.cache import Cache, LayerCache
from regard.nn.layers import Stack
from regard.nn.masks import Boundaries, Causal, Documents, Full, Padding, Prefix, Rule, Window
from regard.nn.positions import make_positions

EXACT = {"rtol": 1e-10, "atol": 1e-10}
ROWS, LENGTH = 3, 9
LENGTHS = torch.tensor([9, 4, 0])  # a row of nothing but padding too
REAL = torch.arange(LENGTH)[None] < LENGTHS[:, None]
DOCUMENTS = Documents(Boundaries(torch.tensor([0, 4, 4, 5, 9], dtype=torch.int32), 4))

RULES: dict[str, Rule] = {
    "full": Full(),
    "causal": Causal(),
    "padding": Padding(REAL),
    "prefix": Prefix(torch.tensor([3, 1, 0])),
    "window": Window(3),
    "documents": DOCUMENTS,
    "causal+padding": Causal() & Padding(REAL),
    "causal+window": Causal() & Window(2),
    "causal+documents": Causal() & DOCUMENTS,
    "causal+window+documents": Causal() & Window(2) & DOCUMENTS,
    "prefix+documents": Prefix(torch.tensor([[1, 1, 1, 1, 5, 7, 7, 7, 7]] * ROWS)) & DOCUMENTS,
    "prefix+window+padding": Prefix(torch.tensor([3, 1, 0])) & Window(4) & Padding(REAL),
}  # fmt: skip
POSITIONS = ["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]


def config(**settings: Any) -> LanguageModelConfig:
    shape = {"vocabulary": 7, "layers": 2, "width": 24, "heads": 4, "feedforward": 16, "context": 32, "dropout": 0.0}
    return LanguageModelConfig(**(shape | settings))


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    return list(torch.autograd.grad((output * torch.randn_like(output)).sum(), inputs))


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("rule", sorted(RULES))
def test_sdpa_equals_explicit(rule: str, positions: str, kv_heads: int) -> None:
    torch.manual_seed(0)
    stack = Stack(config(positions=positions, kv_heads=kv_heads), backend="explicit").double()
    x = torch.randn(ROWS, LENGTH, 24, dtype=torch.double, requires_grad=True)
    where = torch.stack((torch.arange(9), torch.arange(9) + 5, torch.tensor([0, 1, 2, 3, 0, 0, 1, 2, 3])))  # rows stand at different places
    mask = RULES[rule].build(LENGTH)
    inputs = [x, *stack.parameters()]
    want = stack(x, positions=where, mask=mask)
    want_gradients = gradients(want, inputs)
    with using("sdpa"):
        got = stack(x, positions=where, mask=mask)
    torch.testing.assert_close(got, want, **EXACT)
    for ours, theirs in zip(gradients(got, inputs), want_gradients, strict=True):
        assert not ours.isnan().any()
        torch.testing.assert_close(ours, theirs, **EXACT)


CACHED = {
    "causal": Causal(),
    "causal+window": Causal() & Window(3),
    "prefix": Prefix(torch.tensor([4, 1, 2])),
    "prefix+window": Prefix(torch.tensor([4, 1, 2])) & Window(4),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("chunks", [[6, 1, 1, 1], [9], [4, 3, 2]])
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("rule", sorted(CACHED))
@torch.no_grad()
def test_cached_equals_explicit_without_cache(rule: str, positions: str, chunks: list[int], backend: str) -> None:
    """The same sequence in one pass, and in pieces through a cache; a prefix must be read in one piece."""
    torch.manual_seed(0)
    shape = config(positions=positions, kv_heads=2)
    stack = Stack(shape, causal=True, backend="explicit").double()
    x = torch.randn(ROWS, LENGTH, 24, dtype=torch.double)
    want = stack(x, positions=torch.arange(LENGTH)[None], mask=CACHED[rule].build(LENGTH))
    cache, pieces = Cache.of(shape, stack, ROWS, capacity=20), []
    with using(backend):
        for places in torch.arange(LENGTH).split(chunks):
            slots = cache.claim(places.expand(ROWS, -1))
            mask = CACHED[rule].build(slots[None], cache.reach)
            pieces.append(stack(x[:, places], positions=places[None], mask=mask, cache=cache.view(slots)))
    torch.testing.assert_close(torch.cat(pieces, 1), want, **EXACT)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_rows_of_different_lengths_share_a_cache(positions: str, backend: str) -> None:
    """Prompts padded on the right, then one word at a time: each row as if it were alone. Slots are the same in all, positions are not."""
    torch.manual_seed(0)
    shape = config(positions=positions)
    stack = Stack(shape, causal=True, backend=backend).double()
    lengths = torch.tensor([6, 2, 4])
    prompt, more = torch.randn(3, 6, 24, dtype=torch.double), torch.randn(3, 4, 24, dtype=torch.double)
    cache = Cache.of(shape, stack, 3, capacity=10)
    places = torch.arange(6)
    slots = cache.claim(places.expand(3, -1))
    outputs = [stack(prompt, positions=places[None], mask=Causal().build(slots[None], cache.reach), cache=cache.view(slots))]
    state = StackState.begin(cache, lengths)
    for word in more.split(1, 1):
        slots, where, mask = state.place(word[:, :, 0])
        outputs.append(stack(word, positions=where, mask=mask, cache=cache.view(slots)))
    for row, length in enumerate(lengths.tolist()):
        alone = torch.cat((prompt[row, :length], more[row]))[None]
        want = stack(alone, positions=torch.arange(length + 4)[None], mask=Causal().build(length + 4))[0]
        got = torch.cat((outputs[0][row, :length], *(output[row] for output in outputs[1:])))
        torch.testing.assert_close(got, want, **EXACT)


@pytest.mark.parametrize("backend", ["explicit", "sdpa"])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("positions", POSITIONS)
@torch.no_grad()
def test_hypotheses_share_a_row_as_if_each_had_its_own(positions: str, window: int | None, backend: str) -> None:
    """A tree in one row: two hypotheses of each source, one giving way to the other, against each history alone and whole."""
    torch.manual_seed(0)
    shape = config(positions=positions, kv_heads=2)
    stack = Stack(shape, causal=True, backend=backend).double()
    x = torch.randn(5, 3, 2, 24, dtype=torch.double)  # (position, source, hypothesis, width)
    cache = Cache.of(shape, stack, 3, capacity=20)
    state = StackState.begin(cache, torch.zeros(3, dtype=torch.long), window=window)
    state.select(torch.zeros(3, 2, dtype=torch.long))
    histories: list[list[list[Tensor]]] = [[[], []] for _ in range(3)]
    for words in x:
        slots, where, mask = state.place(words[:, :, 0])
        got = stack(words, positions=where, mask=mask, cache=cache.view(slots))
        for source, hypothesis in itertools.product(range(3), range(2)):
            history = histories[source][hypothesis]
            history.append(words[source, hypothesis])
            rule = Causal() if window is None else Causal() & Window(window)
            length = len(history)
            want = stack(torch.stack(history)[None], positions=torch.arange(length)[None], mask=rule.build(length))[0, -1]
            torch.testing.assert_close(got[source, hypothesis], want, **EXACT)
        parents = torch.randint(0, 2, (3, 2))
        state.select(parents)
        histories = [[list(histories[source][int(parent)]) for parent in parents[source]] for source in range(3)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    queries=st.integers(1, 6),
    earlier=st.integers(0, 6),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    size=st.integers(1, 9),
    window=st.one_of(st.none(), st.integers(1, 7)),
    causal=st.booleans(),
    padded=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_sdpa_equals_explicit_for_any_shape(
    rows: int,
    queries: int,
    earlier: int,
    heads: tuple[int, int],
    size: int,
    window: int | None,
    causal: bool,
    padded: bool,
    biased: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    keys = queries + earlier
    rule: Rule = Causal() if causal else Full()
    if window is not None:
        rule = rule & Window(window)
    if padded:
        rule = rule & Padding(torch.rand(rows, keys) < 0.6)
    query = torch.randn(rows, heads[0], queries, size, dtype=torch.double, requires_grad=True)
    key, value = (torch.randn(rows, heads[1], keys, size, dtype=torch.double, requires_grad=True) for _ in range(2))
    bias = torch.randn(rows, heads[0], queries, keys, dtype=torch.double) if biased else None
    mask = rule.build(queries, keys)
    explicit, sdpa = (
        BACKENDS[name](query, key, value, mask=mask, bias=bias, scale=0.3, dropout=0.0).output for name in ("explicit", "sdpa")
    )
    torch.testing.assert_close(sdpa, explicit, **EXACT)
    for one, other in zip(gradients(sdpa, [query, key, value]), gradients(explicit, [query, key, value]), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_a_query_that_may_see_nothing_gets_zeros() -> None:
    for backend in ("explicit", "sdpa"):
        attention = Attention(8, 2, bias="none", backend=backend).double()
        x = torch.randn(2, 3, 8, dtype=torch.double, requires_grad=True)
        real = torch.tensor([[True, True, False], [False, False, False]])
        output = attention(x, mask=Padding(real).build(3))
        assert (output[1] == 0).all()
        assert (output[0] != 0).all()
        output.sum().backward()
        assert x.grad is not None
        assert not x.grad.isnan().any()
        assert (x.grad[1] == 0).all()


# What does not exist says so when it is made.


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"positions": "alibi"}, "can't add a bias to its scores, and positions = 'alibi'"),
        ({"positions": "relative"}, "can't add a bias to its scores, and positions = 'relative'"),
        ({"mask": "prefix"}, "no prefix mask"),
        ({"attention_dropout": 0.1}, "set attention_dropout = 0"),
    ],
)
def test_varlen_refuses_what_it_can_not_do(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Stack(config(**settings), causal=True, backend="varlen")


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "rotary", "none"])
def test_varlen_takes_what_it_can_do(positions: str) -> None:
    Stack(config(positions=positions, window=4), causal=True, backend="varlen")


@pytest.mark.parametrize("rule", ["prefix+documents", "padding", "causal", "full"])
def test_what_can_not_be_packed_says_so(rule: str) -> None:
    with pytest.raises(MaskError, match=r"use \.build\(\) and backend 'sdpa'"):
        RULES[rule].pack()


def test_backends_refuse_a_mask_of_the_other_kind() -> None:
    x = torch.randn(1, 9, 24)
    packed, table = (Causal() & DOCUMENTS).pack(), (Causal() & DOCUMENTS).build(9)
    for backend in ("explicit", "sdpa"):
        with pytest.raises(MaskError, match=r"packed \(4 documents\) for backend 'varlen'"):
            Attention(24, 4, backend=backend)(x, mask=packed)
    with pytest.raises(MaskError, match="'varlen' wants packed documents"):
        BACKENDS["varlen"](x, x, x, mask=table, bias=None, scale=1.0, dropout=0.0)
    torch.manual_seed(0)
    attention = Attention(24, 4, backend="varlen")  # what is not packed goes through sdpa
    with using("explicit"):
        want = attention(x, mask=table)
    torch.testing.assert_close(attention(x, mask=table), want)
    with pytest.raises(ConfigError, match="runs on a GPU"):
        Attention(24, 4, backend="varlen")(x, mask=packed)


def test_an_unknown_backend_is_named() -> None:
    with pytest.raises(ConfigError, match="backend 'spda' is unknown; did you mean 'sdpa'"):
        choose("spda")


def test_masks_of_the_wrong_kind_are_refused() -> None:
    attention, x = Attention(24, 4), torch.randn(2, 9, 24)
    with pytest.raises(MaskError, match=r"mask is a tensor; build one from rules"):
        attention(x, mask=torch.ones(9, 9))
    with pytest.raises(MaskError, match="rule Causal is not built yet"):
        attention(x, mask=Causal())
    with pytest.raises(MaskError, match="for 1 rows of 8 queries and 8 keys, but there are 2 rows of 9 queries and 9 keys"):
        attention(x, mask=Causal().build(8))
    with pytest.raises(MaskError, match="Padding wants booleans"):
        Padding(torch.ones(2, 9))
    with pytest.raises(MaskError, match="tells of 9 keys, but there are 8"):
        Padding(REAL).build(8)


def test_using_a_backend_disturbs_no_one_else() -> None:
    """The choice holds within the `with` and in its own thread only."""
    from concurrent.futures import ThreadPoolExecutor

    from regard.nn import record

    attention, x = Attention(24, 4, backend="sdpa"), torch.randn(1, 3, 24)

    def tapped() -> bool:
        with record(attention) as taps:
            attention(x)
        return "weights" in taps

    assert not tapped()
    with using("explicit"):
        assert tapped()
        with ThreadPoolExecutor() as pool:
            assert not pool.submit(tapped).result()
    assert not tapped()


def test_the_grid_is_complete() -> None:
    """Every scheme that a config can name is in this file's grid, and every rule that exists."""
    from typing import get_args

    from regard.config import PositionKind

    assert set(POSITIONS) == set(get_args(PositionKind))
    used = {type(part) for rule in RULES.values() for part in rule.parts()}
    exist = {kind for kind in Rule.__subclasses__() if kind.__name__ != "All"}
    assert used == exist
    for positions, both_ways in itertools.product(POSITIONS, (True, False)):
        make_positions(Seq2SeqConfig(vocabulary=5, positions=positions), both_ways=both_ways)
    assert LayerCache.__dataclass_params__.frozen  # type: ignore[attr-defined]
