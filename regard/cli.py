"""The verbs, each a few lines over the library. What a verb needs is imported when it runs, so that `--help` is instant."""

from __future__ import annotations

import io
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard import __version__
from regard.errors import RegardError

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


def _version(wanted: bool) -> None:
    if wanted:
        print(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def _top(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    pass


@app.command()
def demo(seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0) -> None:
    """Walk through a Transformer, with numbers, for the sentence YOUR CAT IS A LOVELY CAT."""
    from regard.view.walkthrough import walkthrough

    walkthrough(seed=seed)


@app.command()
def info(
    name: Annotated[str, typer.Argument(help="A preset, such as transformer-base, or the folder of a bundle.")],
    format: Annotated[Format, typer.Option(help="How to print it.")] = Format.TEXT,
) -> None:
    """Show a model's layers, shapes, parameters and memory."""
    from regard.bundle import find_config
    from regard.view.summary import show, summarise

    summary = summarise(find_config(name))
    if format is Format.JSON:
        print(json.dumps({"name": name, **summary.as_json()}, indent=2))
    else:
        show(summary, name)


@app.command("import")
def import_(
    folder: Annotated[Path, typer.Argument(help="A local Hugging Face folder: BERT, GPT-2, T5, Marian or Llama.")],
    out: Annotated[Path, typer.Argument(help="Where to write the bundle.")],
) -> None:
    """Turn a Hugging Face model into a bundle."""
    from regard.bundle import TOKENIZER, read_config
    from regard.interop.huggingface import import_folder
    from regard.view.summary import describe, summarise

    import_folder(folder, out)
    if not (out / TOKENIZER).is_file():
        print(f"regard: {folder} has no {TOKENIZER}, so the bundle takes token ids, not text", file=sys.stderr)
    summary = summarise(read_config(out))
    print(f"{out}: {describe(summary.config)}, {summary.parameters:,} parameters", file=sys.stderr)


def main() -> None:
    """The command line. A stated error ends it with 1, wrong usage with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show a √ shows a ? instead of an error
    try:
        app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(1)
