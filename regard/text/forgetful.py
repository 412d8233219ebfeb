"""BPE that forgets some of its merges (Provilkov et al. 2020): the same text in ever other pieces, so that a model learns what is in words.

At each step every merge that is possible in a word is left out with some probability, and the first of the others is made, until none is
left. All words of many texts go through it together, a table of symbols at a time, because there may be millions of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import trainers

from regard.errors import ConfigError
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import BYTE_OF

Numbers = npt.NDArray[np.int64]
Table = npt.NDArray[np.int32]

NEVER = np.iinfo(np.int32).max  # the rank of a pair that is never merged
CELLS = 1 << 19  # symbols worked on at a time


@dataclass(frozen=True)
class Words:
    """Texts as numbers of words, and the symbols that each word begins as."""

    numbers: Numbers  # (all words of all texts,)
    edges: Numbers  # (texts + 1,)
    symbols: Table  # the symbols of all different words, one after the other
    begins: Numbers  # (different words + 1,)


class Forgetful:
    """Segments texts as a BPE tokenizer does that leaves out each merge with probability `share`; the same chance gives the same pieces."""

    def __init__(self, tokenizer: Tokenizer, share: float) -> None:
        content = json.loads(tokenizer.to_json())
        model = content["model"]
        if model["type"] != "BPE" or not model["merges"]:
            raise ConfigError("training.bpe_dropout forgets merges, and this tokenizer has none; use tokenizer.kind = 'bpe'")
        self.tokenizer, self.share = tokenizer, share
        self._splitter = {key: content[key] for key in ("normalizer", "pre_tokenizer")}
        vocabulary = model["vocab"]
        self._size = max(vocabulary.values()) + 1
        self._byte = np.zeros(1 + max(map(ord, BYTE_OF)), np.int32)
        for symbol in BYTE_OF:
            self._byte[ord(symbol)] = vocabulary[symbol]
        merges = [tuple(merge) if isinstance(merge, list) else tuple(merge.split(" ")) for merge in model["merges"]]
        codes = np.array([vocabulary[left] * self._size + vocabulary[right] for left, right in merges], np.int64)
        self._made = np.array([vocabulary[left + right] for left, right in merges], np.int32)  # what each merge makes, by rank
        order = np.argsort(codes, kind="stable")
        self._codes, self._rank = codes[order], order.astype(np.int32)

    def encode_batch(self, texts: Sequence[str], chance: np.random.Generator, tag: str | None = None) -> list[list[int]]:
        """Token ids, as `Tokenizer.encode_batch` gives them, but in pieces that chance has made."""
        return self.draw(self.words(texts), chance, tag)

    def words(self, texts: Sequence[str]) -> Words:
        """Texts split into words, once for as many segmentations as are wanted."""
        library = tokenizers.Tokenizer.from_str(json.dumps({**_NO_MODEL, **self._splitter}))
        library.train_from_iterator(
            texts, trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=0, special_tokens=[], show_progress=False)
        )
        split = [encoding.ids for encoding in library.encode_batch_fast(texts, add_special_tokens=False)]
        known = sorted(library.get_vocab().items(), key=lambda item: item[1])
        spelt = np.frombuffer("".join(word for word, _ in known).encode("utf-32-le"), np.uint32)
        return Words(
            np.fromiter((number for numbers in split for number in numbers), np.int64),
            _edges(list(map(len, split))),
            self._byte[spelt],
            _edges([len(word) for word, _ in known]),
        )

    def draw(self, words: Words, chance: np.random.Generator, tag: str | None = None) -> list[list[int]]:
        """One segmentation of all texts."""
        lengths = np.diff(words.begins)[words.numbers]
        counts = np.zeros(len(words.numbers), np.int64)
        parts = [(rows, *self._segmented(words, rows, size, chance)) for rows, size in _buckets(lengths)]
        for rows, _, count in parts:
            counts[rows] = count
        edges = _edges(counts)
        tokens = np.zeros(edges[-1], np.int32)
        for rows, symbols, count in parts:
            inside = np.arange(symbols.shape[1]) < count[:, None]
            tokens[(edges[rows][:, None] + np.arange(symbols.shape[1]))[inside]] = symbols[inside]
        first = [] if tag is None else [self.tokenizer.tag_id(tag)]
        flat, cuts = tokens.tolist(), edges[words.edges].tolist()
        return [first + flat[start:end] for start, end in pairwise(cuts)]

    def _segmented(self, words: Words, rows: Numbers, size: int, chance: np.random.Generator) -> tuple[Table, Numbers]:
        """The pieces of some words, none of more than `size` symbols: (words, size), and how many pieces each has."""
        begins = words.begins[words.numbers[rows]]
        counts = words.begins[words.numbers[rows] + 1] - begins
        where = begins[:, None] + np.arange(size)
        real = np.arange(size) < counts[:, None]
        symbols = np.where(real, words.symbols[np.where(real, where, 0)], -1).astype(np.int32)
        open_, ranks = np.arange(len(rows)), self._ranks(symbols[:, :-1], symbols[:, 1:])
        work = symbols
        while len(open_) and work.shape[1] > 1:
            candidates = np.where(chance.random(ranks.shape, np.float32) < self.share, NEVER, ranks)
            best = candidates.argmin(1)
            rank = candidates[np.arange(len(best)), best]
            going = rank < NEVER
            symbols[open_[~going], : work.shape[1]] = work[~going]
            open_, work, ranks, best, rank = open_[going], work[going], ranks[going], best[going], rank[going]
            counts[open_] -= 1
            work, ranks = self._merged(work, ranks, best, self._made[rank])
        symbols[open_, : work.shape[1]] = work
        return symbols, counts

    def _merged(self, symbols: Table, ranks: Table, place: Numbers, made: Table) -> tuple[Table, Table]:
        """One merge in each word: the two symbols at `place` become one, and all after them move up."""
        each, width = np.arange(len(symbols)), symbols.shape[1] - 1
        after = np.arange(width) > place[:, None]
        symbols[each, place] = made
        symbols = np.where(after, symbols[:, 1:], symbols[:, :-1])
        ranks = np.where(after[:, :-1], ranks[:, 1:], ranks[:, :-1])
        for left in (place - 1, place):  # the pairs that the new symbol is in
            some = (left >= 0) & (left + 1 < width)
            row, column = each[some], left[some]
            ranks[row, column] = self._ranks(symbols[row, column], symbols[row, column + 1])
        return symbols, ranks

    def _ranks(self, left: Table, right: Table) -> Table:
        """When each pair is merged; -1 stands after the end of a word."""
        codes = left.astype(np.int64) * self._size + right
        found = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.where((self._codes[found] == codes) & (right >= 0) & (left >= 0), self._rank[found], NEVER).astype(np.int32)


_NO_MODEL: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {}, "unk_token": "<unk>"},
}  # fmt: skip


def _edges(lengths: Sequence[int] | Numbers) -> Numbers:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))))


def _buckets(lengths: Numbers) -> Iterator[tuple[Numbers, int]]:
    """Words of about the same length together: the numbers of some, and the length of the longest there can be among them."""
    size, below = 4, 0
    while below < (int(lengths.max()) if len(lengths) else 0):
        rows = np.flatnonzero((lengths > below) & (lengths <= size))
        step = max(1, CELLS // size)
        for start in range(0, len(rows), step):
            yield rows[start : start + step], size
        below, size = size, 2 * size
