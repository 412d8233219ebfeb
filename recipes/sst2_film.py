"""Sentences of film reviews with labels, for recipes/sst2-film.toml, whose head says in which order all this is run.

sst2_film.py split DATA FOLDER writes sentences.txt, those of IMDB's reviews, and unlabelled.txt, the reviews that nobody labelled.
`regard classify` then says of both what models think: of the reviews in FOLDER/reviews.labels, of the sentences in FOLDER/sst2-….labels,
one file for each model.
sst2_film.py label DATA FOLDER writes sentences.tsv from them: every sentence with a label that is drawn from what the models say of it
together with what its review is. In the mean over so many sentences, a drawn label teaches what the chance itself would.
"""

from __future__ import annotations

import gzip
import math
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

COOLING = 2.0  # models that learned little data by heart are too sure: dev sentences are least surprising with log-odds divided by this
REVIEW = 1.0  # the log-odds of a sentence being what its review is, where nothing else is known
WORDS = range(4, 51)
END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[\"'(A-Z0-9])|\s*<br\s*/?>\s*|\s{3,}")  # of a sentence
# SST-2 is spelt as in the Penn Treebank. What of that a tokenizer sees that splits at punctuation anyway:
SPELLINGS = [(r"\b([Cc]a|[Ww]o)n't\b", r"\1 n't"), (r"(\w)n't\b", r"\1 n't"), (r"\b([Cc]an)not\b", r"\1 not"),
             (r"\(", "-lrb- "), (r"\)", " -rrb-"), (r'(^|\s)"', r"\1`` "), (r'"', " ''")]  # fmt: skip


def reviews(data: Path) -> Iterator[tuple[str, str]]:
    """Each review with its label, which is empty where nobody gave one."""
    with gzip.open(data / "classify/imdb.train.tsv.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            label, text = line.rstrip("\n").split("\t", 1)
            yield label, text
    with gzip.open(data / "lm/imdb-unlabelled.txt.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield "", line.rstrip("\n")


def sentences(data: Path) -> Iterator[tuple[int, str]]:
    """The number of its review and each sentence that did not come before; half of them, by chance, in SST-2's spelling."""
    seen: set[str] = set()
    for number, (_, review) in enumerate(reviews(data)):
        for piece in END.split(review):
            text = " ".join(piece.split())
            if len(text.split()) in WORDS and (key := text.lower()) not in seen:
                seen.add(key)
                yield number, respelt(text) if crc32(text.encode()) & 1 else text


def respelt(text: str) -> str:
    for natural, treebank in SPELLINGS:
        text = re.sub(natural, treebank, text)
    return text


def split(data: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sentences.txt").write_text("".join(f"{text}\n" for _, text in sentences(data)), encoding="utf-8")
    unlabelled = (" ".join(text.split()) for label, text in reviews(data) if not label)
    (folder / "unlabelled.txt").write_text("".join(f"{text}\n" for text in unlabelled), encoding="utf-8")


def said(file: Path) -> list[float]:
    """The log-odds of "positive" for each line of what `regard classify` wrote, which has four decimals."""
    rows = (line.split("\t") for line in file.read_text(encoding="utf-8").splitlines())
    chances = ((label, min(float(chance), 0.99995)) for label, chance in rows)
    return [math.log(chance / (1 - chance)) * (1 if label == "positive" else -1) for label, chance in chances]


def label(data: Path, folder: Path) -> None:
    files = sorted(folder.glob("sst2-*.labels"))
    if not files:
        sys.exit(f"{folder} has no sst2-*.labels; write them with regard classify, as recipes/sst2-film.toml says")
    guessed = iter(said(folder / "reviews.labels"))
    known = {"positive": 1.0, "negative": -1.0}
    leaning = [known[label] if label else math.tanh(next(guessed) / COOLING / 2) for label, _ in reviews(data)]
    chance, counts = random.Random(1), {"positive": 0, "negative": 0}
    with (folder / "sentences.tsv").open("w", encoding="utf-8") as out:
        for (number, text), each in zip(sentences(data), zip(*map(said, files), strict=True), strict=True):
            odds = sum(each) / len(each) / COOLING + REVIEW * leaning[number]
            name = "positive" if chance.random() < 1 / (1 + math.exp(-odds)) else "negative"
            counts[name] += 1
            out.write(f"{name}\t{text}\n")
    print(f"{folder / 'sentences.tsv'}: {counts} by {', '.join(file.stem for file in files)} and their reviews")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("split", "label"):
        sys.exit(__doc__)
    {"split": split, "label": label}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
