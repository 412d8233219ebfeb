"""A picture of music: time to the right, pitch upwards, a bar for each note, the louder the darker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regard.errors import CorpusError, RegardError, installing
from regard.evaluation.piece import bar_lines
from regard.text.corpus import find
from regard.text.metre import Numbers
from regard.text.midi import Score, read_score
from regard.view.pictures import check_picture, write_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BARS_A_ROW = 12
BLACK_KEYS = (1, 3, 6, 8, 10)
GROUND, BLACK_ROW, LINE, BEAT, INK = "#ffffff", "#f1f2f4", "#9aa0a8", "#e2e4e8", "#3a3f47"
SOFT, LOUD = "#a9c8ec", "#12376b"
WIDTH, ROW_HEIGHT = 11.0, 2.4  # inches


def draw_pianoroll(piece: str | Path, output: Path, *, bars: tuple[int, int] | None = None, title: str | None = None) -> None:
    """Draws a MIDI file, or the bars of it from one to another (from 1), into a .png, .svg or .pdf."""
    check_picture(output)
    path = find(str(piece))
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"can't read {path}: {error.strerror}") from error
    figure = pianoroll(content, str(path), bars=bars, title=title)
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        write_figure(figure, output, dpi=120)


def pianoroll(content: bytes, name: str, *, bars: tuple[int, int] | None = None, title: str | None = None) -> Figure:
    """The picture of a MIDI file's content, in rows of twelve bars; `name` is what an error calls it."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RegardError(f"pictures are drawn with matplotlib, which is not here; {installing('view')}") from None
    score = read_score(content, name)
    notes = _notes(score, name)
    lines = bar_lines(score)
    first, last = bars or (1, len(lines) - 1)
    if not 1 <= first <= last < len(lines):
        raise CorpusError(f"{name} has bars 1 to {len(lines) - 1}, and {first} to {last} were asked for")
    shown = (notes["time"] < lines[last]) & (notes["time"] + notes["duration"] > lines[first - 1])
    pitches = notes["pitch"][shown] if shown.any() else np.array([60])
    span = (int(pitches.min()) - 2, int(pitches.max()) + 2)
    rows = range(first, last + 1, BARS_A_ROW)
    figure = Figure(figsize=(WIDTH, ROW_HEIGHT * len(rows) + (0.5 if title else 0.2)), layout="constrained", facecolor=GROUND)
    for axes, row in zip(np.atleast_1d(figure.subplots(len(rows), 1)), rows, strict=True):
        _row(axes, score, notes, lines, row, span, bars_drawn=min(BARS_A_ROW, last - first + 1), last=last)
    if title:
        figure.suptitle(title, color=INK, fontsize=12)
    return figure


def _notes(score: Score, name: str) -> dict[str, Numbers]:
    played = [track.notes.numpy() for track in score.tracks if not track.is_drum and len(track.notes)]
    if not played:
        raise CorpusError(f"{name} has no notes to draw")
    return {key: np.concatenate([track[key] for track in played]).astype(np.int64) for key in ("time", "duration", "pitch", "velocity")}


def _row(
    axes: Axes,
    score: Score,
    notes: dict[str, Numbers],
    lines: list[int],
    first: int,
    span: tuple[int, int],
    *,
    bars_drawn: int,
    last: int,
) -> None:
    """One row: its bars from `first` on, each as wide as in every other row."""
    end = min(first + bars_drawn - 1, last)
    begin, until = lines[first - 1], lines[end]
    width = (until - begin) * bars_drawn / (end - first + 1)
    low, high = span
    for pitch in range(low, high + 1):
        if pitch % 12 in BLACK_KEYS:
            axes.axhspan(pitch - 0.5, pitch + 0.5, color=BLACK_ROW, linewidth=0)
    axes.vlines(np.arange(begin, until, score.tpq), low - 0.5, high + 0.5, color=BEAT, linewidth=0.4)
    axes.vlines(lines[first - 1 : end + 1], low - 0.5, high + 0.5, color=LINE, linewidth=0.8)
    _draw_notes(axes, notes, begin, until)
    axes.set(xlim=(begin, begin + width), ylim=(low - 0.5, high + 0.5))
    axes.set_xticks(lines[first - 1 : end], [str(bar) for bar in range(first, end + 1)], color=INK, fontsize=8, ha="left")
    octaves = [pitch for pitch in range(low, high + 1) if pitch % 12 == 0]
    axes.set_yticks(octaves, [f"C{pitch // 12 - 1}" for pitch in octaves], color=INK, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_notes(axes: Axes, notes: dict[str, Numbers], begin: int, until: int) -> None:
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import LinearSegmentedColormap

    start, end = np.maximum(notes["time"], begin), np.minimum(notes["time"] + notes["duration"], until)
    seen = start < end
    start, end, pitch, loud = start[seen], end[seen], notes["pitch"][seen], notes["velocity"][seen] / 127
    gap = (until - begin) * 0.0006  # so that a note that is struck again is seen as two
    corners = [(start, pitch - 0.42), (end - gap, pitch - 0.42), (end - gap, pitch + 0.42), (start, pitch + 0.42)]
    shapes = np.stack([np.stack(corner, -1) for corner in corners], 1)  # (notes, 4, 2)
    shades = LinearSegmentedColormap.from_list("loudness", (SOFT, LOUD))
    axes.add_collection(PolyCollection(list(shapes), facecolors=shades(loud), linewidths=0, zorder=3))
