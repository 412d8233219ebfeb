"""How good translations are by how long their sources are: a decoder that has one vector for all of a source runs out of room in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import CorpusError
from regard.limits import MOST_SPANS, within

RESAMPLED = 500  # times that sentences are drawn again, by sacreBLEU, to see what chance does


@dataclass(frozen=True)
class Span:
    """BLEU on the sources of so many words."""

    shortest: int
    longest: int
    examples: int
    bleu: float
    chance: float  # 95 of 100 draws of as many such sentences have a BLEU within so much of it

    @property
    def name(self) -> str:
        return str(self.shortest) if self.shortest == self.longest else f"{self.shortest} to {self.longest}"


def by_length(
    sources: Sequence[str], outputs: Sequence[str], references: Sequence[str], *, parts: int = 6, tokenize: str = "13a"
) -> list[Span]:
    """BLEU for parts of the data, from its shortest sources to its longest, with about as many sentences in each."""
    from sacrebleu.metrics.bleu import BLEU

    if not len(sources) == len(outputs) == len(references):
        raise CorpusError(f"{len(sources)} sources, {len(outputs)} outputs and {len(references)} references; there must be as many of each")
    words = np.array([len(source.split()) for source in sources])
    metric = BLEU(tokenize=tokenize, force=tokenize == "none")
    spans = []
    for shortest, longest in spans_of(words, parts):
        chosen = np.flatnonzero((words >= shortest) & (words <= longest)).tolist()
        found = metric.corpus_score([outputs[i] for i in chosen], [[references[i] for i in chosen]], n_bootstrap=RESAMPLED)
        spans.append(Span(shortest, longest, len(chosen), float(found.score), float(found._ci)))
    return spans


def spans_of(words: np.ndarray, parts: int) -> list[tuple[int, int]]:
    """From the shortest to the longest length that occurs, in spans with about as many sentences each; one length is never in two."""
    within("parts", parts, "how many spans of lengths", 1, MOST_SPANS)
    if not len(words):
        raise CorpusError("there are no sentences to sort by length")
    ends = sorted({int(np.quantile(words, (number + 1) / parts, method="inverted_cdf")) for number in range(parts)})
    starts = [int(words.min()), *(int(words[words > end].min()) for end in ends[:-1])]
    return list(zip(starts, ends, strict=True))
