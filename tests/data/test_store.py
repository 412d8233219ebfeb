"""Examples on disk: what goes in comes out, and nothing is made twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from regard.data.store import Item, cached_store, content_key

SEQUENCES = st.lists(st.tuples(st.lists(st.integers(0, 65535), max_size=6), st.lists(st.integers(0, 65535), max_size=6)), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
@given(SEQUENCES)
def test_what_goes_in_comes_out(tmp_path: Path, pairs: list[tuple[list[int], list[int]]]) -> None:
    key = content_key([], pairs)
    store = cached_store(tmp_path, key, 65536, [[Item(target, source) for source, target in pairs]], print)
    assert len(store) == len(pairs)
    for index, (source, target) in enumerate(pairs):
        assert store.target[index].tolist() == target
        assert store.source is not None
        assert store.source[index].tolist() == source
    assert store.lengths.tolist() == [max(map(len, pair)) for pair in pairs]


def test_large_vocabularies_labels_groups_and_what_was_left_out(tmp_path: Path) -> None:
    groups = [[Item([70000], label=1), "empty", Item([1, 2], label=0)], ["too long", "empty"], [Item([3], label=1)]]
    store = cached_store(tmp_path, "k", 100000, groups, print)
    assert store.target[0].tolist() == [70000]
    assert store.labels is not None
    assert store.labels.tolist() == [1, 0, 1]
    assert store.groups is not None
    assert store.groups.edges.tolist() == [0, 2, 2, 3]
    assert store.left_out == {"empty": 2, "too long": 1}


def test_copies_are_one_example(tmp_path: Path) -> None:
    groups = [[Item([1], given=1), Item([1, 1], given=2), "empty"], [Item([2]), Item([2, 2])]]
    store = cached_store(tmp_path, "k", 10, groups, print, copies=2)
    assert len(store) == 2
    assert store.lengths.tolist() == [1, 2, 1, 2]
    assert store.given is not None
    assert store.given.tolist() == [1, 2]
    assert store.groups is not None
    assert store.groups.sizes().tolist() == [1, 1]


def test_made_once(tmp_path: Path) -> None:
    def never() -> Iterator[Item]:
        raise AssertionError("made again")
        yield

    cached_store(tmp_path, "k", 10, [[Item([1])]], print)
    assert len(cached_store(tmp_path, "k", 10, [never()], print)) == 1


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    def broken() -> Iterator[Item]:
        yield Item([1])
        raise ValueError("line 2")

    with pytest.raises(ValueError, match="line 2"):
        cached_store(tmp_path, "k", 10, [broken()], print)
    assert list(tmp_path.iterdir()) == []
    assert len(cached_store(tmp_path, "k", 10, [[Item([1])]], print)) == 1


def test_the_key_follows_content_and_settings(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    key = content_key([file], {"size": 3})
    assert key == content_key([file], {"size": 3})
    assert key != content_key([file], {"size": 4})
    file.write_text("two")
    assert key != content_key([file], {"size": 3})
