"""What OpenAI's clients send. They send much that a small model has no use for: it is passed over where it changes nothing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.decoding.settings import Factor, Share, TopK, TopP
from regard.serve.schemas import Several
from regard.serve.settings import MOST_OUTPUTS

Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)]
Ids = Annotated[list[int], Field(fail_fast=True)]
Count = Annotated[int, Field(ge=1, le=100_000)]
Stops = Annotated[str, Field(max_length=200)] | Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=4)]


class Asked(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: Annotated[str, Field(max_length=200, description="As /v1/models names it; a translator with its language, as translator:it.")]


class StreamOptions(BaseModel):
    include_usage: bool = False


class Written(Asked):
    """What completions and chats share. `top_k`, `min_p` and `repetition_penalty` are ours."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: Share | None = None
    repetition_penalty: Factor | None = None
    n: Annotated[int, Field(ge=1, le=MOST_OUTPUTS)] | None = None
    stop: Stops | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @property
    def stops(self) -> list[str]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in given if each]

    @property
    def unmet(self) -> str | None:
        """What is asked for and can't be done."""
        return next((name for name in ("presence_penalty", "frequency_penalty", "logit_bias") if getattr(self, name)), None)


class Completion(Written):
    prompt: Annotated[str | Several | Ids | Annotated[list[Ids], Field(fail_fast=True)] | None, Field(examples=["Once upon a time"])] = None
    max_tokens: Count | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    @property
    def unmet(self) -> str | None:
        if self.best_of is not None and self.best_of != (self.n or 1):
            return "best_of"
        return "suffix" if self.suffix else super().unmet


class Part(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: Annotated[str, Field(max_length=30, pattern="^[a-z]+$")]
    content: str | Annotated[list[Part], Field(fail_fast=True)] | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or [])


class Chat(Written):
    messages: Annotated[list[Message], Field(min_length=1, max_length=256, fail_fast=True)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    @property
    def unmet(self) -> str | None:
        if self.response_format and self.response_format.get("type") != "text":
            return "response_format"
        return "tools" if self.tools else super().unmet


class Embeddings(Asked):
    input: Annotated[str | Several | Ids | Annotated[list[Ids], Field(fail_fast=True)], Field(examples=["a lovely film"])]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: int | str | None


class Problem(BaseModel):
    error: ErrorBody


PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "What was asked can't be done, and why."},
    "4XX": {"model": Problem, "description": "401: no key. 404: no such model. 413: too much. 429: full."},
    "5XX": {"model": Problem, "description": "500: a mistake of ours. 503: stopping, or out of time."},
}
