"""How good a finished model is, in plain words: its figures on dev, those of something simpler beside them, and one thing to do next."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.evaluation.baseline import unigram
from regard.evaluation.metrics import exact_match, translation_scores
from regard.recipe import Recipe
from regard.training.figures import METRICS, Figures
from regard.training.prepare import Prepared
from regard.training.translator import TRANSLATOR, Shipped, of_dev
from regard.training.validate import Validation, quality_figure

NAMES = {"bleu": "BLEU", "chrf": "chrF"}
RIGHT = 0.95  # share of dev answers from which on a model is called good
EARLY = 0.7  # the share of the steps: where dev was best before it, what came after was learned by heart
RISING = 0.01  # by how much dev must have got better at last for more steps to promise more, as a share


@dataclass(frozen=True)
class Ending:
    """What is said at the end of a run, and kept with its figures."""

    lines: tuple[str, ...]
    figures: dict[str, Any]

    @property
    def record(self) -> dict[str, Any]:
        return {"kind": "end", **self.figures, "said": list(self.lines)}


def ending(recipe: Recipe, prepared: Prepared, measured: Validation, out: Path) -> Ending:
    """From the figures of the weights that were kept, and those of all validations before."""
    count = len(prepared.dev)
    if not measured.figures:
        text = "no quality is known: there was nothing to validate on; give a file of rows that training does not see, with --dev"
        return Ending((text,), {"examples": 0})
    own, simple, other = _own(recipe, prepared, measured), _baseline(recipe, prepared), of_dev(recipe, prepared)
    if other is not None and other.bleu <= simple[1].get("baseline_bleu", 0.0):
        other = None  # it copies too, and that is no knowledge of a language
    lines = [f"on {own[1]}: {own[0]}; {simple[0]}"]
    if other is not None:
        lines.append(f"the translator that comes with regard knows these languages: BLEU {other.bleu:.1f} on the same rows")
    lines.append(f"next: {next_step(recipe, measured, simple[1], other, out)}")
    figures = {"examples": count, **simple[1], **({} if other is None else {"translator": other.tag, "translator_bleu": other.bleu})}
    return Ending(tuple(lines), figures)


def _own(recipe: Recipe, prepared: Prepared, measured: Validation) -> tuple[str, str]:
    """The figures of the model, and on what."""
    figures, rows = measured.figures, len(prepared.dev_rows)
    if recipe.task == "translate" and "bleu" in figures:
        name = quality_figure(prepared.dev_rows)
        return f"{NAMES[name]} {figures[name]:.1f}, {figures['exact']:.0%} exactly right", _counted(rows, "row")
    if recipe.task == "classify":
        return f"{figures['accuracy']:.1%} right", _counted(len(prepared.dev), "row")
    return f"perplexity {figures['perplexity']:.4g}", _counted(len(prepared.dev), "example")


def _counted(count: int, what: str) -> str:
    return f"{count:,} dev {what}{'s' * (count != 1)}"


def _baseline(recipe: Recipe, prepared: Prepared) -> tuple[str, dict[str, float]]:
    """What something does that has learned nothing, or only how frequent things are."""
    if recipe.task == "translate" and prepared.dev_rows:
        sources, targets = ([row.texts[side] for row in prepared.dev_rows] for side in (0, 1))
        name = quality_figure(prepared.dev_rows)
        value = getattr(translation_scores(sources, targets, tokenize=recipe.decoding.tokenize), name).value
        return f"copying the source: {NAMES[name]} {value:.1f}, {exact_match(sources, targets):.0%}", {f"baseline_{name}": value}
    if recipe.task == "classify":
        assert prepared.train.labels is not None
        assert prepared.dev.labels is not None
        label = Counter(prepared.train.labels.tolist()).most_common(1)[0][0]
        share = float((prepared.dev.labels == label).mean())
        return f"always saying {prepared.labels[label]!r}: {share:.1%}", {"baseline_accuracy": share}
    value = unigram(prepared.train.target.tokens, prepared.dev.target.tokens, prepared.config.vocabulary)
    return f"going by how frequent tokens are: {value:.4g}", {"baseline_perplexity": value}


def next_step(recipe: Recipe, measured: Validation, simple: dict[str, float], other: Shipped | None, out: Path) -> str:
    """The one thing that promises most."""
    figures, steps = measured.figures, recipe.training.steps
    name = shlex.quote(str(out))
    if other is not None and other.bleu > figures.get("bleu", 0.0):
        begin = f"regard train --task translate --from {TRANSLATOR} --to {other.tag} --train … --out …"
        return f"begin with the translator instead of with nothing: {begin}"
    if figures.get("exact", figures["accuracy"] if recipe.task == "classify" else 0.0) >= RIGHT:
        return f"see how it does on rows that it was not chosen by: regard evaluate --model {name} --data …"
    more = f"regard train --resume --out {name} --set training.steps={2 * steps}"
    if _no_better(figures, simple):
        return f"it is no better than that: look at the data with regard data check, then give it more steps: {more}"
    history = _history(out, "loss")
    if len(history) > 1:
        best = min(history, key=lambda point: point[1])
        if best[0] < EARLY * steps and history[-1][1] > best[1] * (1 + RISING):
            return f"give it more data: its loss on dev was lowest at step {best[0]:,}, and what came after was learned by heart"
        if history[-2][1] > history[-1][1] * (1 + RISING):
            return f"give it more steps, for dev was still getting better: {more}"
    return f"more data would help most; how good it is on other rows says regard evaluate --model {name} --data …"


def _no_better(figures: dict[str, Any], simple: dict[str, float]) -> bool:
    for name in NAMES:
        if f"baseline_{name}" in simple:
            return bool(figures[name] <= simple[f"baseline_{name}"])
    if "baseline_accuracy" in simple:
        return bool(figures["accuracy"] <= simple["baseline_accuracy"])
    return bool(figures["perplexity"] >= simple.get("baseline_perplexity", math.inf))


def _history(out: Path, name: str) -> list[tuple[int, float]]:
    """A figure of all validations, by step."""
    records = Figures(out / METRICS).read()
    found = {record["step"]: record[name] for record in records if record.get("kind") == "dev" and isinstance(record.get(name), float)}
    return sorted(found.items())
