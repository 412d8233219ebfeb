"""What may be asked of /api, and what it answers: the names are those of the library and of the command line."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.decoding.settings import Factor, Seed, Share, TopK, TopP, Weight
from regard.serve.settings import MOST_CHOICES, MOST_OUTPUTS, MOST_WORDS

Outputs = Annotated[int, Field(ge=1, le=MOST_OUTPUTS)]
Several = Annotated[list[str], Field(fail_fast=True)]
Texts = Annotated[str | Several, Field(description="One text, or several.", examples=["I love you very much."])]
Words = Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(max_length=MOST_WORDS)]
Length = Annotated[int, Field(ge=0, le=100_000)] | Annotated[str, Field(max_length=20, examples=["16+2x"])]
Name = Annotated[str | None, Field(max_length=200, description="Which model; without it, the first that can do this.")]


class Asked(BaseModel):
    """Unknown keys are errors: a wish that is misspelt should not be passed over."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name = None


class Writing(Asked):
    """How words are chosen, and what rules hold; docs/decoding.md says what each does."""

    texts: Texts
    beam_size: Outputs | None = None
    length_penalty: Weight | None = None
    n_best: Outputs | None = None
    coverage: Weight | None = None
    groups: Outputs | None = None
    diversity: Weight | None = None
    temperature: Weight | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: Share | None = None
    samples: Outputs | None = None
    seed: Seed | None = None
    mbr: Outputs | None = None
    max_length: Length | None = None
    min_length: Length | None = None
    no_repeat: Annotated[int, Field(ge=0, le=1000)] | None = None
    repetition_penalty: Factor | None = None
    ban: Words | None = None
    require: Words | None = None

    def options(self) -> dict[str, Any]:
        """Those of the verb."""
        return {name: value for name in WRITING_OPTIONS if (value := getattr(self, name)) is not None}


WRITING_OPTIONS = tuple(name for name in Writing.model_fields if name not in ("model", "texts"))


class Translate(Writing):
    """Texts to be translated."""

    to: Annotated[str | None, Field(max_length=100, description="The language, for a model that knows several.", examples=["it"])] = None
    prefix: Annotated[str | None, Field(description="What each translation must begin with.")] = None
    alignment: Annotated[bool, Field(description="With how much each word looked at each of the source.")] = False
    split: Annotated[
        Literal["sentences", "length", "none"] | None,
        Field(
            description="Each sentence on its own, or texts whole (too long ones in parts, or never); without it, as the model was trained."
        ),
    ] = None
    parts: Annotated[
        bool, Field(description="Line by line, as /translate does, with the answer to each part that is translated on its own.")
    ] = False

    def options(self) -> dict[str, Any]:
        return super().options() | ({} if self.split is None else {"split": self.split})


class Generate(Writing):
    """Prompts to be continued."""

    texts: Texts = ""


class Classify(Asked):
    texts: Texts


class Fill(Asked):
    texts: Annotated[str | Several, Field(description="Texts that say [MASK] where a word is missing.", examples=["a [MASK] film"])]
    choices: Annotated[int, Field(ge=1, le=MOST_CHOICES, description="Words to give for each place.")] = 5


class Embed(Asked):
    texts: Texts
    pooling: Literal["mean", "first"] | None = None
    normalise: bool | None = None  # None: as the model was made


class Score(Asked):
    """Targets for sources; for a language model, texts alone."""

    texts: Annotated[str | Several, Field(description="Sources, or for a language model the texts themselves.")]
    targets: Annotated[str | Several | None, Field(description="A translation for each.")] = None
    to: Annotated[str | None, Field(max_length=100)] = None


class Answer(BaseModel):
    """What a model said to one text."""

    model_config = ConfigDict(extra="allow")


class WrittenAnswer(Answer):
    text: str
    score: float | None
    log_probability: float | None
    tokens: list[str]
    log_probabilities: list[float | None]
    ended: bool
    source: list[str] = []
    alternatives: list[WrittenAnswer] = []
    alignment: list[list[float]] | None = None
    part: Annotated[str, Field(description="Of a text that was translated in several parts: the one that this is of.")] = ""
    parts: list[WrittenAnswer] = []


class PartAnswer(WrittenAnswer):
    given: str  # the part of the text that this is a translation of


class PartedAnswer(Answer):
    """A translation in parts. What stands around them, before the first and after each, is as it was in the text."""

    text: str
    parts: list[PartAnswer]
    around: list[str]


class LabelledAnswer(Answer):
    label: str
    probability: float
    probabilities: dict[str, float]


class FilledChoice(BaseModel):
    word: str
    probability: float


class FilledAnswer(Answer):
    text: str
    choices: list[list[FilledChoice]]


class ScoredAnswer(Answer):
    log_probability: float | None
    perplexity: float | None
    tokens: list[str]
    log_probabilities: list[float | None]


class Answered(BaseModel):
    """The answers in the order of the texts, and what there is to know about them."""

    model: str
    warnings: list[str]


class WrittenAnswers(Answered):
    answers: list[WrittenAnswer]


class TranslatedAnswers(Answered):
    answers: list[WrittenAnswer | PartedAnswer]  # the latter where parts were asked for


class LabelledAnswers(Answered):
    answers: list[LabelledAnswer]


class FilledAnswers(Answered):
    answers: list[FilledAnswer]


class VectorAnswers(Answered):
    answers: list[list[float]]


class ScoredAnswers(Answered):
    answers: list[ScoredAnswer]


class ModelCard(BaseModel):
    """A model that is loaded."""

    name: str
    kind: str
    verbs: list[str]
    languages: list[str]
    labels: list[str]
    context: int
    vocabulary: int
    parameters: int


class Models(BaseModel):
    models: list[ModelCard]


class Health(BaseModel):
    status: str
    models: list[str]
    waiting: int


class Problem(BaseModel):
    """What was wrong, and what to do about it."""

    error: str


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "What was asked can't be done, and why."},
    "4XX": {
        "model": Problem,
        "description": "401: no key. 403: another site. 404: no such model. 408, 413: too slow, too much. 429: full.",
    },
    "5XX": {"model": Problem, "description": "500: a mistake of ours. 503: stopping, or out of time."},
}
