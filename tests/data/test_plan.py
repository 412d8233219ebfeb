"""Batches by budget: every example once, nothing too large, the same again for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.plan import cost_of, make_plan, rounded
from regard.data.visits import Groups
from regard.errors import TrainingError

LENGTHS = st.lists(st.integers(1, 90), min_size=1, max_size=300).map(lambda lengths: np.array(lengths, np.int64))


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(100, 500), st.integers(0, 5), st.integers(0, 3), st.booleans())
def test_an_epoch_visits_each_example_exactly_once(lengths: np.ndarray, budget: int, seed: int, epoch: int, packed: bool) -> None:
    plan = make_plan(lengths, batch_tokens=budget, seed=seed, epoch=epoch, packed=packed)
    assert sorted(np.concatenate(plan.batches).tolist()) == list(range(len(lengths)))
    assert all(len(batch) and cost_of(batch, lengths, packed=packed) <= budget for batch in plan.batches)


def test_the_same_seed_and_epoch_is_the_same_plan() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500)

    def batches(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in make_plan(lengths, batch_tokens=400, seed=seed, epoch=epoch).batches]

    assert batches(1, 2) == batches(1, 2)
    assert batches(1, 2) != batches(1, 3)
    assert batches(1, 2) != batches(2, 2)


@pytest.mark.parametrize("packed", [True, False])
def test_the_most_expensive_batch_comes_first(packed: bool) -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    costs = [
        cost_of(batch, lengths, packed=packed) for batch in make_plan(lengths, batch_tokens=400, seed=0, epoch=0, packed=packed).batches
    ]
    assert costs[0] == max(costs)


def test_batches_are_mostly_full() -> None:
    lengths = np.clip(np.random.default_rng(0).lognormal(3.2, 0.6, 20000), 4, 200).astype(np.int64)
    padded = make_plan(lengths, batch_tokens=4096, seed=0, epoch=1)
    real = sum(int(lengths[batch].sum()) for batch in padded.batches) / (4096 * len(padded))
    assert real > 0.85
    packed = make_plan(lengths, batch_tokens=4096, seed=0, epoch=1, packed=True)
    assert sum(int(lengths[batch].sum()) for batch in packed.batches) / (4096 * len(packed)) > 0.98


def test_few_sizes() -> None:
    sizes = set(rounded(np.arange(1, 1025)).tolist())
    assert len(sizes) <= 40
    assert all(0 <= size - length < max(8, length / 8) for length, size in zip(range(1, 1025), rounded(np.arange(1, 1025)), strict=True))


def test_weights_say_how_often_a_file_is_visited() -> None:
    lengths, groups = np.full(30, 5), Groups(np.array([0, 10, 30]))
    plan = make_plan(lengths, batch_tokens=64, seed=0, epoch=3, groups=groups, weights=[2.5, 0.5])
    visited = np.bincount(np.concatenate(plan.batches), minlength=30)
    assert visited[:10].sum() == 25
    assert set(visited[:10]) == {2, 3}
    assert visited[10:].sum() == 10
    once = make_plan(lengths, batch_tokens=64, seed=0, epoch=3, groups=groups, weights=[1.0, 1.0])
    assert (np.bincount(np.concatenate(once.batches)) == 1).all()


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(TrainingError, match="an example of 104 tokens does not fit into a batch of 96"):
        make_plan(np.array([3, 100]), batch_tokens=96, seed=0, epoch=0)
    with pytest.raises(TrainingError, match=r"visits no example; raise weight in data\.train"):
        make_plan(np.full(3, 5), batch_tokens=96, seed=0, epoch=1, groups=Groups(np.array([0, 3])), weights=[0.01])
    with pytest.raises(TrainingError, match="no examples"):
        make_plan(np.array([], np.int64), batch_tokens=96, seed=0, epoch=0)
