"""Pictures of a trace for papers and slides: attention, alignment, positions, entropy; PNG or SVG, with matplotlib.

One scale everywhere, the terminal's: light is 0, dark is 1, even to the eye and safe for every kind of it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from regard.door.schemes import Scheme, Schemes
from regard.door.trace_types import Looks, Sentence, Trace
from regard.errors import ConfigError, RegardError, installing, nearest
from regard.view.pictures import make_folder, write_figure
from regard.view.terminal import shade

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Arguments = ParamSpec("Arguments")
Drawn = TypeVar("Drawn")

INK, QUIET, ACCENT = "#1c2430", "#6b7480", "#2459a6"
HEADS_SHOWN = 16  # of a layer, in a grid
PANEL, LABEL, WIDEST = 1.1, 0.1, 24.0  # inches of a grid: a head at least, with a token's name, all heads at most beyond that
LEAST_POINTS = 4.0  # of letters that can still be read
NUMBERED = 24  # tokens up to which a table has its numbers written in
KINDS = {"encoder": "source over source", "decoder": "target over target", "cross": "target over source"}
# Fonts are tried one after the other for each letter; DejaVu comes with matplotlib and has no Indian, Chinese, Japanese or Korean ones.
FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans Devanagari", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Emoji",
         "Nirmala UI", "Mangal", "Kohinoor Devanagari", "Microsoft YaHei", "PingFang SC", "Arial Unicode MS")  # fmt: skip
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and is drawn with the reader's fonts
    "axes.edgecolor": "#c9ced6",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
}


def styled(draw: Callable[Arguments, Drawn]) -> Callable[Arguments, Drawn]:
    """The same function with our colours and fonts in force; without matplotlib, an error that says what to do."""

    @wraps(draw)
    def drawn(*arguments: Arguments.args, **named: Arguments.kwargs) -> Drawn:
        try:
            from matplotlib import font_manager, rc_context
        except ImportError:
            raise RegardError(f"plots need matplotlib: {installing('view')}") from None
        known = {font.name for font in font_manager.fontManager.ttflist}
        with rc_context(STYLE | {"font.family": [name for name in FONTS if name in known]}):
            return draw(*arguments, **named)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches. It belongs to no window, so that threads may draw at once."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


@styled
def save(figure: Figure, path: str | Path, warn: Callable[[str], None] | None = None) -> Path:
    """Writes a figure as its name ends: .png, .svg or .pdf. `warn`: is told where no font here has a letter that is needed."""
    path = Path(path)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        write_figure(figure, path, dpi=160, facecolor="white")
    if warn is not None and path.suffix != ".svg" and any("Glyph" in str(each.message) for each in said):
        warn(f"{path}: no font here has all its letters, so boxes stand for some; install one that has, or write SVG, where text is text")
    return path


def write_plots(trace: Trace, folder: Path, *, svg: bool = False, warn: Callable[[str], None] | None = None) -> list[Path]:
    """All pictures there are of a trace, in a folder."""
    ending = "svg" if svg else "png"
    figures: dict[str, Any] = {}
    kinds = [kind for kind, own in trace.attention.items() if own.weights is not None]
    for kind in kinds:
        if trace.attention[kind].kind == "scaled":
            figures[f"attention-{kind}"] = attention_grid(trace, kind)
    if trace.alignment is not None:
        figures["alignment"] = alignment(trace)
    if any(trace.attention[kind].kind == "scaled" for kind in kinds):
        figures["entropy"] = entropy(trace)
    if trace.schemes is not None:
        figures["positions"] = positions(trace.schemes)
    make_folder(folder)
    return [save(figure, folder / f"{name}.{ending}", warn) for name, figure in figures.items()]


def scale() -> Colormap:
    """The terminal's shades of a weight as a colour map: 0 light, 1 dark; what is masked is not drawn."""
    from matplotlib.colors import ListedColormap

    return ListedColormap([shade(step / 255).rpartition(" ")[2] for step in range(256)], "regard")


# Attention


@styled
def attention_grid(trace: Trace, kind: str, heads: int = HEADS_SHOWN) -> Figure:
    """Every layer and head of one kind, small: a row a layer, a column a head."""
    own, weights = _weights(trace, kind)
    count = min(heads, weights.shape[1])
    queries, keys = weights.shape[2:]
    tall = max(0.5, min(2.0, queries / keys))
    beside, below = _labels(trace, own.query, kind), _labels(trace, own.key, "")
    panel = min(max(PANEL, LABEL * keys, LABEL * queries / tall), max(PANEL, WIDEST / count))  # inches, with room for its tokens
    size = min(7.0, 0.85 * 72 * panel * min(1 / keys, tall / queries))  # points
    named = size >= LEAST_POINTS
    panel = panel if named else PANEL
    figure = new_figure(panel * count + (1.2 if named else 0.6), panel * tall * len(own.layers) + (1.5 if named else 0.9))
    grid = figure.subplots(len(own.layers), count, squeeze=False)
    for row, layer in enumerate(own.layers):
        for column in range(count):
            axes = grid[row][column]
            shown = _draw(axes, weights[row, column], own.mask)
            axes.tick_params(length=0, labelsize=size, pad=1)
            axes.set_xticks(*_ticks(below, named and row == len(own.layers) - 1), rotation=90)
            axes.set_yticks(*_ticks(beside, named and column == 0))
            if row == 0:
                axes.set_title(f"{own.heads[column] + 1}", fontsize=9, color=QUIET, pad=3)
            if column == 0:
                axes.set_ylabel(f"layer {layer + 1}", fontsize=9, color=QUIET, labelpad=3)
    if not named:
        figure.supxlabel("too many tokens to be named: they stand in order, from the left and from above", fontsize=8, color=QUIET)
    more = "" if count == weights.shape[1] else f", the first {count} of {weights.shape[1]} heads"
    figure.suptitle(f"{kind} attention, {KINDS[kind]}: layers down, heads across{more}", fontsize=10)
    _colorbar(figure, shown, grid, "weight")
    return figure


def _ticks(names: Sequence[str], named: bool) -> tuple[Sequence[int], Sequence[str]]:
    """A place and a label for each token, or none."""
    return (range(len(names)), [plain(name) for name in names]) if named else ((), ())


@styled
def attention_table(trace: Trace, kind: str, layer: int, head: int | None = None) -> Figure:
    """One head as a table with its words, and numbers where they fit; without a head, the mean of all."""
    own, weights = _weights(trace, kind)
    if layer not in own.layers or (head is not None and head not in own.heads):
        raise ConfigError(f"layer {layer}, head {head} is not in this trace; it has layers {list(own.layers)} and heads {list(own.heads)}")
    found = weights[own.layers.index(layer)]
    table = found.mean(0) if head is None else found[own.heads.index(head)]
    name = "mean of all heads" if head is None else f"head {head + 1}"
    return _table(
        table, own.mask, _labels(trace, own.query, kind), _labels(trace, own.key, ""), f"{kind} attention, layer {layer + 1}, {name}"
    )


@styled
def alignment(trace: Trace) -> Figure:
    """How much each output token looked at each source token: the mean of the last layer's heads, or a recurrent model's one."""
    if trace.alignment is None:
        raise RegardError("this trace has no alignment: the model looks at no source, or has no attention")
    what = "additive attention" if trace.model["kind"] == "rnn" else "last layer, mean of all heads"
    return _table(trace.alignment, None, _labels(trace, "target", "cross"), _labels(trace, "source", ""), f"alignment: {what}")


def _weights(trace: Trace, kind: str) -> tuple[Looks, Tensor]:
    if kind not in trace.attention:
        raise ConfigError(f"this trace has no {kind!r} attention; {nearest(kind, trace.attention)}")
    own = trace.attention[kind]
    if own.weights is None:
        raise ConfigError("this trace was made without weights; ask for parts=('weights',)")
    return own, own.weights


def _labels(trace: Trace, side: str, kind: str) -> list[str]:
    """The tokens beside a table: in cross-attention the words that were being written when they looked."""
    if side == "target":
        assert trace.target is not None
        line: Sentence = trace.target.next if kind == "cross" else trace.target
    else:
        assert trace.source is not None
        line = trace.source
    return [token.strip() or "␣" for token in line.tokens]


def _table(weights: Tensor, mask: Tensor | None, rows: Sequence[str], columns: Sequence[str], title: str) -> Figure:
    numbered = len(columns) <= NUMBERED
    cell = 0.46 if numbered else max(0.12, 12 / len(columns))
    high = 0.3 if numbered else cell
    longest = max(map(len, columns), default=1)
    figure = new_figure(cell * len(columns) + 0.09 * max(map(len, rows), default=1) + 1.2, high * len(rows) + 0.075 * longest + 0.8)
    axes = figure.subplots()
    shown = _draw(axes, weights, mask, square=not numbered)
    axes.set_xticks(range(len(columns)), map(plain, columns), rotation=60, ha="left", rotation_mode="anchor", color=INK)
    axes.set_yticks(range(len(rows)), map(plain, rows), color=INK)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    if numbered:
        for row, column in ((row, column) for row in range(len(rows)) for column in range(len(columns))):
            value = float(weights[row, column])
            if mask is None or bool(mask[row, column]):
                letters = shade(min(max(value, 0.0), 1.0)).partition(" ")[0]
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=letters)
    axes.set_xlabel(title, fontsize=9, color=QUIET, labelpad=6)
    _colorbar(figure, shown, axes, "weight")
    return figure


def plain(text: str) -> str:
    """A text as it is: between dollar signs matplotlib would read a formula."""
    return text.replace("$", r"\$")


def _draw(axes: Axes, weights: Tensor, mask: Tensor | None, *, square: bool = False) -> Any:
    values = weights.float().clone()
    if mask is not None:
        values[~mask] = math.nan  # left white, with hatching: not the same as a weight of zero
        axes.set_facecolor("white")
        axes.patch.set(hatch="////", edgecolor="#dfe3e8", linewidth=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)
    return axes.imshow(values.numpy(), cmap=scale(), vmin=0, vmax=1, aspect="equal" if square else "auto", interpolation="nearest")


def _colorbar(figure: Figure, shown: Any, axes: Any, label: str) -> None:
    bar = figure.colorbar(shown, ax=axes, fraction=0.05, shrink=0.7, pad=0.02, aspect=18)
    bar.set_label(label, color=QUIET)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)


# Entropy


def head_entropy(looks: Looks) -> Tensor:
    """How widely each head looks, on average over its queries: (layers, heads); 0: at one word, 1: at all that it may, alike."""
    assert looks.weights is not None
    weights = looks.weights.double()
    nats = -(weights * weights.clamp(min=1e-300).log()).sum(-1)  # (layers, heads, query)
    seen = torch.full(weights.shape[-2:], True) if looks.mask is None else looks.mask
    most = seen.sum(-1).double().log()  # (query,)
    several = most > 0  # who may see one word only has no choice
    return (nats[..., several] / most[several]).mean(-1)


@styled
def entropy(trace: Trace) -> Figure:
    """The entropy of every head of every kind, side by side."""
    kinds = {kind: own for kind, own in trace.attention.items() if own.weights is not None and own.kind == "scaled"}
    if not kinds:
        raise RegardError("this trace has no weights of heads to measure; ask for parts=('weights',)")
    widest, deepest = max(len(own.heads) for own in kinds.values()), max(len(own.layers) for own in kinds.values())
    figure = new_figure((0.42 * widest + 0.7) * len(kinds) + 0.9, 0.42 * deepest + 1.3)
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    for axes, (kind, own) in zip(panels, kinds.items(), strict=True):
        found = head_entropy(own)
        shown = axes.imshow(found.numpy(), cmap=scale(), vmin=0, vmax=1, aspect="equal")
        for row in range(len(own.layers)):
            for column in range(len(own.heads)):
                value = float(found[row, column])
                letters = shade(min(max(value, 0.0), 1.0)).partition(" ")[0] if value == value else QUIET
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color=letters)
        axes.set_xticks(range(len(own.heads)), [str(head + 1) for head in own.heads])
        axes.set_yticks(range(len(own.layers)), [str(layer + 1) for layer in own.layers])
        axes.tick_params(length=0)
        axes.set_title(kind, fontsize=9)
        axes.set_anchor("N")
        axes.set_xlabel("head")
        axes.set_ylabel("layer")
    figure.suptitle("entropy of each head: 0 looks at one word, 1 at all alike", fontsize=10)
    _colorbar(figure, shown, panels, "share of the most there could be")
    return figure


# Positions


@styled
def positions(schemes: Schemes) -> Figure:
    """The heat map of each scheme and how alike two positions are by their distance; or what is added to scores by distance."""
    each = {name: scheme for name, scheme in schemes.each.items() if name == schemes.own or scheme.vectors is not None}
    figure = new_figure(8.6, 2.5 * len(each) + 0.3)
    panels = figure.subplots(len(each), 2, squeeze=False, width_ratios=[1.5, 1])
    for row, (name, scheme) in zip(panels, each.items(), strict=True):
        title = f"{name}{', the model’s own' if name == schemes.own else ''}"
        if scheme.bias is not None:
            _bias(row, title, scheme, scheme.bias)
        else:
            _vectors(figure, row, title, scheme)
    return figure


def _vectors(figure: Figure, row: Sequence[Axes], title: str, scheme: Scheme) -> None:
    heat, curve = row
    assert scheme.vectors is not None
    assert scheme.similarity is not None
    most = float(scheme.vectors.abs().max()) or 1.0
    shown = heat.imshow(scheme.vectors.numpy(), cmap="PuOr_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    heat.set_title(title, fontsize=9, loc="left")
    heat.set_ylabel("position")
    heat.set_xlabel("number in the vector")
    bar = figure.colorbar(shown, ax=heat, fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8)
    low, high = scheme.similarity.low.numpy(), scheme.similarity.high.numpy()
    curve.fill_between(scheme.distance, low, high, color=ACCENT, alpha=0.15, linewidth=0)
    curve.plot(scheme.distance, scheme.similarity.mean.numpy(), color=ACCENT, linewidth=1.5)
    curve.set_title("similarity by distance", fontsize=9, loc="left")
    curve.set_xlabel("distance")
    curve.set_ylabel("cosine")
    curve.set_ylim(min(-0.05, float(low.min()) - 0.05), 1.05)
    curve.grid(color="#eceef1", linewidth=0.8)


def _bias(row: Sequence[Axes], title: str, scheme: Scheme, bias: Tensor) -> None:
    lines, rest = row
    for head in range(bias.shape[0]):
        colour = shade(0.35 + 0.6 * head / max(1, bias.shape[0] - 1)).rpartition(" ")[2]
        lines.plot(scheme.distance, bias[head].numpy(), color=colour, linewidth=1.2, label=f"head {head + 1}")
    lines.set_title(f"{title}: what is added to scores", fontsize=9, loc="left")
    lines.set_xlabel("distance")
    lines.grid(color="#eceef1", linewidth=0.8)
    rest.set_axis_off()
    handles, labels = lines.get_legend_handles_labels()
    rest.legend(handles[:16], labels[:16], loc="center left", frameon=False, fontsize=8, ncols=2)
