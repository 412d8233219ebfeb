"""The command line itself, and what its verbs share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard import __version__

app = typer.Typer(
    name="regard",
    help="A Transformer toolkit: complete, fast and see-through.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class TaskName(StrEnum):
    TRANSLATE = "translate"
    LM = "lm"
    MLM = "mlm"
    CLASSIFY = "classify"


FormatOption = Annotated[Format, typer.Option("--format", help="How to print it; json: one object a line, for machines.")]
DataDir = Annotated[Path | None, typer.Option(envvar="REGARD_DATA", help="Where data files that a recipe names are looked for.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def _top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass
