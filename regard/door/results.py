"""What a model answers. Each prints as what was asked for, and has the rest beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from regard.door.shown import Short


@dataclass(frozen=True, repr=False)
class Attention(Short):
    """The weights behind an output, per layer and head, from one pass over it: (layers, heads, query, key)."""

    encoder: Tensor | None = None  # source over source
    decoder: Tensor | None = None  # target over target, or text over text
    cross: Tensor | None = None  # target over source

    def as_json(self) -> dict[str, Any]:
        return {name: weights.tolist() for name, weights in vars(self).items() if weights is not None}


@dataclass(frozen=True, repr=False)
class Written(Short):
    """A text that a model wrote."""

    text: str
    tokens: tuple[str, ...]  # as the model wrote them, a space before a word being part of it
    ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]  # of each token, and of the end token where it (or a part of it) ended
    score: float  # what it was ranked by
    ended: bool  # by the end token, rather than because it was long enough
    source: tuple[str, ...] = ()  # the tokens of what it was written from
    alternatives: tuple[Written, ...] = ()  # the next best, or the other samples
    alignment: Tensor | None = None  # (tokens and end, source): how much each looked at each of the source, averaged over heads
    attention: Attention | None = None
    part: str = ""  # of a text that was translated in several: the sentence, or what fits, that this is of
    parts: tuple[Written, ...] = ()  # each of them, where there are several: what it looked at stands there alone

    def __str__(self) -> str:
        return self.text

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)

    @property
    def log_probability_of_each(self) -> list[tuple[str, float]]:
        """Each token and its log-probability, without the ends of the text and of its parts."""
        return [pair for each in self.parts or (self,) for pair in zip(each.tokens, each.log_probabilities, strict=False)]

    def as_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "text": self.text,
            "score": self.score,
            "log_probability": self.log_probability,
            "tokens": list(self.tokens),
            "log_probabilities": list(self.log_probabilities),
            "ended": self.ended,
        }
        if self.source:
            record["source"] = list(self.source)
        if self.alternatives:
            record["alternatives"] = [other.as_json() for other in self.alternatives]
        if self.alignment is not None:
            record["alignment"] = self.alignment.tolist()
        if self.attention is not None:
            record["attention"] = self.attention.as_json()
        if self.part:
            record["part"] = self.part
        if self.parts:
            record["parts"] = [part.as_json() for part in self.parts]
        return record


NOTHING = Written("", (), (), (), 0.0, True)  # for a text of nothing


@dataclass(frozen=True, repr=False)
class Labelled(Short):
    """The label of a text, and how likely each one is."""

    label: str
    probabilities: dict[str, float]

    def __str__(self) -> str:
        return self.label

    @property
    def probability(self) -> float:
        return self.probabilities[self.label]

    def as_json(self) -> dict[str, Any]:
        return {"label": self.label, "probability": self.probability, "probabilities": self.probabilities}


@dataclass(frozen=True)
class Choice:
    """A word for a masked place."""

    word: str
    probability: float


@dataclass(frozen=True, repr=False)
class Filled(Short):
    """A text whose masked places are filled with the likeliest words, and the best few for each of them."""

    text: str
    choices: tuple[tuple[Choice, ...], ...]

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        return {"text": self.text, "choices": [[vars(choice) for choice in place] for place in self.choices]}


@dataclass(frozen=True, repr=False)
class Scored(Short):
    """How likely a model finds a given text."""

    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]  # of each token, and of the end token

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)

    @property
    def perplexity(self) -> float:
        from regard.evaluation.metrics import perplexity

        return perplexity(-self.log_probability, len(self.log_probabilities))

    def __str__(self) -> str:
        return f"{self.log_probability:.6f}"

    def as_json(self) -> dict[str, Any]:
        record = {"log_probability": self.log_probability, "perplexity": self.perplexity}
        return record | {"tokens": list(self.tokens), "log_probabilities": list(self.log_probabilities)}
