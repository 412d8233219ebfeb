"""The verb that shows what a model worked with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.cli.app import app
from regard.cli.options import BeamSize, Device, LengthPenalty, MaxLength, ModelOption, NBest, Prefix, Seed, Temperature, To, TopP
from regard.errors import RegardError

PICTURES = "Pictures"
MOST_ALTERNATIVES = 4  # of an output, shown unless said otherwise


@app.command()
def view(
    text: Annotated[str | None, typer.Argument(help="A text; without one, a line of standard input.")] = None,
    model: ModelOption = None,
    to: To = None,
    out: Annotated[Path | None, typer.Option(help="The page to write; page.html unless only pictures are asked for.")] = None,
    png: Annotated[Path | None, typer.Option(help="A folder for pictures, for papers and slides.", rich_help_panel=PICTURES)] = None,
    svg: Annotated[bool, typer.Option("--svg", help="With --png: write them as SVG instead.", rich_help_panel=PICTURES)] = False,
    verb: Annotated[
        str | None, typer.Option(help="translate, generate, classify, fill or embed; by default what the model is for.")
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: NBest = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    seed: Seed = None,
    max_length: MaxLength = None,
    prefix: Prefix = None,
    device: Device = None,
) -> None:
    """Write one HTML file in which a sentence can be followed through a model: attention, the search, every vector and its numbers.

    It opens by a double click, without a server or a network. --png adds pictures.
    """
    if svg and png is None:
        raise typer.BadParameter("--svg says how pictures are written; say where with --png DIR")
    from regard.console import Messages
    from regard.door import load
    from regard.door.trace_making import default_verb
    from regard.door.verbs import shipped_for
    from regard.files import refuse
    from regard.view.pictures import check_folder

    given = _text(text)
    page = out or (Path("page.html") if png is None else None)
    if page is not None:
        refuse(page)
    if png is not None:
        check_folder(png)
    wishes = {"beam_size": beam_size, "length_penalty": length_penalty, "n_best": n_best, "temperature": temperature, "top_p": top_p,
              "seed": seed, "max_length": max_length}  # fmt: skip
    options: Any = {name: value for name, value in wishes.items() if value is not None}
    with Messages() as messages:
        loaded = load(model or shipped_for(verb or "translate"), device=device)
        loaded.warn = messages.say
        loaded.name = _short(loaded.name)
        options |= _alternatives(verb or default_verb(loaded, given), options)
        trace = loaded.trace(given, to, verb=verb, prefix=prefix, **options)
        if page is not None:
            _write_page(trace, page, messages)
        if png is not None:
            from regard.view.plots import write_plots

            written = write_plots(trace, png, svg=svg, warn=messages.say)
            messages.say(f"wrote {', '.join(path.name for path in written)} to {png}")


def _alternatives(verb: str, options: dict[str, Any]) -> dict[str, int]:
    """As many outputs as a beam has found, up to a few, unless it was said how many: they show what it chose among."""
    size = options.get("beam_size", 4 if verb == "translate" else 1)  # a language model samples unless told to search
    said = "n_best" in options or any(name in options for name in ("temperature", "top_p"))
    return {} if said or verb not in ("translate", "generate") or size < 2 else {"n_best": min(size, MOST_ALTERNATIVES)}


def _short(name: str) -> str:
    """The name of a bundle without its folders: a page may be shown to others."""
    folder = Path(name).resolve()
    return folder.parent.name if folder.name == "bundle" else folder.name


def _text(text: str | None) -> str:
    if text is not None:
        return text
    if sys.stdin.isatty():
        raise RegardError("give a text to look at, as in: regard view 'I love you very much.' --to it")
    from regard.console import Lines, Messages

    with Messages() as messages:
        messages.bar_wanted = False
        return next(iter(Lines([], None, messages)), "")


def _write_page(trace: Any, path: Path, messages: Any) -> None:
    from regard.view.page import MOST, write_page
    from regard.view.trace_json import as_json

    document = as_json(trace, most=MOST)
    size = write_page(document, path)
    for part in document["left_out"]:
        messages.say(f"{part['part']}: left out; {part['why']}")
    messages.say(f"wrote {path}, {size / 1e6:.1f} MB; open it in a browser")
