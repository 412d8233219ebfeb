"""The verb that asks how well long sources are translated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import DataDir, Format, FormatOption, app
from regard.cli.lines import Machine, data_file, given, named_model
from regard.cli.options import MODEL_HELP, BeamSize, Columns, Device, Header, LengthPenalty, To
from regard.limits import MOST_SPANS


@app.command()
def lengths(
    data: Annotated[str, typer.Option(help="Pairs, as for training.")],
    model: Annotated[list[Path] | None, typer.Option("--model", "-m", help=f"{MODEL_HELP} Several are put side by side.")] = None,
    name: Annotated[list[str] | None, typer.Option(help="What each model is called in table and plot, in the same order.")] = None,
    to: To = None,
    target: Annotated[str | None, typer.Option(help="A file of translations, line by line, where --data has the sources alone.")] = None,
    columns: Columns = None,
    header: Header = None,
    only: Annotated[list[str] | None, typer.Option(help="Only rows whose column has a value, as 2=tatoeba; may be given again.")] = None,
    tokenize: Annotated[str, typer.Option(help="sacreBLEU's tokenizer; none for text that is in tokens already.")] = "13a",
    parts: Annotated[int, typer.Option(min=1, max=MOST_SPANS, help="How many spans of lengths, with about as many sentences each.")] = 6,
    plot: Annotated[Path | None, typer.Option(help="A picture of it: .svg, .png or .pdf.")] = None,
    title: Annotated[str, typer.Option(help="Of the picture.")] = "",
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    format: FormatOption = Format.TEXT,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Measure BLEU by the length of the source: a table, and a plot, of one model or of several."""
    from rich.console import Console

    from regard.console import Messages
    from regard.evaluation.lengths import by_length
    from regard.evaluation.tables import show_by_length
    from regard.view.pictures import check_picture

    asked: Sequence[Path | None] = model or [None]
    if name and len(name) != len(asked):
        raise typer.BadParameter(f"--name is given {len(name)} times for {len(asked)} models; give one for each")
    if plot is not None:
        check_picture(plot)
    file = data_file(data, target, columns, only, header)
    options = given(beam_size=beam_size, length_penalty=length_penalty)
    found = {}
    with Messages() as messages:
        for number, folder in enumerate(asked):
            loaded = named_model("translate", folder, Machine(device), messages)
            measured = loaded.evaluate(file, to=to, root=data_dir, tokenize=tokenize, progress=messages.progress, **options)
            messages.finish()
            called = name[number] if name else loaded.name
            found[called] = by_length(measured.sources, measured.outputs, measured.references, parts=parts, tokenize=tokenize)
    if plot is not None:
        from regard.view.curves import plot_by_length

        plot_by_length(found, plot, title=title)
    if format is Format.JSON:
        print(json.dumps({called: [asdict(span) for span in spans] for called, spans in found.items()}, indent=2))
    else:
        show_by_length(found, Console())
