"""What may be asked of decoding: how to choose words, how long to go on, and what must or must not be written."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from regard.config import NonNegative, Settings, explain
from regard.decoding.grammar import Grammar
from regard.errors import ConfigError, shown
from regard.limits import MOST_CHOSEN_AMONG, MOST_HYPOTHESES, MOST_LENGTH, MOST_SEED, MOST_WEIGHT

Hypotheses = Annotated[int, Field(gt=0, le=MOST_HYPOTHESES)]
Weight = Annotated[float, Field(ge=0, le=MOST_WEIGHT)]
Factor = Annotated[float, Field(gt=0, le=MOST_WEIGHT)]
TopK = Annotated[int, Field(ge=0, le=MOST_CHOSEN_AMONG)]
Share = Annotated[float, Field(ge=0, le=1)]
TopP = Annotated[float, Field(gt=0, le=1)]
Seed = Annotated[int, Field(ge=0, le=MOST_SEED)]
Sequences = tuple[tuple[NonNegative, ...], ...]  # token ids, word by word


class Wishes(Settings):
    """A group of settings whose errors are for people, since it is made by hand."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self))) from None


class Length(Settings):
    """A number of tokens, or one that grows with the source: plus + times × its length. Written 60, 2x or 16+2x."""

    plus: Annotated[int, Field(ge=0, le=MOST_LENGTH)] = 0
    times: Weight = 0.0

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return cls._parts(str(value))
        return value

    @classmethod
    def parse(cls, text: str) -> Length:
        try:
            return cls(**cls._parts(text))
        except ValidationError:
            raise ConfigError(
                f"{shown(text)} is longer than anything is written; {MOST_LENGTH:,} tokens, or {MOST_WEIGHT:g}x, are the most"
            ) from None

    @staticmethod
    def _parts(text: str) -> dict[str, Any]:
        number, whole = r"(\d{1,9}(?:\.\d{1,9})?)", r"(\d{1,9})"
        if match := re.fullmatch(rf"\s*{whole}\s*(?:\+\s*{number}\s*x)?\s*", text):
            return {"plus": int(match[1]), "times": float(match[2] or 0)}
        if match := re.fullmatch(rf"\s*{number}\s*x\s*(?:\+\s*{whole})?\s*", text):
            return {"plus": int(match[2] or 0), "times": float(match[1])}
        raise ConfigError(f"{shown(text)} is no length; write a number of tokens such as 60, or 16+2x for 16 and twice the source's length")

    def of(self, source: int) -> int:
        return self.plus + math.ceil(round(self.times * source, 6))  # 2.2 × 25 is 55.00000000000001 in binary numbers


class Rules(Wishes):
    """What every way of choosing words keeps to. Words are given as token ids."""

    max_length: Length = Length(plus=16, times=2.0)  # tokens written at most, the end token counted
    min_length: Length = Length()  # the end token is not chosen before so many
    no_repeat: NonNegative = 0  # no run of so many tokens is written twice; 0: any may be
    repetition_penalty: Factor = 1.0  # above 1, what was written (or given) already becomes less likely
    banned: Sequences = ()  # never written
    never: tuple[NonNegative, ...] = ()  # tokens that are never chosen, such as those that stand for no text
    required: Sequences = ()  # written before the end; beam search only
    grammar: Grammar | None = None  # what may follow what, for models that write no text

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if not all(self.banned) or not all(self.required):
            raise ValueError("a banned or required word has no tokens; leave it out")
        return self


class Beam(Wishes):
    """Beam search: at each position the most probable continuations of all hypotheses of a source stay open."""

    size: Hypotheses = 4  # hypotheses kept open; 1 is greedy search
    length_penalty: Weight = 1.0  # α in score = log P / length^α, the end token counted
    n_best: Hypotheses = 1  # hypotheses given for each source
    coverage: Weight = 0.0  # β: adds β Σ log min(1, attention that each source word got); 0: none
    groups: Hypotheses = 1  # parts of the beam that are kept different from one another
    diversity: Weight = 0.5  # what a word costs for each group before that chose it at the same position

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.n_best > self.size:
            raise ValueError(f"n_best = {self.n_best} hypotheses can't come from a beam of size = {self.size}; widen the beam")
        if self.size % self.groups:
            raise ValueError(f"groups = {self.groups} does not divide size = {self.size}; each group needs as many hypotheses")
        return self


class Sampling(Wishes):
    """Words drawn by chance, each as often as the model finds it likely."""

    temperature: Weight = 1.0  # below 1 surer, above 1 bolder; 0 always takes the likeliest
    top_k: TopK = 0  # only the k likeliest; 0: all
    top_p: TopP = 1.0  # only the likeliest that together have this probability
    min_p: Share = 0.0  # only those at least this share as likely as the likeliest
    samples: Hypotheses = 1  # outputs for each source
    seed: Seed = 0


GREEDY = Beam(size=1)
Method = Beam | Sampling
