"""What writing in int8 costs in BLEU: the shipped translator in int8 and in float32, on the same rows, side by side.

    python benchmarks/int8_quality.py [--rows 300] [--to de fr …] [--threads 2]

The rows are those held out from training, dev and test, in $REGARD_DATA/translate; of a file that has other rows too, the everyday ones.
`--rows` takes the first of each part: with a thousand, chance alone moves a BLEU by some 0.3. How likely a difference as large is by
chance is the last column (a paired bootstrap). Beam 4 and length penalty 1, as `regard evaluate` does. Exits with 1 where float32 is better
by more than 0.2 BLEU.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from pathlib import Path

import torch
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

import regard

# Where a file has other rows too: the sources of everyday sentences (its third column).
EVERYDAY = {"it": {"tatoeba", "tatoeba-pivot"}, "es": {"tatoeba"}, "hi": {"tatoeba", "manythings"}}
LANGUAGES = ("de", "fr", "pt", "it", "nl", "es", "hi")
ALLOWED = 0.2  # BLEU
SAMPLES = 1000  # of the bootstrap


def rows_of(folder: Path, language: str, count: int | None) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for part in ("dev", "test"):
        with gzip.open(folder / f"en-{language}.{part}.tsv.gz", "rt", encoding="utf-8") as lines:
            rows = [line.rstrip("\n").split("\t") for line in lines]
        kept = EVERYDAY.get(language)
        found += [(row[0], row[1]) for row in rows if kept is None or row[2] in kept][:count]
    return found


def by_chance(texts: dict[str, list[str]], references: list[str]) -> float:
    """How often a draw of such rows would differ as much if the two were alike."""
    test = PairedTest([("float32", texts["float32"]), ("int8", texts["int8"])], {"BLEU": BLEU()}, [references], "bs", SAMPLES)
    found: float = test()[1]["BLEU"][1].p_value
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, help="of each part; all of them unless it is said")
    parser.add_argument("--to", nargs="+", choices=LANGUAGES, default=list(LANGUAGES))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    folder = Path(os.environ["REGARD_DATA"]) / "translate"
    models = {precision: regard.load("translator", precision=precision) for precision in ("int8", "float32")}
    lost = []
    print("| to | rows | int8 | float32 | lost | the same text | by chance |\n|---|---|---|---|---|---|---|", flush=True)
    for language in options.to:
        rows = rows_of(folder, language, options.rows)
        texts = {name: [answer.text for answer in model.translate([row[0] for row in rows], language)] for name, model in models.items()}
        references = [row[1] for row in rows]
        score = {name: BLEU().corpus_score(found, [references]).score for name, found in texts.items()}
        same = sum(one == other for one, other in zip(texts["int8"], texts["float32"], strict=True))
        lost.append(score["float32"] - score["int8"])
        cells = [language, str(len(rows)), f"{score['int8']:.2f}", f"{score['float32']:.2f}", f"{lost[-1]:.2f}", f"{same / len(rows):.1%}"]
        print("|", " | ".join([*cells, f"p = {by_chance(texts, references):.2f}"]), "|", flush=True)
    sys.exit(max(lost) > ALLOWED)


if __name__ == "__main__":
    main()
