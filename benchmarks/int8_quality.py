"""What writing in int8 costs in BLEU: the shipped translator in int8 and in float32, on the same rows, side by side.

    python benchmarks/int8_quality.py [--rows 300] [--to de fr …] [--threads 2]

The rows are the first of those that docs/results.md gives its figures for, in $REGARD_DATA/translate. Beam 4 and length penalty 1, as
`regard evaluate` does. Exits with 1 where float32 is better by more than 0.2 BLEU.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path

import torch
from sacrebleu.metrics import BLEU

import regard

# Where a file has other rows too: the sources of everyday sentences (its third column).
EVERYDAY = {"it": {"tatoeba", "tatoeba-pivot"}, "es": {"tatoeba"}, "hi": {"tatoeba", "manythings"}}
LANGUAGES = ("de", "fr", "pt", "it", "nl", "es", "hi")
ALLOWED = 0.2  # BLEU


def rows_of(folder: Path, language: str, count: int) -> list[tuple[str, str]]:
    with gzip.open(folder / f"en-{language}.test.tsv.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    kept = EVERYDAY.get(language)
    return [(row[0], row[1]) for row in rows if kept is None or row[2] in kept][:count]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--to", nargs="+", choices=LANGUAGES, default=list(LANGUAGES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = Path(os.environ["REGARD_DATA"]) / "translate"
    models = {precision: regard.load("translator", precision=precision) for precision in ("int8", "float32")}
    lost = []
    print("| to | rows | int8 | float32 | lost | the same text |\n|---|---|---|---|---|---|", flush=True)
    for language in options.to:
        rows = rows_of(folder, language, options.rows)
        texts = {name: [answer.text for answer in model.translate([row[0] for row in rows], language)] for name, model in models.items()}
        score = {name: BLEU().corpus_score(found, [[row[1] for row in rows]]).score for name, found in texts.items()}
        same = sum(one == other for one, other in zip(texts["int8"], texts["float32"], strict=True))
        lost.append(score["float32"] - score["int8"])
        print(
            f"| {language} | {len(rows)} | {score['int8']:.2f} | {score['float32']:.2f} | {lost[-1]:.2f} | {same / len(rows):.1%} |",
            flush=True,
        )
    sys.exit(max(lost) > ALLOWED)


if __name__ == "__main__":
    main()
