"""How likely a model finds given texts, and how good it is on data that it has not learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from regard.config import EncoderConfig, LanguageModelConfig
from regard.data.noise import uniform
from regard.decoding.many import score_many
from regard.door.reading import states_at_masks, text_ids
from regard.door.results import Scored
from regard.door.shown import Short
from regard.door.writing import language
from regard.errors import ConfigError, CorpusError, RegardError, ShapeError, nearest, shown
from regard.evaluation.metrics import Confusion, Scores, check_tokenizer, confusion, exact_match, perplexity, translation_scores
from regard.limits import within
from regard.recipe import DataFile, Task
from regard.text.corpus import Row, header_left_out, read_rows
from regard.text.tokenizer import Frame

if TYPE_CHECKING:
    from rich.console import Console

    from regard.door import Model
    from regard.evaluation.compare import Comparison

Progress = Callable[[int, int], None]  # told how many examples are done, and how many there are
AT_ONCE = 1024  # rows worked on at a time
WINDOWS_AT_ONCE = 64
MASKED_SHARE = 0.15


def score(model: Model, sources: list[str], targets: list[str] | None, to: str | None, first: int) -> list[Scored]:
    if isinstance(model.config, LanguageModelConfig) and "translate" not in model.verbs:
        if targets is not None:
            raise RegardError(f"{model.name} is a language model: give it texts to score, without targets")
        return [_scored(model, ids, logs) for ids, logs in _text_scores(model, sources)]
    if targets is None:
        raise RegardError(f"{model.name} scores targets for sources; give both")
    if len(sources) != len(targets):
        raise RegardError(f"{len(sources)} sources for {len(targets)} targets; each target needs its own source")
    tag, around = language(model, to), Frame(after=(model.config.end_token,))
    read = [model.source_tokenizer.framed(ids, around) for ids in model.source_tokenizer.encode_batch(sources, tag)]
    written = [model.tokenizer.framed(ids, around) for ids in model.tokenizer.encode_batch(targets)]
    for number, (source, target) in enumerate(zip(read, written, strict=True)):
        for side, ids in (("source", source), ("target", target)):
            if len(ids) > model.config.context:
                room = model.config.context
                raise ShapeError(
                    f"{model.place(first + number)}: the {side} has {len(ids)} tokens and {model.name} reads {room}; shorten it"
                )
        together, room = len(source) + len(target) - 1, model.config.context  # the last is only foretold
        if isinstance(model.config, LanguageModelConfig) and together > room:
            raise ShapeError(
                f"{model.place(first + number)}: source and target have {together} tokens and {model.name} reads {room} in all; shorten one"
            )
    scores = score_many(model.generator, read, written)
    return [_scored(model, ids, logs) for ids, logs in zip(written, scores, strict=True)]


def _scored(model: Model, ids: Sequence[int], logs: Sequence[float]) -> Scored:
    return Scored(tuple(model.tokenizer.pieces(ids)), tuple(logs))


def _text_scores(model: Model, texts: Sequence[str]) -> Iterator[tuple[list[int], list[float]]]:
    """The tokens of each text and their log-probabilities; a text longer than the context by windows that overlap by half.

    Every token is counted once, with as much before it as a window holds: at least half of one.
    """
    context, end = model.config.context, model.config.end_token
    wholes = [[model.config.start_token, *ids, end] for ids in model.tokenizer.encode_batch(texts)]
    windows = [window for number, whole in enumerate(wholes) for window in _windows(number, len(whole), context)]
    given = [wholes[number][start:fresh] for number, start, fresh, _ in windows]
    wanted = [wholes[number][fresh:stop] for number, _, fresh, stop in windows]
    logs: list[list[float]] = [[] for _ in wholes]
    for (number, *_), found in zip(windows, score_many(model.generator, given, wanted), strict=True):
        logs[number] += found
    return ((whole[1:], found) for whole, found in zip(wholes, logs, strict=True))


def _windows(number: int, length: int, context: int) -> Iterator[tuple[int, int, int, int]]:
    """(text, start, first token that is counted, end) of each window; the token before the first counted is always in it."""
    room = context + 1  # the last token is only foretold, never read
    yield number, 0, 1, min(length, room)
    fresh = room
    while fresh < length:
        stop = min(length, fresh + room // 2)
        yield number, stop - room, fresh, stop
        fresh = stop


@dataclass(frozen=True, repr=False)
class Evaluation(Short):
    """Figures for a model on a data file, and what each example contributed, by which two models can be compared."""

    model: str
    data: str
    examples: int
    figures: dict[str, float]
    scores: Scores | None = None
    confusion: Confusion | None = None
    tokenize: str = "13a"  # sacreBLEU's tokenizer
    sources: tuple[str, ...] = field(default=(), repr=False)  # of translations
    outputs: tuple[str, ...] = field(default=(), repr=False)  # translations or labels
    references: tuple[str, ...] = field(default=(), repr=False)
    surprises: tuple[float, ...] = field(default=(), repr=False)  # summed -log P of each text
    counts: tuple[int, ...] = field(default=(), repr=False)  # tokens of each

    def as_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {"model": self.model, "data": self.data, "examples": self.examples, **self.figures}
        if self.scores is not None:
            record |= self.scores.as_json()
        if self.confusion is not None:
            record["confusion"] = self.confusion.as_json()
        return record

    def show(self, console: Console) -> None:
        from regard.evaluation.tables import plain_table, show_confusion, show_scores

        console.print(f"{self.model} on {self.data}, {self.examples:,} examples", markup=False, highlight=False, soft_wrap=True)
        if self.scores is not None:
            show_scores(self.scores, console)
        if self.figures and self.confusion is None:  # which says the accuracy itself
            table = plain_table()
            for name, value in self.figures.items():
                table.add_row(name.replace("_", " "), f"{value:,.4f}")
            console.print(table)
        if self.confusion is not None:
            show_confusion(self.confusion, console)

    def compared_with(self, other: Evaluation) -> Comparison:
        """Whether the difference to another model on the same data is real."""
        from regard.evaluation.compare import compare_accuracy, compare_perplexity, paired_bootstrap

        names = (self.model, other.model)
        if self.references != other.references:
            raise RegardError(f"{self.model} and {other.model} were not evaluated on the same examples; give both the same data")
        if self.scores is not None and other.scores is not None:
            return paired_bootstrap(self.outputs, other.outputs, self.references, names=names, tokenize=self.tokenize)
        if self.confusion is not None and other.confusion is not None:
            right = [np.array([a == b for a, b in zip(each.outputs, each.references, strict=True)], float) for each in (self, other)]
            return compare_accuracy(*right, names=names)
        if self.counts != other.counts:
            raise RegardError("the two models cut the texts into different tokens, so their perplexities can't be compared")
        return compare_perplexity(self.surprises, other.surprises, self.counts, names=names)


def evaluate(
    model: Model,
    data: str | Path | DataFile,
    to: str | None = None,
    *,
    root: Path | None = None,
    limit: int | None = None,
    tokenize: str = "13a",
    stride: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    check_tokenizer(tokenize)  # before anything is translated
    if limit is not None:
        within("limit", limit, "how many rows to take", 1)
    file = data if isinstance(data, DataFile) else DataFile(path=str(data))
    name = file.path or f"{file.source} and {file.target}"
    if stride is not None:
        if options:
            raise ConfigError(f"{next(iter(options))!r} is an option of translation; leave it out with a stride")
        return _sliding(model, file, name, root, limit, stride, progress)
    rows = _rows(model, file, name, root, limit)
    common = {"model": model.name, "data": name, "examples": len(rows)}
    model = copy(model)  # so that only these messages name file and line
    model.place = lambda number: f"{rows[number].file}, line {rows[number].line}"

    def parts() -> Iterator[list[Row]]:
        for start in range(0, len(rows), AT_ONCE):
            if progress is not None:
                progress(start, len(rows))
            yield rows[start : start + AT_ONCE]

    if "translate" in model.verbs:
        return _translations(model, parts(), to or file.to, tokenize, options, common)
    if options:
        raise ConfigError(f"{next(iter(options))!r} is an option of translation; leave it out for {model.name}")
    if "classify" in model.verbs:
        return _labels(model, rows, parts(), common)
    return _texts(model, parts(), common) if isinstance(model.config, LanguageModelConfig) else _masked(model, parts(), common)


def _rows(model: Model, file: DataFile, name: str, root: Path | None, limit: int | None) -> list[Row]:
    """The examples of a file, without those that have an empty side: nothing can be measured on them."""
    task: Task = "translate" if "translate" in model.verbs else "classify" if "classify" in model.verbs else "lm"
    rows: list[Row] = []
    empty = 0
    if (header := header_left_out(file, task, root)) is not None:
        model.warn(header)
    for row in read_rows(file, task, root):
        if len(rows) == limit:
            break
        if all(text.strip() for text in row.texts):
            rows.append(row)
        else:
            empty += 1
    if not rows:
        raise CorpusError(f"{name} has no examples with text in them to evaluate on")
    if empty and task != "lm":
        model.warn(f"{name}: rows left out because one side is empty: {empty:,}")
    return rows


def _translations(
    model: Model, parts: Iterator[list[Row]], to: str | None, tokenize: str, options: dict[str, Any], common: dict[str, Any]
) -> Evaluation:
    outputs: list[str] = []
    references: list[str] = []
    sources: list[str] = []
    for part in parts:
        found = model.translate([row.texts[0] for row in part], to, first=len(outputs), **options)
        outputs += [answer.text for answer in found]
        references += [row.texts[1] for row in part]
        sources += [row.texts[0] for row in part]
    scores = translation_scores(outputs, references, tokenize=tokenize, ter=True)
    figures = {"exact": exact_match(outputs, references)}
    return Evaluation(
        **common,
        figures=figures,
        scores=scores,
        tokenize=tokenize,
        sources=tuple(sources),
        outputs=tuple(outputs),
        references=tuple(references),
    )


def _labels(model: Model, rows: list[Row], parts: Iterator[list[Row]], common: dict[str, Any]) -> Evaluation:
    assert isinstance(model.config, EncoderConfig)
    known = model.config.labels or ()
    for row in rows:  # said before anything is worked on
        if row.texts[0] not in known:
            raise CorpusError(f"{row.file}, line {row.line}: {model.name} knows no label {row.texts[0]!r}; {nearest(row.texts[0], known)}")
    outputs, done = [], 0
    for part in parts:
        outputs += [answer.label for answer in model.classify([row.texts[1] for row in part], first=done)]
        done += len(part)
    gold = tuple(row.texts[0] for row in rows)
    table = confusion(outputs, gold, known)
    figures = {"accuracy": table.accuracy, "macro_f1": table.macro_f1}
    return Evaluation(**common, figures=figures, confusion=table, outputs=tuple(outputs), references=gold)


def _texts(model: Model, parts: Iterator[list[Row]], common: dict[str, Any]) -> Evaluation:
    texts: list[str] = []
    found: list[list[float]] = []
    for part in parts:
        texts += [row.texts[0] for row in part]
        found += [logs for _, logs in _text_scores(model, texts[-len(part) :])]
    return _surprise(tuple(texts), found, common)


def _surprise(texts: tuple[str, ...], found: list[list[float]], common: dict[str, Any], *, whole: bool = True, ends: int = 1) -> Evaluation:
    surprises, counts = tuple(-sum(logs) for logs in found), tuple(map(len, found))
    total = sum(surprises)
    figures = {"perplexity": perplexity(total, sum(counts)), "loss": total / sum(counts)}
    if whole:  # the end of each text counts as a word and as a character, as it does among the tokens
        words, characters = sum(len(text.split()) + ends for text in texts), sum(len(text) + ends for text in texts)
        figures |= {"perplexity_per_word": perplexity(total, words), "bits_per_character": total / characters / float(np.log(2))}
    return Evaluation(**common, figures=figures, references=texts, surprises=surprises, counts=counts)


def _sliding(
    model: Model, file: DataFile, name: str, root: Path | None, limit: int | None, stride: int, progress: Progress | None
) -> Evaluation:
    """The perplexity of all lines as one text, by a window as long as the context that moves on by `stride` tokens.

    As Hugging Face defines it: a window counts the tokens that none before it has counted, each given all before it in the window, and
    the very first token of the text, which nothing foretells, is not counted. There is no end token.
    """
    context = model.config.context
    if not isinstance(model.config, LanguageModelConfig):
        raise ConfigError(f"a stride is for language models; leave it out for {model.name}")
    if not 1 <= stride <= context:
        raise ConfigError(f"stride = {shown(stride)} should be between 1 and the {context} tokens that {model.name} reads at once")
    text = "\n".join(row.texts[0] for row in islice(read_rows(file, "lm", root), limit))
    ids = model.tokenizer.framed(model.tokenizer.encode(text), Frame(before=(model.config.start_token,)))
    windows = list(sliding_windows(len(ids), context, stride))
    if not text.strip() or not windows:
        raise CorpusError(f"{name} has no text in it to evaluate on")
    found: list[list[float]] = []
    for begun in range(0, len(windows), WINDOWS_AT_ONCE):
        if progress is not None:
            progress(begun, len(windows))
        some = windows[begun : begun + WINDOWS_AT_ONCE]
        found += score_many(model.generator, [ids[start:fresh] for start, fresh, _ in some], [ids[fresh:stop] for _, fresh, stop in some])
    return _surprise((text,), found, {"model": model.name, "data": name, "examples": len(windows)}, ends=0)


def sliding_windows(length: int, context: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(start, first token that is counted, end) of each window over a text of so many tokens."""
    counted = 1
    for start in range(0, length, stride):
        stop = min(start + context, length)
        fresh = max(counted, start + 1)  # what a window begins with is foretold by nothing in it
        if fresh < stop:
            yield start, fresh, stop
        counted = stop
        if stop == length:
            return


@torch.inference_mode()
def _masked(model: Model, parts: Iterator[list[Row]], common: dict[str, Any]) -> Evaluation:
    """The likelihood of words that are hidden, the same ones at every evaluation."""
    texts: list[str] = []
    found: list[list[float]] = []
    mask = model.tokenizer.mask_id
    for part in parts:
        whole = text_ids(model, [row.texts[0] for row in part], len(texts))
        hidden = [_hidden(len(ids), len(texts) + number) for number, ids in enumerate(whole)]
        masked = [[mask if place in places else id for place, id in enumerate(ids)] for ids, places in zip(whole, hidden, strict=True)]
        for ids, places, states in zip(whole, hidden, states_at_masks(model, masked), strict=True):
            logs = model.encoder.fill(states).float().log_softmax(-1)
            found.append([float(logs[number, ids[place]]) for number, place in enumerate(sorted(places))])
        texts += [row.texts[0] for row in part]
    return _surprise(tuple(texts), found, common, whole=False)


def _hidden(length: int, number: int) -> set[int]:
    """The places of a text that are hidden: a share of them, and always one."""
    places = np.arange(1, length - 1)
    chance = uniform(0, 0, np.full_like(places, number), places, 0)
    return set(places[chance < MASKED_SHARE].tolist()) or set(places[:1].tolist())
