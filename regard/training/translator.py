"""What the translator that comes with regard knows of a training's rows: whoever has its languages need not begin with nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import torch

from regard.bundle import load_bundle
from regard.decoding.many import decode_many, score_many
from regard.decoding.settings import Beam, Length, Rules
from regard.evaluation.metrics import translation_scores
from regard.models import Generator
from regard.recipe import Recipe
from regard.shipped import shipped
from regard.text.corpus import read_rows
from regard.text.tokenizer import Tokenizer
from regard.training.prepare import Prepared

TRANSLATOR = "translator"  # the model that comes with regard and knows several languages
LOOKED_AT = 16  # pairs by which it is seen whether it knows the two languages
UNDERSTOOD = 1.0  # nats a token that the right source must be worth more than another
WORTH_THE_WORK = 300  # steps from which on so short a look costs little beside the training
# Before a training less is looked at, for someone waits, and more is asked of it.
ROWS = 500  # of the training files, at most, among which pairs are chosen
FIRST_LOOK, FEW = 6, 2  # pairs, and how many of them every language is tried on
WORDS = range(3, 21)  # of a source that is looked at
WELL_UNDERSTOOD, FLUENT = 2.0, -2.5  # nats a token by which the right source must be better than another, and that it must have
ENGLISH = re.compile(r"\b((?i:the|and|you|this|that|are|it|my|your|she|they|what|there|have|has|not|with|can|would)|I)\b")


@dataclass(frozen=True)
class Shipped:
    """What the translator that comes with regard makes of the same rows."""

    tag: str
    bleu: float


def advice(recipe: Recipe, out: Path) -> str | None:
    """A line for whoever is about to train from nothing what the translator may know already; None where that is not sure."""
    with suppress(Exception):  # whatever a look at a model brings, the training is what was asked for
        pairs = _english(recipe) if _asked(recipe) else []
        if len(pairs) == FIRST_LOOK and (tag := _first_look(pairs)) is not None:
            return (
                "the translator that comes with regard knows these languages, and to go on from it is often better: stop this, "
                f"and add to the command --from {TRANSLATOR} --to {tag} --out {shlex.quote(f'{out}-from-{TRANSLATOR}')}"
            )
    return None


def of_dev(recipe: Recipe, prepared: Prepared) -> Shipped | None:
    """None where the translator does not know the two languages, or training began with it, or was too short to ask."""
    return _measured(recipe, prepared) if _asked(recipe) and prepared.dev_rows else None


def _asked(recipe: Recipe) -> bool:
    from_nothing = recipe.task == "translate" and recipe.begins_from is None
    return from_nothing and TRANSLATOR in shipped() and recipe.training.steps >= WORTH_THE_WORK


def _loaded() -> tuple[Generator, Tokenizer]:
    bundle = load_bundle(shipped()[TRANSLATOR])
    assert bundle.tokenizer is not None
    return bundle.model.eval(), Tokenizer.load(bundle.tokenizer)  # type: ignore[return-value]


@torch.inference_mode()
def _measured(recipe: Recipe, prepared: Prepared) -> Shipped | None:
    (model, tokenizer), rows = _loaded(), prepared.dev_rows
    tag = _language(model, tokenizer, [row.texts for row in rows[:LOOKED_AT]])
    if tag is None:
        return None
    room = model.config.context - 1
    rules = Rules(max_length=Length(plus=min(recipe.decoding.max_length, room)))
    found = decode_many(model, _sources(model, tokenizer, [row.texts for row in rows], tag), Beam(size=recipe.decoding.beam_size), rules)
    hypotheses = [tokenizer.decode(best[0].tokens) for best in found]
    scores = translation_scores(hypotheses, [row.texts[1] for row in rows], tokenize=recipe.decoding.tokenize)
    return Shipped(tag, scores.bleu.value)


def _language(model: Generator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, ...]]) -> str | None:
    """The language of the targets, if the model knows both: then a target is far likelier after its own source than after another."""
    written = _targets(model, tokenizer, pairs)
    best, gained = None, UNDERSTOOD
    for tag in tokenizer.tags if len(pairs) > 1 else ():
        sources = _sources(model, tokenizer, pairs, tag)
        right, wrong = _log_probabilities(model, [sources, sources[1:] + sources[:1]], written)
        if right - wrong > gained:
            best, gained = tag, right - wrong
    return best


def _english(recipe: Recipe) -> list[tuple[str, ...]]:
    """The shortest of some pairs that look English on the side that is read, and on that side alone; as many as are looked at, or fewer."""
    rows = chain.from_iterable(read_rows(file, recipe.task) for file in recipe.data.train)
    pairs = {row.texts for row in islice(rows, ROWS) if len(row.texts[0].split()) in WORDS}
    read, both = ({pair for pair in pairs if all(map(ENGLISH.search, pair[:sides]))} for sides in (1, 2))
    return sorted(read - both, key=lambda pair: (sum(map(len, pair)), pair))[:FIRST_LOOK] if len(both) <= len(read) / 4 else []


@torch.inference_mode()
def _first_look(pairs: Sequence[tuple[str, ...]]) -> str | None:
    """The same as `_language`, in a fraction of the time: which language it would be is seen by few pairs."""
    model, tokenizer = _loaded()
    some = pairs[-FEW:]
    tried = [_sources(model, tokenizer, some, tag) for tag in tokenizer.tags]
    likely, tag = max(zip(_log_probabilities(model, tried, _targets(model, tokenizer, some)), tokenizer.tags, strict=True))
    if likely < FLUENT:
        return None
    sources = _sources(model, tokenizer, pairs, tag)
    right, wrong = _log_probabilities(model, [sources, sources[1:] + sources[:1]], _targets(model, tokenizer, pairs))
    return tag if right > FLUENT and right - wrong > WELL_UNDERSTOOD else None


def _sources(model: Generator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, ...]], tag: str) -> list[list[int]]:
    return [[*tokenizer.encode(pair[0], tag)[: model.config.context - 1], tokenizer.end_id] for pair in pairs]


def _targets(model: Generator, tokenizer: Tokenizer, pairs: Sequence[tuple[str, ...]]) -> list[list[int]]:
    return [[*tokenizer.encode(pair[1])[: model.config.context - 2], tokenizer.end_id] for pair in pairs]


def _log_probabilities(model: Generator, tried: Sequence[list[list[int]]], targets: list[list[int]]) -> list[float]:
    """The mean of a token of the targets, after each of the sources that are tried, all in one pass."""
    found = score_many(model, list(chain.from_iterable(tried)), targets * len(tried))
    sums, count = list(map(sum, found)), sum(map(len, targets))
    return [sum(sums[start : start + len(targets)]) / count for start in range(0, len(sums), len(targets))]
