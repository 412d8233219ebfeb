"""The verbs that show something."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.app import Format, FormatOption, app


@app.command()
def demo(seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0) -> None:
    """Walk through a Transformer, with numbers, for the sentence YOUR CAT IS A LOVELY CAT."""
    from regard.view.walkthrough import walkthrough

    walkthrough(seed=seed)


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="A preset, such as transformer-base, or the folder of a bundle.")],
    format: FormatOption = Format.TEXT,
) -> None:
    """Show a model's layers, shapes, parameters and memory."""
    from regard.bundle import find_config
    from regard.view.summary import show, summarise

    summary = summarise(find_config(name))
    if format is Format.JSON:
        print(json.dumps({"name": name, **summary.as_json()}, indent=2))
    else:
        show(summary, name)
