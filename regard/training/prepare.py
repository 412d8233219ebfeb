"""From a recipe to all that training needs: the tokenizer, the examples as tokens, and the config of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from regard.config import ModelConfig, Split
from regard.data.examples import Maker, Segmentations, Vocabularies
from regard.data.plan import padded_size
from regard.data.store import Store, cached_store, content_key
from regard.data.visits import visits
from regard.errors import ConfigError, TrainingError
from regard.recipe import FITTING, KIND_OF, DataFile, Recipe
from regard.storage import cache_folder, cached
from regard.text.corpus import Row, find, header_left_out
from regard.text.sentences import sentences
from regard.text.sieve import Sieve
from regard.text.sources import Source, blocks, held_out, keeps_apart, sources_of, tests_of
from regard.text.tokenizer import Tokenizer
from regard.training.begin import Beginning

TOKENIZER_ROWS = 800_000  # enough to learn a vocabulary from
COUNTED_ROWS = 2_000  # of each file, whose sentences are counted
SEVERAL = 1.5  # sentences a row, from which on a translator has learned to read several at once
NOTHING_LEFT = "no example is left to train on; look at data.filter and, with `regard data check`, at the data"


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
    test: Store | None = None  # what a finished classifier is tested on
    test_rows: tuple[Row, ...] = ()  # the same as text, where it was taken from the training files
    beginning: Beginning | None = None  # the bundle whose weights training begins with; None: it begins with chance


def prepare(recipe: Recipe, root: Path | None, say: Callable[[str], None]) -> Prepared:
    """Reads the data of a recipe, or finds it in the cache as an earlier run left it."""
    beginning = Beginning.of(recipe)
    recipe = recipe if beginning is None else beginning.adopted(recipe)
    _check_kind(recipe)
    train, dev = sources_of(recipe, root)
    for _, header in _headers(recipe, root):
        say(header)
    key = _key(recipe, root, beginning)
    apart = held_out(recipe, root)
    if beginning is None:
        vocabularies = _vocabularies(recipe, train, apart, cache_folder() / "tokenizers" / key, say)
    else:
        vocabularies = beginning.vocabularies
    tests = tests_of(recipe, root) if recipe.data.test_share or recipe.task == "classify" else []
    # Where files are split by chance, a rare label may fall into any part of them.
    split = [*(() if recipe.data.dev else dev), *(tests if recipe.data.test_share else ())]
    labels = _labels([*train, *split]) if recipe.task == "classify" else ()
    maker = Maker(recipe, vocabularies, labels)
    stores = {"train": _train_store(maker, train, apart, key, say), "dev": _store(maker, dev, f"{key}-dev", say)}
    if tests and recipe.task == "classify":
        stores["test"] = _store(maker, tests, f"{key}-test-{_files_key(recipe, root)}", say)
    for name, made in stores.items():
        _describe(name, made, say)
    if not len(stores["train"]):
        raise TrainingError(NOTHING_LEFT)
    _describe_visits(recipe, stores["train"], say)
    rows, tags = _to_decode(recipe, dev, vocabularies)
    return Prepared(
        vocabularies,
        stores["train"],
        stores["dev"],
        rows,
        tags,
        labels,
        _config(recipe, vocabularies, labels, train, len(stores["train"].target.tokens) // _copies(recipe)),
        f"{key}{_forgetting(recipe)}",
        test=stores.get("test"),
        test_rows=tuple(row for source in tests for row in source.whole_rows) if recipe.data.test_share else (),
        beginning=beginning,
    )


def _files_key(recipe: Recipe, root: Path | None) -> str:
    """Of the test files, which are no part of the key where they don't matter to training."""
    files = [find(file.path, root) for file in recipe.data.test if file.path is not None]
    return content_key(files, [file.model_dump(exclude={"path", "sha256"}) for file in recipe.data.test])


def _headers(recipe: Recipe, root: Path | None) -> list[tuple[DataFile, str]]:
    """Files that are read and whose first line is no row, and what is to be said of them."""
    tests = recipe.data.test if recipe.task == "classify" or keeps_apart(recipe) else ()
    files = (*recipe.data.train, *recipe.data.dev, *tests)
    return [(file, said) for file in files if (said := header_left_out(file, recipe.task, root)) is not None]


def _key(recipe: Recipe, root: Path | None, beginning: Beginning | None) -> str:
    """A name for the data and all that is done to it before it is segmented: another byte in any file is another name."""
    files = (*recipe.data.train, *recipe.data.dev, *(recipe.data.test if keeps_apart(recipe) else ()))
    paths = [find(name, root) for file in files for name in (file.path, file.source, file.target) if name is not None]
    names = {"__all__": {"path", "source", "target", "sha256", "header"}}  # what is in a file matters, not where it lies
    data = recipe.data.model_dump(exclude={"train": names, "dev": names, "test": names if keeps_apart(recipe) else True})
    one_stack = recipe.task == "translate" and recipe.kind == "lm"
    tokenizer = recipe.tokenizer.model_dump() if beginning is None else beginning.fingerprint
    left_out = [file for file, _ in _headers(recipe, root)]
    headers = [number for number, file in enumerate(files) if any(file is other for other in left_out)]
    return content_key(paths, recipe.task, one_stack, data, tokenizer, recipe.training.seed, *([headers] if headers else ()))


def _copies(recipe: Recipe) -> int:
    return recipe.training.bpe_dropout_copies if recipe.training.bpe_dropout else 1


def _forgetting(recipe: Recipe) -> str:
    return f"-forgetting-{recipe.training.bpe_dropout}-{_copies(recipe)}" if recipe.training.bpe_dropout else ""


def _train_store(maker: Maker, sources: Sequence[Source], apart: frozenset[int], key: str, say: Callable[[str], None]) -> Store:
    recipe = maker.recipe
    sieve = Sieve(recipe.data, recipe.task, apart)
    segmentations = None
    if recipe.training.bpe_dropout:
        segmentations = Segmentations(maker.vocabularies, recipe.training.bpe_dropout, _copies(recipe), recipe.training.seed)
    made = _store(maker, sources, f"{key}-train{_forgetting(recipe)}", say, sieve, segmentations)
    assert made.groups is not None
    groups = replace(made.groups, names=_names(sources), balance=recipe.data.balance)
    return replace(made, groups=groups, stream=recipe.data.max_length if recipe.one_text and recipe.task == "lm" else 0)


def _store(
    maker: Maker,
    sources: Sequence[Source],
    key: str,
    say: Callable[[str], None],
    sieve: Sieve | None = None,
    segmentations: Segmentations | None = None,
) -> Store:
    size = max(len(maker.vocabularies.target), len(maker.vocabularies.source))
    groups = (maker.items(source, sieve, segmentations) for source in sources)
    return cached_store(cache_folder() / "examples", key, size, groups, say, 1 if segmentations is None else segmentations.copies)


def _names(sources: Sequence[Source]) -> tuple[str, ...]:
    """What each source is balanced as: its tag, or itself."""
    return tuple(source.tag or f"file {number}" for number, source in enumerate(sources))


def _weights(sources: Sequence[Source]) -> list[float]:
    return [1.0 if source.file is None else source.file.weight for source in sources]


def _to_decode(recipe: Recipe, dev: Sequence[Source], vocabularies: Vocabularies) -> tuple[tuple[Row, ...], tuple[str | None, ...]]:
    """Some rows of dev, evenly of all files, and their tags."""
    limit = recipe.decoding.examples

    def readable(row: Row) -> bool:
        """One stack needs room for its output after what it reads."""
        return recipe.kind != "lm" or len(vocabularies.source.encode(row.texts[0])) < recipe.data.max_length

    pairs = [(row, source.tag) for source in dev for row in islice(filter(readable, source.whole_rows), limit)]
    pairs = pairs[:: max(1, len(pairs) // max(1, limit))][:limit]
    return tuple(row for row, _ in pairs), tuple(tag for _, tag in pairs)


def _describe(name: str, made: Store, say: Callable[[str], None]) -> None:
    left_out = "".join(f", {count:,} left out ({reason})" for reason, count in (made.left_out or {}).items())
    copies = 1 if made.groups is None else made.groups.copies
    segmented = f" in {copies} segmentations" if copies > 1 else ""
    say(f"{name}: {len(made):,} examples{segmented}, {len(made.target.tokens):,} tokens{left_out}")


def _describe_visits(recipe: Recipe, made: Store, say: Callable[[str], None]) -> None:
    assert made.groups is not None
    weights = [file.weight for file in recipe.data.train]
    if recipe.data.balance < 1 or any(weight != 1 for weight in weights):
        often = visits(made.groups.sizes(), weights, made.groups.names, recipe.data.balance)
        shares = (
            f"{name} {times:.2f} × {size:,.0f}" for name, times, size in zip(made.groups.names, often, made.groups.sizes(), strict=True)
        )
        say(f"visits an epoch: {', '.join(shares)}")


def _vocabularies(recipe: Recipe, train: Sequence[Source], apart: frozenset[int], folder: Path, say: Callable[[str], None]) -> Vocabularies:
    """Learned from the training texts, or read from where an earlier run left them."""
    separate = recipe.task == "translate" and not recipe.tokenizer.joint
    tags = list(dict.fromkeys(source.tag for source in train if source.tag is not None))

    def learn(folder: Path) -> None:
        say(f"learning a {recipe.tokenizer.kind} vocabulary of {recipe.tokenizer.size:,}")
        sides = {"target": slice(1, None), "source": slice(0, 1)} if separate else {"target": slice(None)}
        for name, side in sides.items():
            texts = _texts(recipe, train, apart, slice(1, 2) if recipe.task == "classify" else side)  # a label is no text
            Tokenizer.train(texts, recipe.tokenizer, tags).save(folder / f"{name}.json")

    cached(folder, learn, say)
    target = Tokenizer.load(folder / "target.json")
    return Vocabularies(target, Tokenizer.load(folder / "source.json") if separate else target)


def _texts(recipe: Recipe, train: Sequence[Source], apart: frozenset[int], side: slice) -> Iterator[str]:
    """The texts that a vocabulary is learned from: of each file as many as training visits, or a share of that where they are very many."""
    if recipe.one_text:
        yield from chain.from_iterable(blocks(source.rows()) for source in train)
        return
    sizes = [float(sum(1 for _ in source.rows())) for source in train]
    often = visits(sizes, _weights(train), _names(train), recipe.data.balance)
    most = TOKENIZER_ROWS / max(1.0, sum(size * times for size, times in zip(sizes, often, strict=True)))
    rate = [times * min(1.0, most) for times in often]
    sieve, found = Sieve(recipe.data, recipe.task, apart), False
    for source, part in zip(train, rate, strict=True):
        for number, row in enumerate(source.rows()):
            times = int(part * (number + 1)) - int(part * number)
            if times and all(text.strip() for text in row.texts) and sieve.reason(row, source.file) is None:
                found = True
                for _ in range(times):
                    yield from row.texts[side]
    if not found:
        raise TrainingError(NOTHING_LEFT)


def _labels(train: Sequence[Source]) -> tuple[str, ...]:
    labels = sorted({row.texts[0] for source in train for row in source.whole_rows})
    if len(labels) < 2:
        raise TrainingError(
            f"a classifier needs two labels or more to choose from, but the data has {labels}; is the label's column right?"
        )
    return tuple(labels)


def _check_kind(recipe: Recipe) -> None:
    wanted = (KIND_OF[recipe.task], *(("rnn", "lm") if recipe.task == "translate" else ()))
    if recipe.kind not in wanted:
        raise ConfigError(f"a model of kind {recipe.kind!r} can't learn to {recipe.task}; choose a preset of kind {wanted[0]!r}")
    if recipe.task == "translate" and recipe.kind == "lm" and not recipe.tokenizer.joint:
        raise ConfigError("a language model reads and writes with one vocabulary; set tokenizer.joint = true")


def _config(recipe: Recipe, vocabularies: Vocabularies, labels: tuple[str, ...], train: Sequence[Source], tokens: int) -> ModelConfig:
    """The model as the recipe describes it, with what the data decides; without a description, one that fits the amount of data."""
    target = vocabularies.target
    decided: dict[str, Any] = {
        "vocabulary": len(target),
        "pad_token": target.pad_id,
        "start_token": target.start_id,
        "end_token": target.end_id,
        "context": _context(recipe),
        "task": recipe.task,
    }
    if not vocabularies.joint:
        decided["source_vocabulary"] = len(vocabularies.source)
    if recipe.task == "translate":
        decided["split"] = _split(train)
    if recipe.task == "mlm":
        decided["masked_words"] = True
    if recipe.task == "classify":
        decided |= {"labels": labels, "masked_words": False, "longest_text": recipe.data.max_length, "cut": recipe.data.cut}
    model = recipe.model or {"preset": FITTING}
    for key, side in (("vocabulary", target), ("source_vocabulary", vocabularies.source)):
        if model.get(key) is not None and model[key] < len(side):  # None: one vocabulary for both sides
            raise ConfigError(f"model.{key} = {model[key]} has no room for the {len(side)} tokens of the tokenizer; take it out")
    if model.get("preset") == FITTING:
        model = {**model, "preset": fitting_preset(recipe.task, tokens)}
    return recipe.model_copy(
        update={"model": {**model, **{key: value for key, value in decided.items() if key not in model}}}
    ).model_config_for()


def _split(train: Sequence[Source]) -> Split:
    """How a translator reads a text of several sentences: as most of the texts were that it learned from."""
    texts = [row.texts[0] for source in train for row in islice(source.whole_rows, COUNTED_ROWS)]
    return "length" if sum(len(sentences(text)) for text in texts) >= SEVERAL * len(texts) else "sentences"


def _context(recipe: Recipe) -> int:
    """Room for the longest example, and for the longest output."""
    longest, written = padded_size(recipe.data.max_length), recipe.decoding.max_length + 1
    if recipe.task != "translate":
        return longest
    return longest + written if recipe.kind == "lm" else max(longest, written)  # one stack holds what it read and what it writes


def fitting_preset(task: str, tokens: int) -> str:
    """A model that so many tokens of training text can fill and a laptop can train."""
    if task == "translate":
        return "transformer-tiny" if tokens < 3_000_000 else "transformer-small"
    return "gpt-small" if task == "lm" else "bert-small"
