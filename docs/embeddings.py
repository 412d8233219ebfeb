"""Makes the figures of embeddings.md: python docs/embeddings.py BUNDLE, with all-MiniLM-L6-v2 imported as a bundle.

Writes the tables between the marks in the page, and the picture beside it. Needs matplotlib (pip install -e '.[view]').
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from torch import Tensor
from torch.nn.functional import cosine_similarity

import regard

HERE = Path(__file__).parent
BEGIN, END = "<!-- from here on made by docs/embeddings.py -->", "<!-- up to here -->"


@dataclass(frozen=True)
class Word:
    """A word of two meanings, and sentences in which it has the one or the other."""

    word: str
    meanings: tuple[str, str]
    sentences: tuple[tuple[str, ...], tuple[str, ...]]  # those of each meaning


BANK = Word(
    "bank",
    ("money", "river"),
    (
        (
            "money bank grows",
            "She put all her money in the bank.",
            "The bank raised its interest rates again.",
            "The bank lent him money to buy a house.",
        ),
        (
            "river bank flows",
            "They sat on the bank of the river and watched the boats.",
            "The river bank was muddy after the rain.",
            "Willows grow along the bank of the stream.",
        ),
    ),
)
APPLE = Word(
    "apple",
    ("fruit", "technology"),
    (
        (
            "An apple a day keeps the doctor away.",
            "Apple is healthy.",
            "Apple is better than orange.",
            "He ate an apple and a slice of bread.",
        ),
        (
            "Apple makes great phones.",
            "Apple released a new laptop this year.",
            "The shares of Apple fell after the phone was shown.",
            "Apple and Microsoft write operating systems.",
        ),
    ),
)
WORDS = (BANK, APPLE)


@dataclass(frozen=True)
class Measured:
    """Cosine similarities of a word with itself elsewhere, at every depth: static, layer 1, layer 2, …"""

    word: Word
    within: list[float]  # mean over pairs of sentences with the same meaning
    across: list[float]  # and with different ones
    nearest: list[int]  # in how many sentences the word is most like one of its own meaning, of all the others
    sentences: int


def measure(model: regard.Model, word: Word) -> Measured:
    one, other = ([model.vectors(text).of(word.word) for text in texts] for texts in word.sentences)  # each (1 + layers, width)
    within = _mean([*combinations(one, 2), *combinations(other, 2)])
    every = [(vectors, meaning) for meaning, group in enumerate((one, other)) for vectors in group]
    nearest = [sum(_most_alike(index, every, depth) == meaning for index, (_, meaning) in enumerate(every)) for depth in range(len(within))]
    return Measured(word, within, _mean(list(product(one, other))), nearest, len(every))


def _mean(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    return [float(sum(cosine_similarity(a[depth], b[depth], dim=0) for a, b in pairs) / len(pairs)) for depth in range(len(pairs[0][0]))]


def _most_alike(index: int, every: Sequence[tuple[Tensor, int]], depth: int) -> int | None:
    """The meaning of the sentence whose word is most like this one; None where all are alike, as static vectors are."""
    likeness = {
        other: float(cosine_similarity(every[index][0][depth], every[other][0][depth], dim=0))
        for other in range(len(every))
        if other != index
    }
    best = max(likeness, key=likeness.__getitem__)
    return None if max(likeness.values()) - min(likeness.values()) < 1e-6 else every[best][1]


def tables(found: Sequence[Measured]) -> str:
    lines = []
    for each in found:
        first, second = each.word.meanings
        lines += [
            f"**{each.word.word}**: {each.sentences} sentences, half of them about {first}, half about {second}.",
            "",
            "| | same meaning | other meaning | difference | most like one of its own meaning |",
            "|---|---|---|---|---|",
        ]
        for depth, (within, across, right) in enumerate(zip(each.within, each.across, each.nearest, strict=True)):
            told = f"{right} of {each.sentences}" if depth else "all alike"
            lines.append(f"| {_name(depth)} | {within:.3f} | {across:.3f} | {within - across:.3f} | {told} |")
        lines.append("")
    return "\n".join(lines)


def _name(depth: int) -> str:
    return f"layer {depth}" if depth else "static"


def plot(found: Sequence[Measured], path: Path) -> None:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    mpl.rcParams["svg.hashsalt"] = "regard"  # the same figures give the same file
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, each in zip(figure.subplots(1, len(found), sharey=True), found, strict=True):
        depths = range(len(each.within))
        axes.plot(depths, each.within, color="#0072b2", marker="o", linewidth=2, label="same meaning")
        axes.plot(depths, each.across, color="#d55e00", marker="D", linewidth=2, label="other meaning")
        axes.fill_between(depths, each.across, each.within, color="#0072b2", alpha=0.08, linewidth=0)
        axes.set_xticks(depths, ["static", *map(str, list(depths)[1:])])
        axes.set_title(f"{each.word.word}: {each.word.meanings[0]} or {each.word.meanings[1]}")
        axes.set_xlabel("layer")
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("cosine similarity")
    figure.axes[0].legend(frameon=False, loc="lower left")
    figure.savefig(path, metadata={"Date": None})


def main(bundle: str) -> None:
    model = regard.load(bundle, device="cpu")
    found = [measure(model, word) for word in WORDS]
    page = HERE / "embeddings.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{tables(found)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    plot(found, HERE / "embeddings.svg")
    print(tables(found))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/minilm")
