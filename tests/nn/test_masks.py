"""Masks against their definitions in plain Python, for any shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import MaskError
from regard.nn.masks import Boundaries, Causal, Documents, Full, Padding, Prefix, Rule, Window, document_of

LENGTH = st.integers(1, 8)


def table(rule: Rule, queries: int, keys: int, rows: int = 1) -> list[list[list[bool]]]:
    visible = rule.build(queries, keys).visible
    if visible is None:
        return [[[True] * keys] * queries] * rows
    return visible.expand(rows, 1, queries, keys)[:, 0].tolist()


@given(LENGTH, LENGTH)
def test_full_and_causal(queries: int, more: int) -> None:
    keys = queries + more
    assert table(Full(), queries, keys) == [[[True] * keys] * queries]
    assert table(Causal(), queries, keys) == [[[key <= query + more for key in range(keys)] for query in range(queries)]]


@given(LENGTH, st.integers(1, 9), st.booleans())
def test_window(length: int, size: int, causal: bool) -> None:
    rule = Causal() & Window(size) if causal else Window(size)
    want = [[abs(query - key) < size and (key <= query or not causal) for key in range(length)] for query in range(length)]
    assert table(rule, length, length) == [want]


@given(LENGTH, st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_prefix(length: int, ends: list[int]) -> None:
    want = [[[key <= query or key < end for key in range(length)] for query in range(length)] for end in ends]
    assert table(Prefix(torch.tensor(ends)), length, length, len(ends)) == want


@given(LENGTH, st.lists(st.integers(0, 8), min_size=1, max_size=3))
def test_padding_and_causal(length: int, lengths: list[int]) -> None:
    rule = Causal() & Padding.of_lengths(torch.tensor(lengths), length)
    want = [[[key <= query and key < real for key in range(length)] for query in range(length)] for real in lengths]
    assert table(rule, length, length, len(lengths)) == want


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(sum))
def test_documents(lengths: list[int]) -> None:
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    edges = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
    boundaries = Boundaries(edges, max(lengths))
    assert document_of(torch.arange(len(owner)), boundaries).tolist() == owner
    want = [[one == other and key <= query for key, other in enumerate(owner)] for query, one in enumerate(owner)]
    assert table(Causal() & Documents(boundaries), len(owner), len(owner)) == [want]


def test_each_row_may_stand_at_its_own_slots() -> None:
    visible = Causal().build(torch.tensor([[2], [0]]), 4).visible
    assert visible is not None
    assert visible[:, 0, 0].tolist() == [[True, True, True, False], [True, False, False, False]]


def test_only_the_plain_square_triangle_is_left_to_kernels() -> None:
    assert Causal().build(4).causal
    assert (Full() & Causal()).build(4).causal
    assert not Causal().build(2, 4).causal  # a kernel's own would start at the top left
    assert not (Causal() & Window(2)).build(4).causal
    assert not Causal().build(torch.tensor([[0, 1]]), 2).causal


def test_blind_rows_are_known() -> None:
    real = torch.tensor([[True, False], [False, False]])
    blind = Padding(real).build(2).blind
    assert blind is not None
    assert blind[:, 0, :, 0].tolist() == [[False], [True]]
    may_be_blind = Padding(real[:1]).build(2).blind
    assert may_be_blind is not None
    assert not may_be_blind.any()
    assert Causal().build(torch.tensor([[0], [1]]), 2).blind is None
    assert Causal().build(3).blind is None
    before_the_first_key = Causal().build(3, 2).blind
    assert before_the_first_key is not None
    assert before_the_first_key[0, 0, :, 0].tolist() == [True, False, False]


def test_slots_need_the_number_of_keys() -> None:
    with pytest.raises(MaskError, match="pass keys="):
        Causal().build(torch.tensor([[0]]))


def test_packing_keeps_causal_window_and_both_sides() -> None:
    query, key = Boundaries(torch.tensor([0, 2, 5]), 3), Boundaries(torch.tensor([0, 4, 5]), 4)
    packed = (Documents(query, key) & Causal() & Window(3)).pack().packed
    assert packed is not None
    assert (packed.query, packed.key, packed.causal, packed.window) == (query, key, True, 3)
