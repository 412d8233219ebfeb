"""How often examples are visited: as weights and balance say, evenly over epochs, and each time in the next of its copies."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.plan import make_plan
from regard.data.visits import Groups, drawn, visits

SIZES = [200_000, 50_000, 12_500]


@pytest.mark.parametrize(("balance", "shares"), [(1.0, [16, 4, 1]), (0.5, [4, 2, 1]), (0.0, [1, 1, 1])])
def test_shares_are_sizes_to_a_power(balance: float, shares: list[int]) -> None:
    often = visits(SIZES, [1.0] * 3, ["de", "nl", "hi"], balance)
    assert often[0] == 1.0  # the largest once through
    visited = [size * times for size, times in zip(SIZES, often, strict=True)]
    assert [share / visited[-1] for share in visited] == pytest.approx(shares)


def test_files_of_one_tag_are_one_group_and_weights_are_their_sizes() -> None:
    """Half of 100,000 and all of 50,000 are as much as 100,000 of one file: four times as much as the other group."""
    often = visits([100_000, 50_000, 25_000], [0.5, 1.0, 1.0], ["it", "it", "es"], 0.5)
    assert often == pytest.approx([0.5, 1.0, 2.0])
    assert visits([10, 0], [1.0, 1.0], ["a", "empty"], 0.5) == [1.0, 1.0]
    assert visits([10, 40], [2.0, 3.0], [], 1.0) == [2.0, 3.0]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.floats(0, 1), st.integers(1, 4), st.integers(0, 5))
def test_visits_are_even_over_epochs(sizes: list[int], balance: float, copies: int, seed: int) -> None:
    """Whatever the epoch, no example of a file is more than one visit ahead, and each goes through its copies in turn."""
    edges = np.concatenate(([0], np.cumsum(sizes))) * copies
    groups = Groups(edges, tuple(map(str, range(len(sizes)))), balance, copies)
    weights = [1.0] * len(sizes)
    often = visits(sizes, weights, groups.names, balance)
    count = int(edges[-1])
    total = np.zeros(count, np.int64)
    for epoch in range(5):
        found = drawn(count, groups, weights, seed, epoch)
        assert np.array_equal(found, drawn(count, groups, weights, seed, epoch))
        total += np.bincount(found, minlength=count)
        examples = total.reshape(-1, copies)
        assert (examples.max(1) - examples.min(1) <= 1).all()
        for start, end, times in zip(edges[:-1] // copies, edges[1:] // copies, often, strict=True):
            visited = examples[start:end].sum(1)
            assert visited.max() - visited.min() <= 1
            assert abs(visited.sum() - times * (epoch + 1) * (end - start)) <= 1


def test_copies_are_taken_in_turn() -> None:
    groups = Groups(np.array([0, 12]), copies=3)
    for epoch in range(7):
        assert drawn(12, groups, [1.0], 0, epoch).tolist() == [3 * example + epoch % 3 for example in range(4)]


def test_a_plan_is_balanced() -> None:
    groups = Groups(np.array([0, 1000, 1010, 1050]), ("a", "b", "b"), 0.5)
    lengths = np.random.default_rng(0).integers(3, 30, 1050)
    plan = make_plan(lengths, batch_tokens=512, seed=1, epoch=2, groups=groups, weights=[1.0, 1.0, 1.0])
    visited = np.bincount(np.concatenate(plan.batches), minlength=1050)
    assert (visited[:1000] == 1).all()
    assert visited[1000:].sum() == pytest.approx(50 * 20**0.5, abs=2)
    again = make_plan(lengths, batch_tokens=512, seed=1, epoch=2, groups=groups, weights=[1.0, 1.0, 1.0])
    assert all(np.array_equal(one, other) for one, other in zip(plan.batches, again.batches, strict=True))


def test_nothing_to_weigh_is_every_example_once() -> None:
    assert drawn(5, None, [], 0, 3).tolist() == list(range(5))
    assert drawn(5, Groups(np.array([0, 2, 5])), [], 0, 3).tolist() == list(range(5))
