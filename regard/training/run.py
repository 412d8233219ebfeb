"""A whole training: from a recipe to a folder with its checkpoints, its figures and a bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from regard.bundle import SOURCE_TOKENIZER, TOKENIZER, save_bundle
from regard.errors import TrainingError
from regard.models import Model, build
from regard.recipe import Recipe, parse_recipe, read_toml, to_toml
from regard.training.average import average
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import World, whole, world
from regard.training.prepare import Prepared, prepare
from regard.training.report import METRICS, Report
from regard.training.trainer import Trainer

RECIPE = "recipe.toml"


def run_recipe(recipe: Recipe, out: Path, *, root: Path | None = None, resume: bool = False, console: Console | None = None) -> Path:
    """Trains what a recipe describes in the folder `out`, from the beginning or from its newest checkpoint, and gives the bundle."""
    with world() as here:
        checkpoints = Checkpoints(out / "checkpoints", max(recipe.training.keep, recipe.training.average))
        if checkpoints.all() and not resume:
            raise TrainingError(f"{out} holds a training already; go on with it by --resume, or choose another --out")
        report = Report(out if here.first else None, recipe.training.steps, recipe.training.log_every, console)
        if here.first:
            _begin(recipe, out)
        prepared = _prepared(recipe, root, here, report)
        trainer = Trainer(recipe, prepared, checkpoints, here, report)
        _describe(trainer, report)
        if resume:
            newest = checkpoints.newest(report.say)
            if newest is None and checkpoints.all():
                raise TrainingError(f"no checkpoint in {out / 'checkpoints'} is whole; start again in another folder")
            if newest is not None:
                trainer.resume(newest)
                report.say(f"going on from step {newest.step:,}")
            if here.first:
                report.forget_after(trainer.progress.step)
        trainer.train()
        weights = _final_weights(trainer)
        if here.first:
            _write_bundle(recipe, prepared, weights, out)
            report.say(f"the bundle is in {out / 'bundle'}")
        here.wait()
    return out / "bundle"


def recipe_of(out: Path) -> Recipe:
    """The recipe that a run began with."""
    if not (out / RECIPE).is_file():
        raise TrainingError(f"{out} holds no training to resume: it has no {RECIPE}")
    return parse_recipe(read_toml(out / RECIPE), where=str(out / RECIPE))


def _begin(recipe: Recipe, out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / RECIPE).write_text(to_toml(recipe), encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"can't write to {out}: {error.strerror}; choose another --out") from error


def _prepared(recipe: Recipe, root: Path | None, here: World, report: Report) -> Prepared:
    """The first process makes what is not in the cache yet; the others find it there."""
    if here.first:
        prepared = prepare(recipe, root, report.say)
    here.wait()
    return prepared if here.first else prepare(recipe, root, lambda message: None)


def _describe(trainer: Trainer, report: Report) -> None:
    config = trainer.prepared.config
    count = sum(parameter.numel() for parameter in trainer.objective.parameters())
    size = f"{config.layers} layers of {config.width}"
    where = f"{trainer.world.size} × {trainer.world.device.type}"
    form = "packed" if trainer.packed else "padded"
    report.say(f"a {config.kind} model of {size}, {count:,} parameters, vocabulary {config.vocabulary:,}; {where}, {form} batches")


def _final_weights(trainer: Trainer) -> dict[str, Tensor]:
    """The average of the last checkpoints, or the moving average, or the best checkpoint, or simply the last weights."""
    settings = trainer.settings
    if settings.average:
        last = trainer.checkpoints.all()[-settings.average :]

        def each() -> Iterator[dict[str, Tensor]]:
            return (checkpoint.weights() for checkpoint in last)

        return average(each())
    if trainer.ema is not None:
        return dict(whole(trainer.ema.weights()))
    best = trainer.checkpoints.best(trainer.report.say) if len(trainer.prepared.dev) else None
    return dict(whole(trainer.objective.model.state_dict())) if best is None else best.weights()


def _write_bundle(recipe: Recipe, prepared: Prepared, weights: dict[str, Tensor], out: Path) -> None:
    with torch.device("meta"):
        model = build(prepared.config)
    model.load_state_dict(weights, assign=True)
    prepared.vocabularies.target.save(out / TOKENIZER)
    source = None
    if not prepared.vocabularies.joint:
        source = out / SOURCE_TOKENIZER
        prepared.vocabularies.source.save(source)
    save_bundle(model, out / "bundle", tokenizer=out / TOKENIZER, source_tokenizer=source, card=_card(recipe, model, out))


def _card(recipe: Recipe, model: Model, out: Path) -> str:
    """What was trained on what, and how good it was."""
    count = sum(parameter.numel() for parameter in model.parameters())
    lines = [f"# {out.name}", "", f"A model for the task `{recipe.task}`, of kind `{model.config.kind}`, with {count:,} parameters.", ""]
    files = [file.path or f"{file.source} and {file.target}" for file in recipe.data.train]
    lines += ["## Data", "", *(f"- {name}" for name in files or [f"synthetic: {recipe.data.synthetic}"]), ""]
    figures = _last_figures(out)
    if figures:
        lines += ["## Scores on the dev set, last validation", "", *(f"- {name}: {value}" for name, value in figures.items()), ""]
    return "\n".join([*lines, "## How it was made", "", "```toml", to_toml(recipe).strip(), "```", ""])


def _last_figures(out: Path) -> dict[str, object]:
    if not (out / METRICS).is_file():
        return {}
    records = [json.loads(line) for line in (out / METRICS).read_text(encoding="utf-8").splitlines()]
    dev = [record for record in records if record.get("kind") == "dev"]
    return {key: value for key, value in dev[-1].items() if key not in ("kind", "time", "example")} if dev else {}
