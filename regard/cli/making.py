"""The verbs that make models, and those that look at what they are made from."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import DataDir, Format, FormatOption, TaskName, app
from regard.cli.lines import columns_of, given
from regard.cli.options import Columns, Header


@app.command()
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe (TOML). Without one, give --task and --train.")] = None,
    task: Annotated[TaskName | None, typer.Option(help="What the model is to learn.")] = None,
    train: Annotated[list[str] | None, typer.Option(help="A file to learn from; may be given again.")] = None,
    dev: Annotated[
        list[str] | None, typer.Option(help="A file to validate on; without one, some of the training data is kept apart.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", help="A bundle to begin with: its weights, shape and tokenizer; heads for a new task are made anew."),
    ] = None,
    to: Annotated[str | None, typer.Option(help="The language that is written in the files, for a model that knows several.")] = None,
    columns: Columns = None,
    header: Header = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run; runs/NAME by default.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="A setting of the recipe, as training.lr=1e-3; may be given again.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the training in --out.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Train a model, from a recipe or from text files alone."""
    from regard.recipe import load_recipe, parse_change, with_tag
    from regard.training.fit import describe, fitting_recipe
    from regard.training.run import recipe_of, run_recipe
    from regard.training.trainer import StoppedError

    if recipe is not None and (task or train or dev):
        raise typer.BadParameter("a recipe says what to learn from; change it with --set instead of --task, --train or --dev")
    if to is not None and task not in (None, TaskName.TRANSLATE):
        raise typer.BadParameter(f"--to is the language to write, and task {task} writes none; leave it out")
    if recipe is not None and (header is not None or columns is not None):
        raise typer.BadParameter("a recipe says so for each file, as { path = 'pairs.tsv', columns = [0, 2], header = true }")
    if out is None:
        out = Path("runs") / (recipe.stem if recipe is not None else task.value if task is not None else "run")
    if resume and recipe is None and task is None:
        if from_ is not None:
            raise typer.BadParameter("a run that is resumed goes on from its own checkpoint; leave --from out")
        if to is not None or header is not None or columns is not None:
            raise typer.BadParameter("a run that is resumed reads its files as before; leave --to, --columns and --header out")
        wanted = recipe_of(out, set)
    elif recipe is not None:
        wanted = load_recipe(recipe, [*([] if from_ is None else [f"model.from={json.dumps(from_)}"]), *(set or [])])
        wanted = wanted if to is None else with_tag(wanted, to)
    elif task is not None and train:
        changes = [parse_change(change) for change in set or []]
        wanted = fitting_recipe(
            task.value, train, dev or [], changes, data_dir, from_, given(to=to, columns=columns_of(columns), header=header)
        )
        print(describe(wanted), file=sys.stderr)
    else:
        raise typer.BadParameter("give a recipe, or --task and --train")
    try:
        print(run_recipe(wanted, out, root=data_dir, resume=resume, unguided=recipe is None))
    except StoppedError as stopped:
        print(f"regard: {stopped}; go on with: regard train --resume --out {out}", file=sys.stderr)
        sys.exit(130)


data = typer.Typer(help="Look at data files.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command("check")
def data_check(
    files: Annotated[list[str], typer.Argument(help="Files to check, or a recipe whose data is to be checked.")],
    task: Annotated[TaskName, typer.Option(help="What they are for.")] = TaskName.TRANSLATE,
    against: Annotated[list[str] | None, typer.Option(help="Dev or test files whose texts must not stand in them.")] = None,
    columns: Columns = None,
    header: Header = None,
    data_dir: DataDir = None,
    format: FormatOption = Format.TEXT,
) -> None:
    """Count what is in data files, and name with file and line what is wrong with them."""
    from rich.console import Console

    from regard.recipe import DataFile, load_recipe
    from regard.text.check import check

    def table(path: str) -> DataFile:
        return DataFile(path=path, columns=columns_of(columns), header=header)

    others = [table(file) for file in against or []]
    if len(files) == 1 and files[0].endswith(".toml"):
        recipe = load_recipe(Path(files[0]))
        report = check(recipe.data.train, recipe.task, [*recipe.data.dev, *recipe.data.test, *others], data_dir)
    else:
        report = check([table(file) for file in files], task.value, others, data_dir)
    if format is Format.JSON:
        print(json.dumps(report.as_json(), indent=2))
    else:
        report.show(Console())
    if report.errors:
        sys.exit(1)
