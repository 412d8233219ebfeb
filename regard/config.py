"""Every setting of a model, typed and documented in one place.

A config says what a model *is* (what its weights mean); how fast it runs (backend, device, precision) is said where it is built.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails

from regard.errors import SHOWN, ConfigError, nearest, shown
from regard.limits import MOST, MOST_CONTEXT, MOST_FACTOR, MOST_HEADS, MOST_LAYERS, MOST_WIDTH

# What numbers may be, in settings of every kind. What is not said here or beside a setting is no number, or may be any that there is.
NonNegative = Annotated[int, Field(ge=0, le=MOST)]
Positive = Annotated[int, Field(gt=0, le=MOST)]
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
Width = Annotated[int, Field(gt=0, le=MOST_WIDTH)]
Heads = Annotated[int, Field(gt=0, le=MOST_HEADS)]
Context = Annotated[int, Field(gt=0, le=MOST_CONTEXT)]
Real = Annotated[float, Field(ge=-MOST_FACTOR, le=MOST_FACTOR)]
Amount = Annotated[float, Field(ge=0, le=MOST_FACTOR)]
Factor = Annotated[float, Field(gt=0, le=MOST_FACTOR)]
Epsilon = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]

Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]
Bias = Literal["all", "qkv", "none"]
PositionKind = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
Task = Literal["translate", "lm", "mlm", "classify"]
Cut = Literal["end", "middle"]
Split = Literal["sentences", "length"]


class Settings(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class RotaryScaling(Settings):
    """How rotary frequencies are slowed so that a model reaches beyond the context it was trained on."""

    kind: Literal["linear", "llama3"]
    factor: Annotated[float, Field(ge=1.0, le=MOST_FACTOR)]
    low_frequency: Factor = 1.0  # llama3: waves longer than context / low_frequency are slowed by the full factor
    high_frequency: Factor = 4.0  # llama3: waves shorter than context / high_frequency are left alone
    original_context: Context = 8192  # llama3: the context that the frequencies were made for

    @model_validator(mode="after")
    def _frequencies_rise(self) -> Self:
        if self.low_frequency >= self.high_frequency:
            raise ValueError(f"low_frequency = {self.low_frequency} must be below high_frequency = {self.high_frequency}")
        return self


class Vocabulary(Settings):
    """The token ids that every family needs to know."""

    vocabulary: Positive  # how many different tokens there are
    pad_token: int = 0
    start_token: int = 1  # what a decoder reads before its first word
    end_token: int = 2  # what it says when it is done
    stop_tokens: tuple[int, ...] = ()  # others that end what it writes, such as the end of a turn in a conversation
    split: Split | None = None  # a translator reads a text sentence by sentence, or whole where it fits; None: not said, so whole
    task: Task | None = None  # what it was trained for; None: not said, as in bundles from elsewhere or from before this was written down

    @model_validator(mode="after")
    def _tokens_exist(self) -> Self:
        for name in ("pad_token", "start_token", "end_token"):
            if not 0 <= getattr(self, name) < self.vocabulary:
                raise ValueError(f"{name} = {getattr(self, name)} is not in a vocabulary of {self.vocabulary}; set it too")
        if not all(0 <= token < self.vocabulary for token in self.stop_tokens):
            raise ValueError(f"stop_tokens = {self.stop_tokens} are not all in a vocabulary of {self.vocabulary}; set them too")
        return self


class Transformer(Vocabulary):
    """What the three Transformer families share. Defaults are those of the paper's base model."""

    layers: Layers = 6
    width: Width = 512  # d_model
    heads: Heads = 8
    kv_heads: Heads | None = None  # fewer than heads: grouped-query; 1: multi-query; None: one per head
    head_width: Width | None = None  # d_k; None: width / heads
    attention_scale: Real | None = None  # what scores are multiplied by; None: 1 / sqrt(head_width)
    feedforward: Width = 2048
    activation: Activation = "relu"
    bias: Bias = "all"  # which linear maps have one
    norm: Literal["layer", "rms"] = "layer"
    norm_place: Literal["before", "after"] = "after"  # of each sub-layer
    norm_epsilon: Epsilon = 1e-5
    positions: PositionKind = "sinusoidal"
    position_layout: Literal["interleaved", "halves"] = "interleaved"  # how sines and cosines (or rotated pairs) lie in a vector
    context: Context = 1024  # the longest sequence that the model takes
    rotary_base: Annotated[float, Field(gt=0, le=1e12)] = 10000.0
    rotary_scaling: RotaryScaling | None = None
    relative_buckets: Width = 32
    relative_distance: Context = 128
    window: Positive | None = None  # a position sees itself and the window - 1 before it (both sides in an encoder); None: all
    embedding_scale: bool = True  # multiply embeddings by sqrt(width), as the paper does
    embedding_norm: bool = False
    tied: bool = True  # the de-embedding is the (target) embedding: one parameter
    output_bias: bool = False
    logit_scale: Real = 1.0
    dropout: Share = 0.1  # on every sub-layer's output and on the sum of embeddings and positions, as in the paper
    attention_dropout: Share = 0.0
    activation_dropout: Share = 0.0
    init: Literal["xavier", "normal"] = "xavier"

    @property
    def key_width(self) -> int:
        return self.head_width or self.width // self.heads

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.head_width is None and self.width % self.heads:
            fits = [n for n in range(1, min(2 * self.heads, self.width) + 1) if self.width % n == 0]
            raise ValueError(
                f"heads = {self.heads} does not divide width = {self.width}; choose heads from {fits} or set head_width yourself"
            )
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}; each must serve as many query heads")
        if self.positions == "rotary" and self.key_width % 2:
            raise ValueError(f"rotary positions turn pairs of numbers, but the head width is {self.key_width}; make it even")
        if self.positions == "relative" and not 4 <= self.relative_buckets < 2 * self.relative_distance:
            raise ValueError(f"relative_buckets = {self.relative_buckets} must be 4 or more and less than twice relative_distance")
        if self.positions == "sinusoidal" and self.width % 2:
            raise ValueError(f"sinusoidal positions are pairs of sine and cosine, but width is {self.width}; make it even")
        return self


class Seq2SeqConfig(Transformer):
    """Encoder-decoder, the model of the paper."""

    kind: Literal["seq2seq"] = "seq2seq"
    decoder_layers: Layers | None = None  # None: as many as the encoder has
    source_vocabulary: Positive | None = None  # None: one vocabulary and one embedding for both sides

    @model_validator(mode="after")
    def _no_window(self) -> Self:
        if self.window is not None:
            raise ValueError("window is for kind = 'lm' and 'encoder'; an encoder-decoder reads the whole source: remove it")
        return self


class LanguageModelConfig(Transformer):
    """Decoder-only: each word from those before it."""

    kind: Literal["lm"] = "lm"
    mask: Literal["causal", "prefix"] = "causal"  # prefix: the given part sees itself in both directions


class EncoderConfig(Transformer):
    """Encoder-only: every word sees every word, and heads say what the vectors are for."""

    kind: Literal["encoder"] = "encoder"
    token_types: Annotated[int, Field(ge=0, le=MOST_WIDTH)] = 0  # BERT's sentence A or B; 0: none
    masked_words: bool = False  # a head that fills in masked words
    pooler: bool = False  # BERT's dense layer and tanh over the pooled vector
    pooler_activation: Literal["tanh", "relu"] = "tanh"  # relu: DistilBERT's
    pooling: Literal["first", "mean"] = "mean"
    normalised: bool = False  # the vectors of texts have length 1, as sentence encoders' do that were trained on their angles
    labels: tuple[str, ...] = ()  # a classification head with these labels
    longest_text: Positive | None = None  # in tokens, start and end among them: longer texts are cut to it; None: to the context
    cut: Cut = "end"  # where a longer text loses what is too much: its end, or its middle, so that head and tail are read

    @property
    def room(self) -> int:
        """How many tokens of a text are read, start and end among them."""
        return min(self.longest_text or self.context, self.context)


class RnnConfig(Vocabulary):
    """The recurrent encoder-decoder that came before, with or without attention."""

    kind: Literal["rnn"] = "rnn"
    cell: Literal["lstm", "gru"] = "lstm"
    attention: Literal["additive", "none"] = "additive"
    layers: Layers = 1
    width: Width = 512  # of embeddings and of hidden states
    bidirectional: bool = True  # the encoder reads forwards and backwards
    source_vocabulary: Positive | None = None
    tied: bool = False
    dropout: Share = 0.2
    context: Context = 1024

    @model_validator(mode="after")
    def _two_directions_fit(self) -> Self:
        if self.bidirectional and self.width % 2:
            raise ValueError(f"a bidirectional encoder gives half of width = {self.width} to each direction; make it even")
        return self


ModelConfig = Annotated[Seq2SeqConfig | LanguageModelConfig | EncoderConfig | RnnConfig, Field(discriminator="kind")]
KINDS: dict[str, type[Vocabulary]] = {
    "seq2seq": Seq2SeqConfig,
    "lm": LanguageModelConfig,
    "encoder": EncoderConfig,
    "rnn": RnnConfig,
}
_adapter: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)


def parse_model(settings: dict[str, Any], where: str = "the model's settings") -> ModelConfig:
    """A config from plain values; `where` names the file for the error message."""
    family = _family(settings.get("kind"), where)
    try:
        return _adapter.validate_python(settings)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, family)}") from None


def check_settings(kind: object, settings: dict[str, Any], where: str = "the model's settings") -> None:
    """An error, where one of some settings of a family could not be, whatever the others are."""
    family = _family(kind, where)
    try:
        family.model_validate(settings)
    except ValidationError as error:
        own = [complaint for complaint in error.errors() if complaint["loc"] and complaint["loc"][0] in settings]
        if own:
            raise ConfigError(f"{where}: {explain(error, family, own[0])}") from None


def _family(kind: object, where: str) -> type[Vocabulary]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"{where}: kind = {shown(kind)} is no model family; {nearest(kind if isinstance(kind, str) else '', KINDS)}")
    return KINDS[kind]


def change(config: ModelConfig, **settings: Any) -> ModelConfig:
    """The same config with some settings changed, checked again."""
    return parse_model(config.model_dump() | settings)


def explain(error: ValidationError, settings: type[Settings], complaint: ErrorDetails | None = None) -> str:
    """The first of pydantic's complaints, or another one of them, in one sentence with a remedy."""
    complaint = complaint or error.errors()[0]
    path = [str(part) for part in complaint["loc"] if part not in KINDS]
    key = ".".join(path)[:SHOWN]
    if complaint["type"] == "extra_forbidden":
        return f"unknown key '{key}'; {nearest(path[-1], _keys_at(settings, path[:-1]))}"
    if complaint["type"] == "missing":
        return f"'{key}' is missing; give it a value"
    message = complaint["msg"].removeprefix("Value error, ")
    simple = not isinstance(complaint["input"], dict | BaseModel)
    return f"'{key}' = {shown(complaint['input'])}: {message}" if key and simple else f"'{key}': {message}" if key else message


def _keys_at(settings: type[Settings], path: list[str]) -> list[str]:
    """The keys that a table at `path` below these settings may have."""
    for part in path:
        field = settings.model_fields.get(part)
        inner = [kind for kind in _kinds_in(field.annotation) if issubclass(kind, Settings)] if field else []
        settings = inner[0] if inner else settings  # the number of an item in a list has no settings of its own
    return list(settings.model_fields)


def _kinds_in(annotation: Any) -> list[type]:
    """Every class that a type annotation mentions."""
    parts = [kind for part in get_args(annotation) for kind in _kinds_in(part)]
    return [annotation, *parts] if isinstance(annotation, type) and not get_args(annotation) else parts
