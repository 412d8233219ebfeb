"""Curves of figures, as pictures for a page or a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import RegardError, installing
from regard.view.pictures import write_figure

if TYPE_CHECKING:
    from regard.evaluation.lengths import Span

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito's, told apart by every eye
MARKS = "osD^vP"


def plot_by_length(curves: Mapping[str, Sequence[Span]], path: Path, *, title: str = "") -> None:
    """BLEU by the length of the source, a curve for each model, with what chance may do; the file's ending says which format."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise RegardError(f"plots need matplotlib: {installing('view')}") from None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for number, (name, spans) in enumerate(curves.items()):
        colour, places = COLOURS[number % len(COLOURS)], range(len(spans))
        bleu = [span.bleu for span in spans]
        axes.plot(places, bleu, color=colour, marker=MARKS[number % len(MARKS)], linewidth=2, label=name)
        low, high = ([span.bleu + sign * span.chance for span in spans] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
    spans = next(iter(curves.values()))
    axes.set_xticks(range(len(spans)), [f"{span.name}\n({span.examples})" for span in spans])
    axes.set_xlabel("words of the source (and how many sentences)")
    axes.set_ylabel("BLEU")
    axes.set_ylim(bottom=0)
    axes.set_title(title)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    write_figure(figure, path, dpi=150)
