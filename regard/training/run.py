"""A whole training: from a recipe to a folder with its checkpoints, its figures and a bundle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from torch import Tensor

from regard.bundle import SOURCE_TOKENIZER, TOKENIZER, outline, save_bundle
from regard.config import ModelConfig
from regard.errors import BundleError, TrainingError
from regard.evaluation.metrics import Confusion
from regard.models import Network
from regard.recipe import DataFile, Recipe, load_recipe, to_toml
from regard.shipped import find_bundle
from regard.text.corpus import find
from regard.training.average import average
from regard.training.begin import Beginning
from regard.training.checkpoint import Checkpoints
from regard.training.distributed import World, load_weights, whole, world
from regard.training.ending import ending
from regard.training.folder import BUNDLE, CHECKPOINTS, RECIPE, check_folder, check_recipe, write_recipe, write_rows
from regard.training.lock import owned
from regard.training.prepare import Prepared, prepare
from regard.training.report import Report
from regard.training.trainer import Trainer
from regard.training.translator import advice
from regard.training.validate import Validation


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    root: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    unguided: bool = False,
) -> Path:
    """Trains what a recipe describes in the folder `out`, from the beginning or from its newest checkpoint, and gives the bundle.

    `unguided`: nobody wrote the recipe; where a model that comes with regard may do better, that is said before the first step.
    """
    with world() as here, _owned(out, here, console):
        checkpoints = Checkpoints(out / CHECKPOINTS, max(recipe.training.keep, recipe.training.average), recipe.training.keep_best)
        if checkpoints.all() and not resume:
            raise TrainingError(f"{out} holds a training already; go on with it by --resume, or choose another --out")
        report = Report(out if here.first else None, recipe.training.steps, recipe.training.log_every, console)
        recipe = Beginning.within_reach(with_whole_paths(recipe, root))
        check_recipe(recipe)
        if unguided and here.first and not resume and (advised := advice(recipe, out)) is not None:
            report.say(advised)
        prepared = _prepared(recipe, root, here, report)
        _check_memory(prepared.config)
        trainer = Trainer(recipe, prepared, checkpoints, here, report)
        _describe(trainer, report)
        if resume:
            newest = checkpoints.newest(report.say)
            if newest is None and checkpoints.all():
                raise TrainingError(f"no checkpoint in {out / CHECKPOINTS} is whole; start again in another folder")
            if newest is not None:
                trainer.resume(newest)
                report.say(f"going on from step {newest.step:,}")
        if here.first:
            _begin(recipe, prepared, out)
            report.forget_after(trainer.progress.step)
        trainer.train()
        weights = _final_weights(trainer)
        load_weights(trainer.objective.model, weights)
        measured = trainer.measure() if len(prepared.dev) else Validation(0.0, {})
        table = trainer.test()
        if here.first:
            _write_bundle(recipe, prepared, weights, measured, table, out)
            if table is not None:
                report.say(f"test: {_figures(table)}")
            report.end(trainer.progress.step, ending(recipe, prepared, measured, out))
            report.say(f"the bundle is in {out / BUNDLE}")
        here.wait()
    return out / BUNDLE


@contextmanager
def _owned(out: Path, here: World, console: Console | None) -> Iterator[None]:
    """The folder is the first process's own; if another training has it, or it is not as it must be, none of them goes on."""
    with ExitStack() as kept:
        problem = None
        if here.first:
            try:
                kept.enter_context(owned(out, Report(out, 0, 1, console).say))
                check_folder(out)
            except (TrainingError, BundleError) as error:
                problem = str(error)
        problem = here.share(problem)
        if problem is not None:
            raise TrainingError(problem)
        yield


def recipe_of(out: Path, changes: list[str] | None = None) -> Recipe:
    """The recipe that a run began with, with changes."""
    if not (out / RECIPE).is_file():
        raise TrainingError(f"{out} holds no training to resume: it has no {RECIPE}")
    return load_recipe(out / RECIPE, changes)


def with_whole_paths(recipe: Recipe, root: Path | None) -> Recipe:
    """The recipe with its files named so that they are found from anywhere, also when the run is resumed."""

    def whole_path(file: DataFile) -> DataFile:
        names = {key: getattr(file, key) for key in ("path", "source", "target")}
        return file.model_copy(update={key: str(find(name, root).absolute()) for key, name in names.items() if name is not None})

    found = {key: tuple(whole_path(file) for file in getattr(recipe.data, key)) for key in ("train", "dev", "test")}
    model = dict(recipe.model)
    if recipe.begins_from is not None:
        model["from"] = str(find_bundle(recipe.begins_from).absolute())
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=found), "model": model})


def _begin(recipe: Recipe, prepared: Prepared, out: Path) -> None:
    """What a run must know to go on, before its first step."""
    write_recipe(recipe, out)
    if recipe.data.test_share:
        write_rows(("\t".join(" ".join(text.split()) for text in row.texts) for row in prepared.test_rows), out)  # no tab or break within
    prepared.vocabularies.target.save(out / TOKENIZER)
    if not prepared.vocabularies.joint:
        prepared.vocabularies.source.save(out / SOURCE_TOKENIZER)


def _prepared(recipe: Recipe, root: Path | None, here: World, report: Report) -> Prepared:
    """The first process makes what is not in the cache yet; the others find it there."""
    if here.first:
        prepared = prepare(recipe, root, report.say)
    here.wait()
    return prepared if here.first else prepare(recipe, root, lambda message: None)


def _check_memory(config: ModelConfig) -> None:
    """An error, where not even the weights fit into this machine: the system may grant what it has not, and end the process later."""
    if not hasattr(os, "sysconf"):
        return
    network = outline(config)
    count = sum(tensor.numel() for tensor in (*network.parameters(), *network.buffers()))
    wanted, there = 4 * count, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > there:
        raise TrainingError(
            f"the weights of this model take {wanted / 2**30:,.1f} GiB, and this machine has {there / 2**30:,.1f}; make it smaller, "
            "as by model.layers, model.width, model.feedforward or model.context"
        )


def _describe(trainer: Trainer, report: Report) -> None:
    config = trainer.prepared.config
    count = sum(parameter.numel() for parameter in trainer.objective.parameters())
    size = f"{config.layers} layers of {config.width}"
    where = f"{trainer.world.size} × {trainer.world.device.type}"
    form = "packed" if trainer.packed else "padded"
    report.say(f"a {config.kind} model of {size}, {count:,} parameters, vocabulary {config.vocabulary:,}; {where}, {form} batches")


def _final_weights(trainer: Trainer) -> dict[str, Tensor]:
    """The average of the last checkpoints, or those of the best checkpoint (its moving average, where there is one), or the last."""
    settings = trainer.settings
    if settings.average:
        regular = [
            kept for kept in trainer.checkpoints.all() if not kept.passing and kept.step <= trainer.progress.step and not kept.damage()
        ]
        return average(checkpoint.weights() for checkpoint in regular[-settings.average :])
    best = trainer.checkpoints.best(trainer.report.say) if len(trainer.prepared.dev) else None
    if trainer.ema is not None:
        if best is None:
            return dict(whole(trainer.ema.weights()))
        with best.understood():
            return dict(best.state()["ema"]["weights"])
    return dict(whole(trainer.objective.model.state_dict())) if best is None else best.weights()


def _write_bundle(
    recipe: Recipe, prepared: Prepared, weights: dict[str, Tensor], measured: Validation, table: Confusion | None, out: Path
) -> None:
    model = outline(prepared.config)
    model.load_state_dict(weights, assign=True)
    source = None if prepared.vocabularies.joint else out / SOURCE_TOKENIZER
    card = _card(recipe, model, measured, table, out.name)
    save_bundle(model, out / BUNDLE, tokenizer=out / TOKENIZER, source_tokenizer=source, card=card)


def _figures(table: Confusion) -> str:
    count = sum(map(sum, table.counts))
    return f"accuracy {table.accuracy:.2%} · macro-F1 {table.macro_f1:.2%} · {count:,} examples"


def _card(recipe: Recipe, model: Network, measured: Validation, table: Confusion | None, name: str) -> str:
    """What was trained on what, and how good it is."""
    count = sum(parameter.numel() for parameter in model.parameters())
    lines = [f"# {name}", "", f"A model for the task `{recipe.task}`, of kind `{model.config.kind}`, with {count:,} parameters.", ""]
    files = [Path(file.path or file.source or "").name for file in recipe.data.train]
    lines += ["## Data", "", *(f"- {file}" for file in files or [f"synthetic: {recipe.data.synthetic}"]), ""]
    figures = {key: value for key, value in measured.figures.items() if key != "example"}
    if figures:
        lines += ["## Scores of these weights on the dev set", "", *(f"- {key}: {value}" for key, value in figures.items()), ""]
    if table is not None:
        lines += ["## Scores of these weights on the test set", "", f"- {_figures(table)}", ""]
    settings = to_toml(recipe, leave_out={"data"})  # where files lay on someone's disk is no one else's business
    return "\n".join([*lines, "## How it was made", "", "```toml", settings.strip(), "```", ""])
