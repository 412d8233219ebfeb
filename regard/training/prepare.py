"""From a recipe to all that training needs: the tokenizer, the examples as tokens, and the config of the model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.config import ModelConfig
from regard.data.plan import padded_size
from regard.data.store import CHUNK, Item, Store, cached_store, content_key, in_chunks
from regard.errors import ConfigError, TrainingError
from regard.presets import PRESETS
from regard.recipe import KIND_OF, DataFile, Recipe
from regard.storage import replacing
from regard.text.corpus import Row, find, read_rows, synthetic_reverse
from regard.text.tokenizer import Tokenizer

TOKENIZER_TEXTS = 2_000_000  # enough to learn a vocabulary from
BLOCK = 4_000_000  # characters of a file read as one text that are tokenised at a time; a space may slip in where they meet
DEV_SEED = 1_000_003


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizer of what is written, and that of what is read, where it is another."""

    target: Tokenizer
    source: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target


@dataclass(frozen=True)
class Prepared:
    """Everything that a recipe's data decides."""

    vocabularies: Vocabularies
    train: Store
    dev: Store
    dev_rows: tuple[Row, ...]  # the first few, as text, to decode and score
    dev_tags: tuple[str | None, ...]
    labels: tuple[str, ...]
    config: ModelConfig
    key: str  # of the data and all that was done to it


@dataclass(frozen=True)
class Source:
    """Rows that come from one file, or from nowhere."""

    rows: Callable[[], Iterator[Row]]
    tag: str | None = None


def cache_folder() -> Path:
    """Where tokenised data is kept: REGARD_CACHE, or the user's cache folder."""
    return Path(os.environ.get("REGARD_CACHE") or Path.home() / ".cache" / "regard")


def prepare(recipe: Recipe, root: Path | None, say: Callable[[str], None]) -> Prepared:
    """Reads the data of a recipe, or finds it in the cache as an earlier run left it."""
    train, dev = _sources(recipe, root)
    names = {"__all__": {"path", "source", "target", "sha256"}}  # what is in a file matters, not where it lies
    data = recipe.data.model_dump(exclude={"train": names, "dev": names, "test": True})
    key = content_key(_paths(recipe, root), recipe.task, data, recipe.tokenizer.model_dump(), recipe.training.seed)
    vocabularies = _vocabularies(recipe, train, cache_folder() / "tokenizers" / key, say)
    labels = _labels(train if recipe.data.dev else [*train, *dev]) if recipe.task == "classify" else ()
    size = max(len(vocabularies.target), len(vocabularies.source))

    def store(name: str, sources: Sequence[Source]) -> Store:
        groups = (_items(recipe, source, vocabularies, labels) for source in sources)
        return cached_store(cache_folder() / "examples", f"{key}-{name}", size, groups)

    stores = {name: store(name, sources) for name, sources in (("train", train), ("dev", dev))}
    for name, made in stores.items():
        left_out = "".join(f", {count:,} left out ({reason})" for reason, count in (made.left_out or {}).items())
        say(f"{name}: {len(made):,} examples, {len(made.target.tokens):,} tokens{left_out}")
    if not len(stores["train"]):
        raise TrainingError("no example is left to train on; look at the data with: regard data check")
    pairs = [(row, source.tag) for source in dev for row in islice(_whole_rows(source), recipe.decoding.examples)]
    pairs = pairs[:: max(1, len(pairs) // max(1, recipe.decoding.examples))][: recipe.decoding.examples]
    return Prepared(
        vocabularies,
        stores["train"],
        stores["dev"],
        tuple(row for row, _ in pairs),
        tuple(tag for _, tag in pairs),
        labels,
        _config(recipe, vocabularies, labels, len(stores["train"].target.tokens)),
        key,
    )


def _sources(recipe: Recipe, root: Path | None) -> tuple[list[Source], list[Source]]:
    """Where the rows of training and of validation come from."""
    data = recipe.data
    if data.synthetic is not None:
        made = [Source(lambda: synthetic_reverse(data.examples, recipe.training.seed))]
        return made, [Source(lambda: synthetic_reverse(max(200, data.examples // 50), DEV_SEED, "dev"))]

    def rows_of(file: DataFile) -> Source:
        return Source(lambda: read_rows(file, recipe.task, root, "line" if data.unit == "file" else data.unit), file.to)

    train, dev = [rows_of(file) for file in data.train], [rows_of(file) for file in data.dev]
    if dev:
        return train, dev
    if data.unit == "file":
        return [_slice(source, 0.0, 1 - data.dev_share) for source in train], [_slice(source, 1 - data.dev_share, 1.0) for source in train]
    return [_part(source, data.dev_share, False) for source in train], [_part(source, data.dev_share, True) for source in train]


def _part(source: Source, share: float, inside: bool) -> Source:
    """The rows whose text falls into a share of all texts, or those that don't: a text that stands twice falls on one side only."""

    def rows() -> Iterator[Row]:
        for row in source.rows():
            digest = hashlib.blake2b(row.texts[0 if len(row.texts) == 1 else -1].encode(), digest_size=8).digest()
            if (int.from_bytes(digest) < share * 2**64) == inside:
                yield row

    return Source(rows, source.tag)


def _slice(source: Source, start: float, end: float) -> Source:
    """The lines of a file from one share of it to another, in order."""

    def rows() -> Iterator[Row]:
        count = sum(1 for _ in source.rows())
        yield from islice(source.rows(), round(start * count), round(end * count))

    return Source(rows, source.tag)


def _paths(recipe: Recipe, root: Path | None) -> list[Path]:
    files = (*recipe.data.train, *recipe.data.dev)
    return [find(name, root) for file in files for name in (file.path, file.source, file.target) if name is not None]


def _vocabularies(recipe: Recipe, train: Sequence[Source], folder: Path, say: Callable[[str], None]) -> Vocabularies:
    """Learned from the training texts, or read from where an earlier run left them."""
    apart = recipe.task == "translate" and not recipe.tokenizer.joint
    tags = list(dict.fromkeys(source.tag for source in train if source.tag is not None))
    if not (folder / "target.json").is_file():
        say(f"learning a {recipe.tokenizer.kind} vocabulary of {recipe.tokenizer.size:,}")
        with replacing(folder) as new:
            sides = {"target": slice(1, None), "source": slice(0, 1)} if apart else {"target": slice(None)}
            for name, side in sides.items():
                if recipe.task == "classify":
                    side = slice(1, 2)  # the label is no text
                texts: Iterator[str] = (text for source in train for row in source.rows() for text in row.texts[side])
                if recipe.data.unit == "file":
                    texts = chain.from_iterable(_blocks(source.rows()) for source in train)
                Tokenizer.train(islice(texts, TOKENIZER_TEXTS), recipe.tokenizer, tags).save(new / f"{name}.json")
    target = Tokenizer.load(folder / "target.json")
    return Vocabularies(target, Tokenizer.load(folder / "source.json") if apart else target)


def _labels(train: Sequence[Source]) -> tuple[str, ...]:
    labels = sorted({row.texts[0] for source in train for row in _whole_rows(source)})
    if len(labels) < 2:
        raise TrainingError(
            f"a classifier needs two labels or more to choose from, but the data has {labels}; is the label's column right?"
        )
    return tuple(labels)


def _items(recipe: Recipe, source: Source, vocabularies: Vocabularies, labels: tuple[str, ...]) -> Iterator[Item | str]:
    """The examples of one file; a text says why a row gave none."""
    longest = recipe.data.max_length
    target = vocabularies.target
    if recipe.data.unit == "file" and recipe.task in ("lm", "mlm"):
        stream = chain.from_iterable(target.encode(block) for block in _blocks(source.rows()))
        yield from _stream_items(chain([target.start_id], stream, [target.end_id]), longest, overlap=recipe.task == "lm")
        return
    number = {label: index for index, label in enumerate(labels)}
    for rows in in_chunks(source.rows(), CHUNK):
        written = target.encode_batch([row.texts[-1] for row in rows])
        read = vocabularies.source.encode_batch([row.texts[0] for row in rows], source.tag) if recipe.task == "translate" else written
        for row, into, out in zip(rows, read, written, strict=True):
            if not all(text.strip() for text in row.texts):
                yield "an empty side" if len(row.texts) > 1 else "empty"
            elif recipe.task == "translate":
                if len(into) + 1 > longest or len(out) + 1 > longest:
                    yield f"longer than {longest} tokens"
                else:
                    yield Item([target.start_id, *out, target.end_id], [*into, target.end_id])
            elif recipe.task == "classify":
                if row.texts[0] not in number:
                    raise TrainingError(
                        f"{row.file}, line {row.line}: the label {row.texts[0]!r} stands in no training data; correct it or leave it out"
                    )
                yield Item([target.start_id, *out[: longest - 2], target.end_id], label=number[row.texts[0]])
            else:
                whole = [target.start_id, *out, target.end_id]
                yield from _stream_items(whole, longest, overlap=recipe.task == "lm")


def _blocks(rows: Iterable[Row]) -> Iterator[str]:
    """Lines joined again, in pieces that a tokenizer can take."""
    lines: list[str] = []
    size = 0
    for row in rows:
        lines.append(f"{row.texts[0]}\n")
        size += len(lines[-1])
        if size >= BLOCK:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)


def _stream_items(tokens: Iterable[int], longest: int, *, overlap: bool) -> Iterator[Item]:
    """A text in pieces; with overlap each begins with the last token of the one before, so that every token is foretold once."""
    held: list[int] = []
    size = longest + 1 if overlap else longest
    for token in tokens:
        held.append(token)
        if len(held) == size:
            yield Item(held)
            held = held[-1:] if overlap else []
    if len(held) > (1 if overlap else 0):
        yield Item(held)


def _whole_rows(source: Source) -> Iterator[Row]:
    return (row for row in source.rows() if all(text.strip() for text in row.texts))


def _config(recipe: Recipe, vocabularies: Vocabularies, labels: tuple[str, ...], tokens: int) -> ModelConfig:
    """The model as the recipe describes it, with what the data decides; without a description, one that fits the amount of data."""
    target = vocabularies.target
    decided: dict[str, Any] = {
        "vocabulary": len(target),
        "pad_token": target.pad_id,
        "start_token": target.start_id,
        "end_token": target.end_id,
        "context": max(padded_size(recipe.data.max_length), recipe.decoding.max_length + 1 if recipe.task == "translate" else 0),
    }
    if not vocabularies.joint:
        decided["source_vocabulary"] = len(vocabularies.source)
    if recipe.task == "mlm":
        decided["masked_words"] = True
    if recipe.task == "classify":
        decided["labels"] = labels
    model = recipe.model or {"preset": fitting_preset(recipe.task, tokens)}
    kind = model.get("kind") or PRESETS.get(str(model.get("preset")), {}).get("kind", KIND_OF[recipe.task])
    if kind != KIND_OF[recipe.task] and (recipe.task, kind) != ("translate", "rnn"):
        raise ConfigError(f"a model of kind {kind!r} can't learn to {recipe.task}; choose a preset of kind {KIND_OF[recipe.task]!r}")
    return recipe.model_copy(
        update={"model": {**model, **{key: value for key, value in decided.items() if key not in model}}}
    ).model_config_for()


def fitting_preset(task: str, tokens: int) -> str:
    """A model that so many tokens of training text can fill and a laptop can train."""
    if task == "translate":
        return "transformer-tiny" if tokens < 3_000_000 else "transformer-small"
    return "gpt-small" if task == "lm" else "bert-small"
