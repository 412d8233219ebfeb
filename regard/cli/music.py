"""The verbs for music: a piece into a MIDI file, and a picture of one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.app import app
from regard.errors import shown

if TYPE_CHECKING:
    from regard.door import Model


def is_piece(*files: Path | None) -> bool:
    """Whether one of the files is to be a piece of music."""
    from regard.text.midi import is_midi

    return any(map(is_midi, files))


def write_piece(model: Model, input: Path | None, output: Path | None, prompt: list[str] | None, options: dict[str, Any]) -> None:
    """Continues the MIDI file `input`, or begins from nothing, and writes the MIDI file `output`."""
    from regard.console import Results
    from regard.door.music import compose
    from regard.text.corpus import find
    from regard.text.midi import read_midi, to_midi

    if output is None or not is_piece(output):
        raise typer.BadParameter("music goes into a MIDI file: say where with --output piece.mid")
    if prompt or (input is not None and not is_piece(input)):
        raise typer.BadParameter("a piece begins with a MIDI file, --input primer.mid, or with nothing")
    primer = "" if input is None else read_midi(find(str(input)))
    with Results(output) as results:  # what can't be written is said now, not after a minute of music
        results.content(to_midi(compose(model, primer, **options)))


@app.command()
def pianoroll(
    piece: Annotated[Path, typer.Argument(help="A MIDI file.")],
    output: Annotated[Path, typer.Option(help="The picture: .png, .svg or .pdf.")],
    bars: Annotated[str | None, typer.Option(help="Which bars, as 1-16; all of them unless said otherwise.")] = None,
    title: Annotated[str | None, typer.Option(help="Above the picture; none unless said otherwise.")] = None,
) -> None:
    """Draw a piece of music: time to the right, pitch upwards, a bar for each note, the louder the darker."""
    from regard.view.pianoroll import draw_pianoroll

    draw_pianoroll(piece, output, bars=_range(bars), title=title)


def _range(bars: str | None) -> tuple[int, int] | None:
    if bars is None:
        return None
    if not (found := re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", bars)):
        raise typer.BadParameter(f"--bars {shown(bars)}: write the first and the last, as 1-16")
    return int(found[1]), int(found[2] or found[1])
