"""How well sentences are told apart: precision, recall and F1 of the boundaries in lines of ten real sentences, language by language.

    python benchmarks/sentences.py DATA [--rows test] [--show]

DATA holds translate/en-XX.test.tsv.gz. A row counts where it is one sentence for certain: it ends in one of . ! ? । ॥ … with perhaps a
closing quote or bracket after it, and no such mark with a space after it stands before. This rule knows nothing of the splitter. The rows
of a language, each once, are joined by tens with a space, in the order of the file; what counts are the nine places within each line
where a sentence ends. English is the English side of all files. --rows dev takes the rows of en-XX.dev.tsv.gz instead. Traps
(abbreviations, initials, ordinals …) are those of the tests, in tests/text/traps.tsv, and are told apart.
"""

from __future__ import annotations

import argparse
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from regard.text.sentences import sentences

LANGUAGES = ("en", "de", "fr", "es", "pt", "it", "nl", "hi")
ENDS = re.compile(r"""[.!?।॥…][\s"'”’“»)\]]*$""")
INSIDE = re.compile(r"""[.!?।॥…][\s"'”’“»)\]]*\s\S""")
TOGETHER = 10
TRAPS = Path(__file__).parent.parent / "tests" / "text" / "traps.tsv"


def one_sentence(row: str) -> bool:
    """Whether a row is one sentence for certain."""
    return ENDS.search(row) is not None and INSIDE.search(row) is None


def rows(data: Path, language: str, split: str) -> list[str]:
    """Those of a language that count, each once."""
    files = sorted(data.glob(f"translate/en-??.{split}.tsv.gz")) if language == "en" else [data / f"translate/en-{language}.{split}.tsv.gz"]
    side = 0 if language == "en" else 1
    found: dict[str, None] = {}
    for path in files:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            found |= dict.fromkeys(line.rstrip("\n").split("\t")[side].strip() for line in lines)
    return [row for row in found if one_sentence(row)]


def lines(own: list[str]) -> Iterator[list[str]]:
    return (own[start : start + TOGETHER] for start in range(0, len(own), TOGETHER))


def ends(parts: list[str]) -> set[int]:
    """Where each but the last ends, joined with a space."""
    return {sum(map(len, parts[:count])) + count - 1 for count in range(1, len(parts))}


def found_ends(text: str) -> set[int]:
    return {end for _, end in sentences(text)[:-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--rows", choices=("test", "dev"), default="test")
    parser.add_argument("--show", action="store_true", help="what went wrong, place by place")
    arguments = parser.parse_args()
    traps = [line.split("\t") for line in TRAPS.read_text(encoding="utf-8").splitlines()]
    table = Table("language", "rows", "precision", "recall", "F1", "traps right")
    for language in LANGUAGES:
        own = rows(arguments.data, language, arguments.rows)
        right = wrong = missed = 0
        for parts in lines(own):
            text, true = " ".join(parts), ends(parts)
            said = found_ends(text)
            right, wrong, missed = right + len(true & said), wrong + len(said - true), missed + len(true - said)
            if arguments.show:
                for place in sorted(true ^ said):
                    around = f"{text[max(0, place - 40) : place]} | {text[place : place + 40]}"
                    print(language, "missed" if place in true else "wrong ", repr(around))
        texts = [text.split(" | ") for tag, text in traps if tag == language]
        good = [found_ends(" ".join(parts)) == ends(parts) for parts in texts]
        if arguments.show:
            for parts in (parts for parts, fine in zip(texts, good, strict=True) if not fine):
                print(language, "trap  ", " | ".join(parts), "→", [" ".join(parts)[begin:end] for begin, end in sentences(" ".join(parts))])
        shares = [right / (right + wrong), right / (right + missed), 2 * right / (2 * right + wrong + missed)]
        table.add_row(language, str(len(own)), *(f"{100 * share:.2f} %" for share in shares), f"{sum(good)} of {len(good)}")
    Console().print(table)


if __name__ == "__main__":
    main()
