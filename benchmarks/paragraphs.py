"""What a translator loses where sentences stand together in one line: BLEU of lines against the same sentences one at a time.

    python benchmarks/paragraphs.py DATA [--to de fr it] [--model translator] [--rows 400] [--precision auto]

DATA holds translate/en-XX.test.tsv.gz, of which the everyday rows count (of Tatoeba), the first so many of each language, each English
sentence once. They are translated one at a time, and joined with a space by sixes (40 lines of 240 rows) and by tens (all rows): whole, as
a line was read before (--split length), and sentence by sentence. BLEU is sacreBLEU's of the lines against the references joined in the
same way; what is lost is that of sentence by sentence against one at a time.
"""

from __future__ import annotations

import argparse
import gzip
import warnings
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

import regard
from regard.evaluation.metrics import translation_scores

EVERYDAY = ("tatoeba", "tatoeba-pivot")


def pairs(data: Path, to: str, count: int) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    with gzip.open(data / f"translate/en-{to}.test.tsv.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            english, other, source = line.rstrip("\n").split("\t")
            if source in EVERYDAY and len(found) < count:
                found.setdefault(english.strip(), other.strip())
    return list(found.items())


def by(size: int, texts: Sequence[str]) -> list[str]:
    return [" ".join(texts[start : start + size]) for start in range(0, len(texts), size)]


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    return translation_scores(hypotheses, references).bleu.value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--to", nargs="+", default=["de", "fr", "it"])
    parser.add_argument("--model", default="translator")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--precision", default="auto")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of lines that are too long to be read whole
    model = regard.load(arguments.model, precision=arguments.precision)
    table = Table("to", "rows", "a line", "alone", "whole", "by sentence", "lost", "other lines")
    for to in arguments.to:
        own = pairs(arguments.data, to, arguments.rows)
        for size, count in ((6, min(240, len(own))), (10, len(own))):
            sources, references = [source for source, _ in own[:count]], [target for _, target in own[:count]]
            alone = [answer.text for answer in model.translate(sources, to)]
            lines, wanted, best = by(size, sources), by(size, references), by(size, alone)
            whole, split = ([answer.text for answer in model.translate(lines, to, split=how)] for how in ("length", "sentences"))
            figures = [bleu(found, wanted) for found in (best, whole, split)]
            other = sum(one != two for one, two in zip(split, best, strict=True))
            cells = (
                to,
                count,
                size,
                *(f"{figure:.2f}" for figure in figures),
                f"{figures[0] - figures[2]:.2f}",
                f"{other} of {len(lines)} lines",
            )
            table.add_row(*map(str, cells))
    Console().print(table)


if __name__ == "__main__":
    main()
