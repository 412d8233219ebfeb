"""How words became numbers before attention: one-hot, TF-IDF and word2vec. Each gives a word one vector, whatever the sentence."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import RegardError


@dataclass(frozen=True)
class WordVectors:
    """A vector for each word, looked up by name."""

    words: tuple[str, ...]
    matrix: Tensor  # (words, width)

    def __getitem__(self, word: str) -> Tensor:
        if word not in self.words:
            raise RegardError(f"the word {word!r} has no vector among {len(self.words)}; learn them from text that has it")
        return self.matrix[self.words.index(word)]

    def similarity(self, one: str, other: str) -> float:
        """The cosine of the angle between two words: 1 for the same direction, 0 for nothing in common."""
        return F.cosine_similarity(self[one], self[other], dim=0).item()


def one_hot(words: Sequence[str], vocabulary: Sequence[str]) -> Tensor:
    """A 1 at the place of each word and 0 elsewhere: (words, vocabulary). No word is like any other."""
    place = {word: index for index, word in enumerate(vocabulary)}
    rows = torch.zeros(len(words), len(vocabulary))
    for row, word in enumerate(words):
        if word not in place:
            raise RegardError(f"the word {word!r} is not in the vocabulary of {len(vocabulary)}; add it there")
        rows[row, place[word]] = 1.0
    return rows


def tf_idf(documents: Sequence[str]) -> tuple[list[str], Tensor]:
    """The words of all documents in order, and for each document (documents, words) how often it has each, rarer words counting more.

    Words are lower-cased and of two letters or more; idf = ln((1 + n) / (1 + df)) + 1, and each row has length 1.
    """
    counts = [Counter(re.findall(r"\b\w\w+\b", document.lower())) for document in documents]
    words = sorted(set().union(*counts))
    if not words:
        raise RegardError("the documents have no words of two letters or more; give some text")
    frequency = torch.tensor([[count[word] for word in words] for count in counts], dtype=torch.float64)
    inverse = torch.log((1 + len(documents)) / (1 + (frequency > 0).sum(0))) + 1
    return words, F.normalize(frequency * inverse, dim=1)


def skip_gram(
    sentences: Sequence[Sequence[str]],
    *,
    width: int = 16,
    window: int = 2,
    negatives: int = 5,
    epochs: int = 200,
    lr: float = 0.05,
    generator: torch.Generator,
) -> WordVectors:
    """Word2vec: vectors from which a word's neighbours can be told from words drawn at random, so that like contexts make like vectors."""
    counts = Counter(word for sentence in sentences for word in sentence)
    words = tuple(sorted(counts))
    centres, contexts = _pairs(sentences, {word: index for index, word in enumerate(words)}, window)
    if not len(centres):
        raise RegardError("no sentence has two words, so no word has a neighbour to learn from; give longer sentences")
    # Word2vec's power of 3/4: rare words are drawn a little more often than they occur.
    chance = torch.tensor([counts[word] ** 0.75 for word in words])
    inner = nn.Parameter(torch.randn(len(words), width, generator=generator) / math.sqrt(width))
    outer = nn.Parameter(torch.zeros(len(words), width))
    optimiser = torch.optim.Adam((inner, outer), lr=lr)
    for _ in range(epochs):
        drawn = torch.multinomial(chance, len(centres) * negatives, replacement=True, generator=generator).view(-1, negatives)
        vectors = F.embedding(centres, inner)  # (pairs, width)
        near = (vectors * F.embedding(contexts, outer)).sum(-1)  # (pairs,)
        far = (F.embedding(drawn, outer) @ vectors[:, :, None]).squeeze(-1)  # (pairs, negatives)
        loss = -F.logsigmoid(near).mean() - F.logsigmoid(-far).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return WordVectors(words, inner.detach())


def _pairs(sentences: Sequence[Sequence[str]], place: dict[str, int], window: int) -> tuple[Tensor, Tensor]:
    """Every word with each of its neighbours up to `window` words away."""
    pairs = [
        (place[word], place[sentence[other]])
        for sentence in sentences
        for index, word in enumerate(sentence)
        for other in range(max(0, index - window), min(len(sentence), index + window + 1))
        if other != index
    ]
    table = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    return table[:, 0], table[:, 1]
