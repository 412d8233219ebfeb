"""The bigram and unigram that a language model must beat, on an example worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from regard.errors import CorpusError
from regard.evaluation.baseline import Bigram, baselines, in_pairs

# "a b a b a c", a = 0, b = 1, c = 2, and d = 3, which is never seen. Pairs: ab ab, ba ba, ac.
TEXT = np.array([0, 1, 0, 1, 0, 2], np.uint16)
PAIRS = TEXT[:-1], TEXT[1:]


def test_frequency_by_hand() -> None:
    """Foretold are b a b a c: 2 of a and b, 1 of c; each counts one more, of 5 + 4."""
    logs = Bigram.of(*PAIRS, 4).frequency(np.array([0, 1, 2, 3]))
    assert np.exp(logs) == pytest.approx([3 / 9, 3 / 9, 2 / 9, 1 / 9])


def test_following_by_hand() -> None:
    """After a: b twice, c once, so 2 kinds in 3; after b: a twice, 1 kind in 2; after c and d: nothing was seen."""
    counted = Bigram.of(*PAIRS, 4)
    logs = counted.following(np.array([0, 0, 0, 1, 1, 2, 3]), np.array([1, 2, 3, 0, 3, 0, 1]))
    wanted = [
        (2 + 2 * 3 / 9) / 5, (1 + 2 * 2 / 9) / 5, (0 + 2 * 1 / 9) / 5, (2 + 1 * 3 / 9) / 3, (0 + 1 * 1 / 9) / 3, 3 / 9, 3 / 9,
    ]  # fmt: skip
    assert np.exp(logs) == pytest.approx(wanted)


def test_each_is_a_distribution() -> None:
    chance = np.random.default_rng(0)
    text = chance.integers(0, 30, 500) % 23
    counted = Bigram.of(text[:-1], text[1:], 25)
    every = np.arange(25)
    assert np.exp(counted.frequency(every)).sum() == pytest.approx(1)
    for token in every:
        assert np.exp(counted.following(np.full(25, token), every)).sum() == pytest.approx(1)


def test_perplexities_by_hand() -> None:
    test = np.array([0, 0]), np.array([1, 3])
    found = baselines(PAIRS, test, 4)
    assert found["unigram"] == pytest.approx(math.sqrt(9 / 3 * 9 / 1))
    assert found["bigram"] == pytest.approx(math.sqrt(5 / (2 + 6 / 9) * 5 / (2 / 9)))


def test_what_can_be_foretold_is() -> None:
    text = np.tile([0, 1, 2], 1000)
    found = baselines((text[:-1], text[1:]), (text[:-1], text[1:]), 3)
    assert found["unigram"] == pytest.approx(3, rel=1e-3)
    assert found["bigram"] == pytest.approx(1, rel=2e-3)


def test_pairs_end_where_sequences_do() -> None:
    before, after = in_pairs(np.array([1, 2, 3, 4, 5, 6]), np.array([0, 3, 4, 6]))
    assert (before.tolist(), after.tolist()) == ([1, 2, 5], [2, 3, 6])


def test_what_can_t_be_counted() -> None:
    with pytest.raises(CorpusError, match="give pairs, one or more"):
        Bigram.of(np.array([], np.int64), np.array([], np.int64), 4)
    with pytest.raises(CorpusError, match="3 tokens, and 2 that come after them"):
        Bigram.of(np.array([1, 2, 3]), np.array([1, 2]), 4)
    with pytest.raises(CorpusError, match="4 is no token of a vocabulary of 4"):
        Bigram.of(np.array([1]), np.array([4]), 4)
