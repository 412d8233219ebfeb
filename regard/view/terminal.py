"""Numbers in the terminal: headings, sentences and tables, shaded by weight where there is colour and readable where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from torch import Tensor

MEASURE = 96  # columns; longer lines are tiring to read
INDENT = 2
BARS = " ▁▂▃▄▅▆▇█"  # what stands for the shade where there is no colour
HUE = math.radians(255)  # blue, which every eye tells from grey
DARK_BELOW = 0.565  # OKLab lightness: darker than this, white letters have more contrast than black ones, and both have at least 4.5

Cell = str | Text


class Sheet:
    """What is printed in one go, from top to bottom."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = Console() if console is None else console
        # With 16 colours there is no even scale: bars say it better.
        self.colours = self.console.color_system in ("256", "truecolor") and not self.console.no_color
        self.sections = 0

    def title(self, words: str) -> None:
        self._put("")
        self.say(words, style="bold")

    def section(self, heading: str) -> None:
        self.sections += 1
        self._put("")
        self._put(Rule(Text(f"{self.sections}  {heading}", style="bold"), align="left", style="dim"))
        self._put("")

    def say(self, sentences: str, style: str = "") -> None:
        """A paragraph."""
        self._put(Padding(Text(sentences, style=style), (0, 0, 0, INDENT)))
        self._put("")

    def formula(self, *lines: str) -> None:
        self._put(Padding(Text("\n".join(lines), style="bold"), (0, 0, 0, 2 * INDENT)))
        self._put("")

    def table(self, headings: Sequence[Cell], rows: Sequence[Sequence[Cell]], *, left: int = 1) -> None:
        """Rows under headings; the first `left` columns are words and stand on the left, the rest are numbers and stand on the right."""
        table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, show_header=any(headings))
        for index, heading in enumerate(headings):
            table.add_column(_spaced(heading), justify="left" if index < left else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(_spaced, row))
        self._put(Padding(table, (0, 0, 0, INDENT - 1)))
        self._put("")

    def weights(self, queries: Sequence[str], keys: Sequence[str], weights: Tensor, visible: Tensor | None = None) -> None:
        """A table of weights (query, key), each row with its sum; what `visible` says is hidden is dotted."""
        shown = torch.ones_like(weights, dtype=torch.bool) if visible is None else visible
        rows: list[list[Cell]] = []
        for query, values, seen in zip(queries, weights, shown, strict=True):
            cells = [self.weight(value if yes else None) for value, yes in zip(values.tolist(), seen.tolist(), strict=True)]
            rows.append([query, *cells, f"{float(values.sum()):.3f}"])
        self.table(["", *map(above_weights, keys), "Σ"], rows)

    def weight(self, value: float | None) -> Text:
        """A weight as a cell: its number to three places, on its shade or beside a bar; dotted where a mask hides it."""
        if value is None:
            return Text("  · · ·  ", style="dim", justify="left")
        if self.colours:
            return Text(f"  {value:.3f}  ", style=shade(value), justify="left")
        return Text(f"  {value:.3f} {BARS[round(value * (len(BARS) - 1))]}", justify="left")

    def pictures(self, tables: dict[str, Tensor]) -> None:
        """Who may see whom (query, key), side by side: ● where the query of this row sees the key of this column."""
        grid = Table.grid(padding=(0, 4, 0, 0))
        grid.add_row(*(Text(title, style="bold") for title in tables))
        grid.add_row(*("\n".join(" ".join("●" if seen else "·" for seen in row) for row in table.tolist()) for table in tables.values()))
        self._put(Padding(grid, (0, 0, 0, INDENT)))
        self._put("")

    def _put(self, what: RenderableType) -> None:
        self.console.print(what, width=min(self.console.width, MEASURE), highlight=False, markup=False, emoji=False)


def above_weights(heading: str) -> Text:
    """A heading that ends where the numbers below it end."""
    return Text("\n".join(f"{line:>7}  " for line in heading.split("\n")), justify="left")


def shade(weight: float) -> str:
    """The background for a weight between 0 and 1, and letters to be read on it. Even to the eye: equal steps look equal; dark is 1."""
    lightness, chroma = 0.97 - 0.62 * weight, 0.01 + 0.1 * weight
    red, green, blue = _from_oklab(lightness, chroma * math.cos(HUE), chroma * math.sin(HUE))
    letters = "#ffffff" if lightness < DARK_BELOW else "#000000"
    return f"{letters} on #{red:02x}{green:02x}{blue:02x}"


def _from_oklab(lightness: float, a: float, b: float) -> tuple[int, int, int]:
    """A colour of the OKLab space, where distances are as eyes see them, as red, green and blue of 0 … 255."""
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    red = 4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short
    green = -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short
    blue = -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short
    return _byte(red), _byte(green), _byte(blue)


def _byte(light: float) -> int:
    """An amount of light between 0 and 1 as a screen wants it."""
    light = min(max(light, 0.0), 1.0)
    return round(255 * (12.92 * light if light <= 0.0031308 else 1.055 * light ** (1 / 2.4) - 0.055))


def _spaced(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text("\n".join(f" {line} " for line in cell.split("\n")))
