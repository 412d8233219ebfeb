"""Figures as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from regard.evaluation.lengths import Span
from regard.evaluation.metrics import Confusion, Scores

MOST_COLUMNS = 20  # labels up to which a confusion may be shown whole
MISTAKES = 10
FIGURES = {"bleu": ("BLEU", "higher is better"), "chrf": ("chrF", "higher is better"), "ter": ("TER", "lower is better")}


def show_scores(scores: Scores, console: Console | None = None) -> None:
    """Prints BLEU, chrF and TER, and the signatures that say how each was measured."""
    console = console or Console()
    table = plain_table()
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True, style="bold")
    table.add_column(no_wrap=True, style="dim")
    measured = [(name, direction, getattr(scores, key)) for key, (name, direction) in FIGURES.items() if getattr(scores, key) is not None]
    for name, direction, score in measured:
        table.add_row(name, f"{score.value:.2f}", direction)
    console.print(table)
    show_signatures([(name, score.signature) for name, _, score in measured], console)


def show_confusion(confusion: Confusion, console: Console | None = None) -> None:
    """Prints which label was taken for which, how well each is found, and the accuracy over all.

    Where the labels are too many for the width of the console, only the most frequent mistakes are listed.
    """
    console = console or Console()
    whole = _whole(confusion) if len(confusion.labels) <= MOST_COLUMNS else None
    if whole is not None and _width(whole, console) <= console.width:
        console.print(Text("rows: what is right; columns: what was predicted", style="dim"))
        console.print(whole)
    elif confusion.accuracy < 1:
        console.print(Text("the most frequent mistakes", style="dim"))
        console.print(_mistakes(confusion))
    console.print()
    console.print(_per_label(confusion))
    console.print()
    accuracy = f"accuracy {confusion.accuracy:.1%} of {sum(map(sum, confusion.counts)):,} examples"
    console.print(Text(f"{accuracy}, macro F1 {confusion.macro_f1:.1%}", style="bold"))


def show_by_length(curves: Mapping[str, Sequence[Span]], console: Console | None = None) -> None:
    """Prints BLEU for each span of source lengths, a column for each model, with what chance may do."""
    console = console or Console()
    table = plain_table(header=True)
    for heading in ("words of the source", "sentences", *curves):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for row in zip(*curves.values(), strict=True):
        table.add_row(row[0].name, f"{row[0].examples:,}", *(f"{span.bleu:.1f} ± {span.chance:.1f}" for span in row))
    console.print(table)


def show_signatures(signatures: list[tuple[str, str]], console: Console) -> None:
    """Each in one line whatever the width, to be copied into a report."""
    console.print()
    for name, signature in signatures:
        console.print(Text(f"{name} {signature}", style="dim"), soft_wrap=True)


def plain_table(*, header: bool = False) -> Table:
    """A table without lines, as all of ours are."""
    return Table(show_header=header, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def _whole(confusion: Confusion) -> Table:
    table = plain_table(header=True)
    table.add_column(no_wrap=True)
    for label in confusion.labels:
        table.add_column(Text(label), justify="right", no_wrap=True)
    for index, (label, row) in enumerate(zip(confusion.labels, confusion.counts, strict=True)):
        cells = [Text(f"{count:,}", style="bold" if column == index else "" if count else "dim") for column, count in enumerate(row)]
        table.add_row(Text(label, style="dim"), *cells)
    return table


def _width(table: Table, console: Console) -> int:
    """What it needs to be shown without a cut, however wide the console is."""
    return console.measure(table, options=console.options.update(max_width=100_000)).maximum


def _mistakes(confusion: Confusion) -> Table:
    wrong = [
        (count, right, taken)
        for right, row in zip(confusion.labels, confusion.counts, strict=True)
        for taken, count in zip(confusion.labels, row, strict=True)
        if count and right != taken
    ]
    table = plain_table(header=True)
    table.add_column("times", justify="right", no_wrap=True)
    table.add_column("right", overflow="fold")
    table.add_column("predicted", overflow="fold")
    for count, right, taken in sorted(wrong, key=lambda mistake: -mistake[0])[:MISTAKES]:
        table.add_row(f"{count:,}", Text(right), Text(taken))
    return table


def _per_label(confusion: Confusion) -> Table:
    table = plain_table(header=True)
    table.add_column("label", overflow="fold")
    for name in ("precision", "recall", "F1", "examples"):
        table.add_column(name, justify="right", no_wrap=True)
    for scores in confusion.per_label:
        shares = (f"{share:.1%}" for share in (scores.precision, scores.recall, scores.f1))
        table.add_row(Text(scores.label), *shares, f"{scores.count:,}")
    return table
