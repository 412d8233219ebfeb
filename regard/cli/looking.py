"""The verbs that show something."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import Format, FormatOption, app
from regard.cli.options import Device, Precision, PrecisionName
from regard.limits import MOST_SEED


@app.command()
def demo(seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of the random weights.")] = 0) -> None:
    """Walk through a Transformer, with numbers, for the sentence YOUR CAT IS A LOVELY CAT."""
    from regard.view.walkthrough import walkthrough

    walkthrough(seed=seed)


@app.command()
def models(format: FormatOption = Format.TEXT) -> None:
    """List the models that come with regard: what each is, what it can do, and how large it is."""
    from rich.console import Console

    from regard.cli.models import findings, show

    found = findings()
    if format is Format.JSON:
        print(json.dumps(found, indent=2))
    else:
        show(found, Console())


@app.command()
def info(
    name: Annotated[
        str, typer.Argument(help="A preset, such as transformer-base, the folder of a bundle or of its run, or one that comes with regard.")
    ],
    format: FormatOption = Format.TEXT,
) -> None:
    """Show a model's layers, shapes, parameters and memory."""
    from regard.bundle import find_config
    from regard.shipped import find_bundle, shipped
    from regard.view.summary import show, summarise

    summary = summarise(find_config(str(find_bundle(name)) if Path(name).is_dir() or name in shipped() else name))
    if format is Format.JSON:
        print(json.dumps({"name": name, **summary.as_json()}, indent=2))
    else:
        show(summary, name)


@app.command()
def check(
    model: Annotated[Path, typer.Argument(help="The folder of a bundle or of its run, or one that comes with regard.")],
    format: FormatOption = Format.TEXT,
    device: Device = None,
    precision: Precision = PrecisionName.AUTO,
) -> None:
    """Try the laws that every model keeps on one bundle: cached = uncached, batch-invariant, score = rescoring, saved = loaded, …

    Prints the largest difference that was found for each, and how much is allowed. Ends with 1 where one does not hold.
    """
    from rich.console import Console

    from regard.door import check as laws
    from regard.evaluation.metrics import finite

    found = laws.check(model, device=device, precision=precision.value)
    broken = [law.name.partition(":")[0] for law in found if not law.holds]
    if format is Format.JSON:
        print(json.dumps(finite({"model": str(model), "holds": not broken, "laws": [law.as_json() for law in found]}), indent=2))
    else:
        laws.show(found, Console())
    if broken:
        sys.exit(f"regard: {model} breaks {', '.join(broken)}; if you did not change it, please report this with the table above")


@app.command()
def doctor(format: FormatOption = Format.TEXT) -> None:
    """Say what this machine has: versions, devices, extras, folders; ends with 1 where something should be mended."""
    from rich.console import Console

    from regard.cli.doctor import findings, show

    found = findings()
    if format is Format.JSON:
        print(json.dumps(found, indent=2))
    else:
        show(found, Console())
    if found["problems"]:
        sys.exit(1)
