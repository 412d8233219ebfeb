"""A recipe makes a model: task, data, tokenizer, model, training and decoding, in TOML. An unknown key is an error."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from regard.config import Cut, ModelConfig, Positive, Settings, Share, explain, parse_model
from regard.config import Task as Task  # one of a model's settings, and what a recipe begins with
from regard.errors import ConfigError, nearest
from regard.presets import PRESETS

NonNegative = Annotated[int, Field(ge=0)]


class DataFile(Settings):
    """One file of a corpus, or two aligned ones; plain, .gz, .xz or .zst."""

    path: str | None = None  # pairs.tsv, pairs.jsonl, text.txt, labelled.tsv
    source: str | None = None  # instead of path: two files, line by line
    target: str | None = None
    columns: tuple[int | str, ...] | None = None  # which columns of a TSV (from 0), or keys of a JSONL; None: the first ones
    header: bool | None = None  # whether the first line of a table names its columns; None: where it looks so, and that is said
    only: dict[str, tuple[str, ...]] = Field(
        default_factory=dict
    )  # keep only rows whose column (its number, as text) or key has one of these values
    without: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # drop rows whose column or key has one of these values
    to: str | None = None  # a tag that tells the model what to write, such as a language
    script: str | None = None  # what the target is written in, such as "Devanagari"; rows in another are left out and counted
    weight: Annotated[float, Field(gt=0)] = 1.0  # how often it is visited, relative to its size
    transpose: tuple[int, int] = (0, 0)  # MIDI: every song also in the keys from so many semitones lower (-5) to so many higher (6)
    sha256: str | None = None  # of the file as it lies there (of two, one after the other); a different one is an error

    @model_validator(mode="after")
    def _one_or_two_files(self) -> Self:
        if (self.path is None) == (self.source is None) or (self.source is None) != (self.target is None):
            raise ValueError("a data file is either path = '…' or source = '…' with target = '…'")
        return self


class FilterSettings(Settings):
    """Which training rows are left out because little can be learned from them; each reason is counted. Dev and test are left alone."""

    shortest: NonNegative = 0  # in characters, of each side
    longest: NonNegative = 0  # in characters, of each side; 0: of any length
    most_words: NonNegative = 0  # of each side; 0: any number
    ratio: Annotated[float, Field(ge=0)] = 0.0  # the longer side of a pair has at most so many times the characters of the other; 0: any
    letters: Share = 0.0  # the least share of letters among the characters of each side, spaces not counted
    script_share: Share = 0.5  # the least share of letters of a target that are of the script that its file names
    drop_same: bool = False  # pairs with the same on both sides, unless they are very short
    drop_duplicates: bool = False  # rows that came before, in whichever file

    @model_validator(mode="after")
    def _ratio_is_one(self) -> Self:
        if 0 < self.ratio < 1:
            raise ValueError(f"ratio = {self.ratio} is of the longer side to the shorter: 1 or more, or 0 for any")
        return self


class DataSettings(Settings):
    """Where the examples come from."""

    train: tuple[DataFile, ...] = ()
    dev: tuple[DataFile, ...] = ()
    test: tuple[DataFile, ...] = ()
    synthetic: Literal["reverse"] | None = None  # made up on the spot, instead of files
    examples: Positive = 20000  # how many synthetic ones to train on
    unit: Literal["line", "document", "file"] = "line"  # of plain text: a line, what stands between blank lines, or all of it
    max_length: Positive = 256  # in tokens, of each side (or both, where one stack has both); longer pairs are left out, longer texts cut
    cut: Cut = "end"  # classify: where a longer text loses what is too much: its end, or its middle, so that head and tail are read
    dev_share: Share = 0.02  # of the training examples, kept apart where no dev file is given
    test_share: Share = 0.0  # of the training examples, kept apart where no test file is given, and written to test.tsv in the run's folder
    split_seed: NonNegative = 0  # another one keeps other examples apart; a text that stands twice always falls on one side
    keep_apart: bool = True  # leave training rows out whose source (or text) stands in dev or test
    filter: FilterSettings = FilterSettings()
    balance: Annotated[float, Field(ge=0, le=1)] = 1.0  # a tag's share of the visits is as its size to this power; 1: as the data is


class TokenizerSettings(Settings):
    """How text becomes tokens."""

    kind: Literal["bpe", "unigram", "char", "word"] = "bpe"
    size: Positive = 8000
    joint: bool = True  # one vocabulary for source and target
    lowercase: bool = False


class TrainingSettings(Settings):
    """How weights are learned."""

    steps: Positive = 10000
    batch_tokens: Positive = 4096  # in a step, of the longer side, padding included
    accumulate: Positive = 1  # parts that a batch is worked through in
    seed: NonNegative = 1
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: Annotated[float, Field(gt=0)] = 7e-4  # the highest; with schedule = "paper" a factor, 1 being the paper's
    schedule: Literal["paper", "inverse-sqrt", "cosine", "wsd", "constant"] = "inverse-sqrt"
    warmup: NonNegative = 1000
    decay: Share = 0.2  # the share of steps over which "wsd" falls to zero
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-9
    weight_decay: Annotated[float, Field(ge=0)] = 0.0  # of matrices; norms and biases have none
    clip: Annotated[float, Field(ge=0)] = 1.0  # the largest norm of a gradient; 0 or inf: any
    label_smoothing: Share = 0.1
    r_drop: Annotated[float, Field(ge=0)] = 0.0  # how much two passes with different dropout must agree (Liang et al. 2021); 0: one pass
    bpe_dropout: Share = 0.0  # of merges that are forgotten, so that a text has many segmentations (Provilkov et al. 2020)
    bpe_dropout_copies: Positive = 8  # how many segmentations of each example there are, taken in turn
    mask_share: Share = 0.15  # mlm: of words that are hidden
    prefix_share: Share = 0.5  # lm with a prefix mask: the largest share of a text that is given
    ema: Share = 0.0  # keep a moving average of the weights with this momentum, and validate with it; 0: none
    average: NonNegative = 0  # at the end, average the weights of the last so many checkpoints
    validate_every: Positive = 500
    checkpoint_every: Positive = 500
    log_every: Positive = 20
    keep: Positive = 3  # the last so many checkpoints
    keep_best: Positive = 1  # and besides them the best
    patience: NonNegative = 0  # validations without a better one before training stops; 0: never
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU
    compile: Literal["auto", "yes", "no"] = "auto"  # auto: on a GPU
    parallel: Literal["ddp", "fsdp"] = "ddp"  # several processes: each has the whole model, or a part of every layer
    layout: Literal["auto", "padded", "packed"] = "auto"  # auto: packed on a GPU
    freeze: tuple[str, ...] = ()  # parameters whose names begin so are left as they are
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0  # a layer learns so much slower than the one above it; 1: all alike


class DecodingSettings(Settings):
    """How validation translates."""

    beam_size: Positive = 1
    length_penalty: Annotated[float, Field(ge=0)] = 1.0
    max_length: Positive = 128
    examples: NonNegative = 200  # of dev, decoded for BLEU at each validation; 0: none
    tokenize: Literal["13a", "none", "intl", "char", "zh"] = (
        "13a"  # sacreBLEU's tokenizer; "none" for text that is in tokens already, as papers on Multi30k score it
    )


class Recipe(Settings):
    """All that makes a model."""

    task: Task
    data: DataSettings = DataSettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    # A preset and any setting of it; what is left out fits the task. Or from = a bundle: then its weights are what training begins with,
    # and its shape and tokenizer are the model's.
    model: dict[str, Any] = Field(default_factory=dict)
    training: TrainingSettings = TrainingSettings()
    decoding: DecodingSettings = DecodingSettings()

    @model_validator(mode="after")
    def _data_is_given(self) -> Self:
        if bool(self.data.train) == (self.data.synthetic is not None):
            raise ValueError("data.train names the files to learn from (or data.synthetic makes them up); give one of the two")
        return self

    @model_validator(mode="after")
    def _one_test(self) -> Self:
        data = self.data
        if data.test_share and (data.test or not data.train):
            raise ValueError(
                "data.test_share takes a part of the training files, and data.test names files of its own; give one of the two"
            )
        if data.test_share and self.task not in ("classify", "translate"):
            raise ValueError(
                f"data.test_share keeps rows of a table apart, and task {self.task} reads plain text; name a file in data.test"
            )
        if data.test_share + data.dev_share >= 1 and not data.dev:
            raise ValueError("data.test_share and data.dev_share together leave nothing to train on; lower them")
        return self

    @model_validator(mode="after")
    def _shape_is_the_bundles(self) -> Self:
        if self.begins_from is None:
            return self
        if "preset" in self.model:
            raise ValueError("model.preset and model.from both say what the model is; take one of the two out")
        own = sorted(self.tokenizer.model_fields_set) if "tokenizer" in self.model_fields_set else []
        if own:
            raise ValueError(f"tokenizer.{own[0]} is set, but with model.from the tokenizer is that of the bundle; take [tokenizer] out")
        return self

    @model_validator(mode="after")
    def _filters_fit(self) -> Self:
        chosen = self.data.filter
        if self.one_text and chosen != FilterSettings():
            raise ValueError("data.filter looks at rows, but with data.unit = 'file' a text is read as a whole; take one of the two out")
        for_pairs = {
            "filter.ratio": chosen.ratio,
            "filter.drop_same": chosen.drop_same,
            "train.script": any(f.script for f in self.data.train),
        }
        used = next((name for name, value in for_pairs.items() if value), None)
        if self.task != "translate" and used is not None:
            raise ValueError(f"data.{used} is about pairs, and task {self.task} has none; take it out")
        return self

    @model_validator(mode="after")
    def _merges_can_be_forgotten(self) -> Self:
        if self.training.bpe_dropout and (self.tokenizer.kind != "bpe" or self.task not in ("translate", "classify")):
            raise ValueError("training.bpe_dropout is for tokenizer.kind = 'bpe' and the tasks translate and classify; set it to 0")
        return self

    @property
    def one_text(self) -> bool:
        """Whether each file is read as one long text."""
        return self.data.unit == "file" and self.task in ("lm", "mlm")

    @property
    def begins_from(self) -> str | None:
        """The bundle whose weights training begins with; None: it begins with chance."""
        return str(self.model["from"]) if "from" in self.model else None

    @property
    def kind(self) -> str:
        """The family of the model."""
        preset = PRESETS.get(str(self.model.get("preset")), {})
        return str(self.model.get("kind") or preset.get("kind", KIND_OF[self.task]))

    def model_config_for(self, **settings: Any) -> ModelConfig:
        """The config of the model that this recipe makes; `settings` are those that the data decides, such as the vocabulary."""
        wanted = {key: value for key, value in self.model.items() if key != "from"}
        base: dict[str, Any] = {}
        name = wanted.pop("preset", None)
        if name is not None:
            if name not in PRESETS:
                raise ConfigError(f"model.preset = {name!r} is unknown; {nearest(str(name), PRESETS)}")
            base = PRESETS[name]
        return parse_model({"kind": KIND_OF[self.task]} | base | wanted | settings, where="[model]")


KIND_OF: dict[Task, str] = {"translate": "seq2seq", "lm": "lm", "mlm": "encoder", "classify": "encoder"}


FITTING = "fitting"  # the preset that suits the amount of data; it is chosen when the data is read


def load_recipe(path: Path, changes: list[str] | None = None) -> Recipe:
    """A recipe from a TOML file; `base = "other.toml"` is read first, `changes` ("training.lr=1e-3") last.

    Where the file describes no model, the one that fits its data is what is changed.
    """
    settings, own = read_toml(path), merged({}, *map(parse_change, changes or []))
    if not settings.get("model") and own.get("model") and fits_preset(own["model"], settings.get("task")):
        settings = settings | {"model": {"preset": FITTING}}
    return parse_recipe(merged(settings, own), where=str(path))


def fits_preset(model: Any, task: Any) -> bool:
    """Whether these settings change a model that fits the data, and don't say which model it is."""
    return isinstance(model, dict) and not {"preset", "from"} & set(model) and model.get("kind") in (None, KIND_OF.get(task))


def parse_recipe(settings: dict[str, Any], where: str = "the recipe") -> Recipe:
    try:
        return Recipe.model_validate(_moved_gently(_classes_unsmoothed(_files_spelt_out(settings))))
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain(error, Recipe)}") from None


def to_toml(recipe: Recipe, leave_out: set[str] | None = None) -> str:
    """Every setting, defaults too, as a file that load_recipe reads back."""
    own = {"tokenizer"} if recipe.begins_from is not None else set()  # it is the bundle's
    tables = recipe.model_dump(exclude_none=True, exclude={*(leave_out or ()), *own})
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan; JSON has other words
    # Other numbers, truth values and text are written alike in both, but for one character that TOML wants escaped.
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")


def parse_change(change: str) -> dict[str, Any]:
    """ "a.b=c" to {"a": {"b": c}}; c is TOML, or else plain text."""
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change!r}: write it as section.key=value, for example training.lr=1e-3")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return dict(parsed)


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Later layers over earlier ones, table by table."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


def read_toml(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    if path.resolve() in seen:
        raise ConfigError(f"{path}: base leads back to it; take one of the two out")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read the recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested deeper than any recipe") from error
    except ValueError as error:  # Python reads no number of thousands of digits
        raise ConfigError(f"{path} has a number of more digits than any setting") from error
    base = settings.pop("base", None)
    return settings if base is None else merged(read_toml(path.parent / str(base), (*seen, path.resolve())), settings)


def _classes_unsmoothed(settings: dict[str, Any]) -> dict[str, Any]:
    """Labels are smoothed where that is asked for: of a few classes, unlike words, mostly one is right and not another nearly as much."""
    training = settings.get("training", {})
    if settings.get("task") != "classify" or not isinstance(training, dict):
        return settings
    return settings | {"training": {"label_smoothing": 0.0} | training}


def gentle(task: Any, steps: int) -> dict[str, Any]:
    """How weights that have learned already are moved: not far, and less and less."""
    return {"lr": 5e-5 if task == "classify" else 1e-4, "warmup": max(10, steps // 10), "schedule": "cosine"}


def _moved_gently(settings: dict[str, Any]) -> dict[str, Any]:
    """A recipe that begins from a bundle and does not say how fast to learn, learns as suits a model that has learned already."""
    model, training = settings.get("model", {}), settings.get("training", {})
    if not (isinstance(model, dict) and "from" in model and isinstance(training, dict)) or {"lr", "schedule"} & set(training):
        return settings
    steps = training.get("steps", TrainingSettings.model_fields["steps"].default)
    return settings | {"training": gentle(settings.get("task"), steps) | training} if isinstance(steps, int) else settings


def with_tag(recipe: Recipe, to: str) -> Recipe:
    """The recipe with a language to write for each file that names none."""
    if recipe.task != "translate":
        raise ConfigError(f"a language to write is for translations; leave it out for task {recipe.task}")
    told = {
        key: tuple(file if file.to is not None else file.model_copy(update={"to": to}) for file in getattr(recipe.data, key))
        for key in ("train", "dev", "test")
    }
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=told)})


def _files_spelt_out(settings: dict[str, Any]) -> dict[str, Any]:
    """A file may be named by its path alone, and a single one need not be a list."""
    data = settings.get("data")
    if not isinstance(data, dict):
        return settings
    spelt = dict(data)
    for key in ("train", "dev", "test"):
        if key in spelt:
            files = spelt[key] if isinstance(spelt[key], list | tuple) else [spelt[key]]
            spelt[key] = [{"path": file} if isinstance(file, str) else file for file in files]
    return settings | {"data": spelt}
