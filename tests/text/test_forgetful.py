"""BPE that forgets merges: the library's own segmentation where nothing is forgotten, the paper's probabilities where something is."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from regard.errors import ConfigError
from regard.recipe import TokenizerSettings
from regard.text.forgetful import Forgetful
from regard.text.tokenizer import SPECIAL, Tokenizer
from regard.text.vocabulary import BYTE_OF, over_bytes

TEXTS = [
    "The cat sat on the mat, the cat that sat.", "Der Hund läuft über die Straße; der Hund!", "मैं दौड़ सकती हूँ। मैं दौड़ती हूँ।",
    "12.5 % of 3,000", "日本語の文章です。日本語です。", "a  b   c", "", " ", "a" * 77,
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS * 5, TokenizerSettings(size=500), ["de"])


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=40) | st.sampled_from(TEXTS), max_size=6).filter(lambda texts: all(t.isprintable() for t in texts)))
def test_nothing_forgotten_is_the_library(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert Forgetful(tokenizer, 0.0).encode_batch(texts, chance()) == tokenizer.encode_batch(texts)


def test_a_tag_comes_first(tokenizer: Tokenizer) -> None:
    assert Forgetful(tokenizer, 0.0).encode_batch(TEXTS, chance(), "de") == tokenizer.encode_batch(TEXTS, "de")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_the_text_stays_the_same(tokenizer: Tokenizer, share: float) -> None:
    forgetful = Forgetful(tokenizer, share)
    found = forgetful.encode_batch(TEXTS, chance(1))
    assert tokenizer.decode_batch(found) == TEXTS
    assert sum(map(len, found)) > sum(map(len, tokenizer.encode_batch(TEXTS)))
    assert found == forgetful.encode_batch(TEXTS, chance(1))
    assert found != forgetful.encode_batch(TEXTS, chance(2))


def test_lowercase_is_kept() -> None:
    lower = Tokenizer.train(TEXTS, TokenizerSettings(size=400, lowercase=True))
    assert Forgetful(lower, 0.0).encode_batch(TEXTS, chance()) == lower.encode_batch(TEXTS)


def made_of(merges: list[tuple[str, str]]) -> Tokenizer:
    symbols = [*SPECIAL, *BYTE_OF, *dict.fromkeys(left + right for left, right in merges)]
    library = over_bytes(models.BPE({symbol: number for number, symbol in enumerate(symbols)}, merges), TokenizerSettings())
    library.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return Tokenizer(library)


def probabilities(word: tuple[str, ...], merges: list[tuple[str, str]], share: float) -> Counter[tuple[str, ...]]:
    """The paper's algorithm, all of its chances gone through one by one."""
    places = [place for place in range(len(word) - 1) if word[place : place + 2] in merges]
    found: Counter[tuple[str, ...]] = Counter()
    for kept in range(2 ** len(places)):
        left = [place for bit, place in enumerate(places) if kept >> bit & 1]
        likely = (1 - share) ** len(left) * share ** (len(places) - len(left))
        if not left:
            found[word] += likely  # type: ignore[assignment]
            continue
        best = min(left, key=lambda place: (merges.index(word[place : place + 2]), place))  # type: ignore[arg-type]
        after = (*word[:best], word[best] + word[best + 1], *word[best + 2 :])
        for split, inner in probabilities(after, merges, share).items():
            found[split] += likely * inner  # type: ignore[assignment]
    return found


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_segmentations_are_as_likely_as_in_the_paper(share: float) -> None:
    merges = [("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c"), ("abc", "ab"), ("c", "a")]
    tokenizer = made_of(merges)
    times = 40_000
    found = Counter(map(tuple, map(tokenizer.pieces, Forgetful(tokenizer, share).encode_batch(["abcab"] * times, chance(3)))))
    wanted = probabilities(("a", "b", "c", "a", "b"), merges, share)
    assert sum(wanted.values()) == pytest.approx(1)
    assert {split[1:] for split in found} <= set(wanted)  # the space before the word is a piece of its own
    for split, likely in wanted.items():
        assert found[(" ", *split)] / times == pytest.approx(likely, abs=5 * (likely / times) ** 0.5 + 1e-4)


def test_fast_enough(tokenizer: Tokenizer) -> None:
    words = np.random.default_rng(0)
    vocabulary = ["".join(words.choice(list("abcdefghijklmnop"), words.integers(2, 10))) for _ in range(2000)]
    texts = [" ".join(words.choice(vocabulary, 10)) for _ in range(3000)]
    learned = Forgetful(Tokenizer.train(texts, TokenizerSettings(size=2000)), 0.1)
    started = time.process_time()
    learned.encode_batch(texts, chance())
    assert 30_000 / (time.process_time() - started) > 20_000  # words a second; some 200,000 where nothing else runs


def test_without_merges_there_is_nothing_to_forget() -> None:
    for kind in ("char", "word", "unigram"):
        with pytest.raises(ConfigError, match=r"this tokenizer has none; use tokenizer\.kind = 'bpe'"):
            Forgetful(Tokenizer.train(TEXTS, TokenizerSettings(kind=kind, size=400)), 0.1)  # type: ignore[arg-type]
