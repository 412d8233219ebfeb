"""What a model must beat: tokens foretold by how frequent they are, and by the one token before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import CorpusError
from regard.evaluation.metrics import perplexity

Ids = npt.NDArray[np.integer[Any]]
Logs = npt.NDArray[np.float64]
AT_ONCE = 10_000_000  # tokens counted in one go


@dataclass(frozen=True)
class Bigram:
    """How often each token, and each pair of tokens, stands in a training text. Nothing is tuned, so nothing can be tuned on the test."""

    tokens: npt.NDArray[np.int64]  # (vocabulary,), of what is foretold
    before: npt.NDArray[np.int64]  # (vocabulary,), of what stands before it
    different: npt.NDArray[np.int64]  # (vocabulary,), how many different tokens follow each
    pairs: npt.NDArray[np.int64]  # (pairs,), rising: first × vocabulary + second
    counts: npt.NDArray[np.int64]  # (pairs,)

    @classmethod
    def of(cls, before: Ids, after: Ids, vocabulary: int) -> Bigram:
        """Counted from tokens and those that come right after them, of a vocabulary of so many."""
        _check(before, after, vocabulary)
        pairs, counts = np.unique(before.astype(np.int64) * vocabulary + after, return_counts=True)
        tokens, first, different = (np.bincount(ids, minlength=vocabulary) for ids in (after, before, pairs // vocabulary))
        return cls(tokens, first, different, pairs, counts)

    def frequency(self, after: Ids) -> Logs:
        """log P of each token by itself: its share of the training text, each token counted once more than it was seen."""
        return _frequency(self.tokens, after)

    def following(self, before: Ids, after: Ids) -> Logs:
        """log P of each token after another: the share seen, mixed with the token's frequency as Witten and Bell (1991) do.

        The more different tokens followed in training, the more weight new ones have.
        """
        _check(before, after, len(self.tokens))
        wanted = before.astype(np.int64) * len(self.tokens) + after
        place = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        seen = np.where(self.pairs[place] == wanted, self.counts[place], 0)
        alone = np.exp(self.frequency(after))
        new = np.maximum(self.different[before], 1)  # after a token that training never saw, frequency is all there is
        return np.log((seen + new * alone) / (self.before[before] + new))


def unigram(train: Ids, test: Ids, vocabulary: int) -> float:
    """The perplexity of the test's tokens, foretold by how frequent each is in a training text of any length."""
    counts = np.zeros(vocabulary, np.int64)
    for start in range(0, len(train), AT_ONCE):
        counts += np.bincount(train[start : start + AT_ONCE], minlength=vocabulary)
    return perplexity(-float(_frequency(counts, np.asarray(test)).sum()), len(test))


def _frequency(counts: npt.NDArray[np.int64], after: Ids) -> Logs:
    frequencies: Logs = np.log((counts[after] + 1) / (counts.sum() + len(counts)))
    return frequencies


def baselines(train: tuple[Ids, Ids], test: tuple[Ids, Ids], vocabulary: int) -> dict[str, float]:
    """Perplexities of the test's tokens, foretold by frequency (unigram) and by the token before (bigram)."""
    counted = Bigram.of(*train, vocabulary)
    logs = {"unigram": counted.frequency(test[1]), "bigram": counted.following(*test)}
    return {name: perplexity(-float(each.sum()), len(each)) for name, each in logs.items()}


def in_pairs(tokens: Ids, edges: npt.NDArray[np.int64]) -> tuple[Ids, Ids]:
    """The tokens of sequences that lie one after the other, and what follows each within its sequence."""
    inside = np.ones(max(len(tokens) - 1, 0), bool)
    inside[edges[1:-1] - 1] = False  # the last of one and the first of the next are no pair
    return tokens[:-1][inside], tokens[1:][inside]


def _check(before: Ids, after: Ids, vocabulary: int) -> None:
    if len(before) != len(after) or not len(after):
        raise CorpusError(f"{len(before)} tokens, and {len(after)} that come after them; give pairs, one or more")
    highest = max(int(before.max()), int(after.max()))
    if highest >= vocabulary:
        raise CorpusError(f"{highest} is no token of a vocabulary of {vocabulary}")
