"""How good a model is on examples that it has not learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from regard.data.collate import Form
from regard.data.plan import Plan, make_plan
from regard.data.store import Store
from regard.decoding.many import decode_many
from regard.decoding.settings import Beam, Length, Rules
from regard.evaluation.metrics import Confusion, confusion, exact_match, perplexity, translation_scores
from regard.models import Generator
from regard.recipe import Recipe
from regard.text.corpus import Row
from regard.training.distributed import World, gathered
from regard.training.objective import Objective
from regard.training.prepare import Prepared

RUN = 4  # words in the longest runs that BLEU counts


@dataclass(frozen=True)
class Validation:
    """Figures for the dev set; `score` is the one that decides which checkpoint is best, higher being better."""

    score: float
    figures: dict[str, Any]


@torch.no_grad()
def validate(
    recipe: Recipe,
    prepared: Prepared,
    objective: Objective,
    world: World,
    form: Form,
    precision: Callable[[], AbstractContextManager[Any]],
) -> Validation:
    """Loss, perplexity and accuracy over all of dev, and for translation BLEU and chrF of what the model really writes."""
    if not len(prepared.dev):
        return Validation(0.0, {})
    with _at_rest(objective):
        plan = _plan(prepared.dev, recipe)
        surprise = correct = count = 0.0
        for number, indices in enumerate(plan.batches):
            if number % world.size != world.rank and recipe.training.parallel == "ddp":
                continue
            batch = form.collate(prepared.dev, indices, epoch=0).map(lambda x: x.to(world.device))
            with precision():
                measured = objective.measure(batch)
            surprise, correct, count = surprise + float(measured.surprise), correct + float(measured.correct), count + measured.count
        surprise, correct, count = world.sum(surprise, correct, count)
        figures: dict[str, Any] = {
            "loss": surprise / max(count, 1),
            "perplexity": perplexity(surprise, max(int(count), 1)),
            "accuracy": correct / max(count, 1),
        }
        score = figures["accuracy"] if recipe.task == "classify" else -figures["loss"]
        if recipe.task == "translate" and prepared.dev_rows:
            figures |= _translations(recipe, prepared, objective, world, precision)
            quality = figures[quality_figure(prepared.dev_rows)]
            score = quality if quality > 0 else score
        return Validation(score, figures)


def quality_figure(rows: Sequence[Row]) -> Literal["bleu", "chrf"]:
    """What translations are judged by. BLEU counts runs of four words; where most references have fewer, it is 0 for the best of models.

    It goes by the references alone: two validations of a run must be judged by the same.
    """
    long = sum(len(row.texts[1].split()) >= RUN for row in rows)
    return "bleu" if 2 * long >= len(rows) else "chrf"


@torch.no_grad()
def tested(
    recipe: Recipe, prepared: Prepared, objective: Objective, world: World, form: Form, precision: Callable[[], AbstractContextManager[Any]]
) -> Confusion | None:
    """How often a classifier takes each label of the test examples for which; None where there are none."""
    store = prepared.test
    if store is None or not len(store) or store.labels is None:
        return None
    predicted = np.zeros(len(store), np.int64)
    with _at_rest(objective):
        for indices in _plan(store, recipe).batches:
            batch = form.collate(store, indices, epoch=0).map(lambda x: x.to(world.device))
            with precision():
                predicted[indices] = objective.logits(batch).argmax(-1).cpu().numpy()
    names = prepared.labels
    return confusion([names[number] for number in predicted], [names[number] for number in store.labels], names)


def _plan(store: Store, recipe: Recipe) -> Plan:
    """All of dev or test, those of like length together."""
    longest = int(store.lengths.max()) + 8
    return make_plan(store.lengths, batch_tokens=max(recipe.training.batch_tokens, 2 * longest), seed=0, epoch=0, shuffle=False)


@contextmanager
def _at_rest(objective: Objective) -> Iterator[None]:
    """Without dropout, whole in every process, and uncompiled: dev batches are of many shapes, and each is read once."""
    training = objective.training
    objective.eval()
    with gathered(objective), torch.compiler.set_stance("force_eager"):
        yield
    objective.train(training)


def _translations(
    recipe: Recipe, prepared: Prepared, objective: Objective, world: World, precision: Callable[[], AbstractContextManager[Any]]
) -> dict[str, Any]:
    with precision():
        hypotheses = _written(recipe, prepared, objective)
    references = [row.texts[1] for row in prepared.dev_rows]
    scores = translation_scores(hypotheses, references, tokenize=recipe.decoding.tokenize)
    tags = sorted({tag for tag in prepared.dev_tags if tag is not None})
    return {
        "bleu": scores.bleu.value,
        "chrf": scores.chrf.value,
        "exact": exact_match(hypotheses, references),
        "signature": scores.bleu.signature,
        **({f"bleu_{tag}": _bleu_of(tag, prepared, hypotheses, references, recipe) for tag in tags} if len(tags) > 1 else {}),
        "example": {"source": prepared.dev_rows[0].texts[0], "hypothesis": hypotheses[0], "reference": references[0]},
    }


def _written(recipe: Recipe, prepared: Prepared, objective: Objective) -> list[str]:
    """What the model makes of the sources of dev."""
    model = objective.model
    assert isinstance(model, Generator)
    source, target = prepared.vocabularies.source, prepared.vocabularies.target
    room = prepared.config.context - 1
    rows = zip(prepared.dev_rows, prepared.dev_tags, strict=True)
    sources = [[*source.encode(row.texts[0], tag)[:room], source.end_id] for row, tag in rows]
    beam = Beam(size=recipe.decoding.beam_size, length_penalty=recipe.decoding.length_penalty)
    rules = Rules(max_length=Length(plus=recipe.decoding.max_length))
    return [target.decode(best[0].tokens) for best in decode_many(model, sources, beam, rules)]


def _bleu_of(tag: str, prepared: Prepared, hypotheses: list[str], references: list[str], recipe: Recipe) -> float:
    """That of one language: an average over several hides which of them suffers."""
    mine = [number for number, other in enumerate(prepared.dev_tags) if other == tag]
    written, wanted = [hypotheses[number] for number in mine], [references[number] for number in mine]
    return translation_scores(written, wanted, tokenize=recipe.decoding.tokenize).bleu.value
