"""The sentences that recipes/sst2-film.toml learns from: how reviews are split, and where their labels come from."""

from __future__ import annotations

import gzip
import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def film() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sst2_film", Path(__file__).parent.parent / "recipes/sst2_film.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written(root: Path, labelled: list[str], unlabelled: list[str]) -> Path:
    for name, lines in (("classify/imdb.train.tsv.gz", labelled), ("lm/imdb-unlabelled.txt.gz", unlabelled)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(root / name, "wt", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    return root


@pytest.mark.parametrize(
    ("natural", "treebank"),  # as SST-2 has such words
    [
        ("it can't be", "it ca n't be"),
        ("I won't sit still", "I wo n't sit still"),
        ("he doesn't", "he does n't"),
        ("I cannot", "I can not"),
        ("the (bad) end", "the -lrb- bad -rrb- end"),
        ('a "good" film', "a `` good '' film"),
    ],
)
def test_spelling_is_sst2s(film: ModuleType, natural: str, treebank: str) -> None:
    assert film.respelt(natural).split() == treebank.split()


def test_reviews_become_sentences(film: ModuleType, tmp_path: Path) -> None:
    data = written(
        tmp_path, ["positive\tThis is one sentence. And this is another!<br />Too short."], ["And this is another! Mr. X likes his film."]
    )
    assert [(number, text) for number, text in film.sentences(data)] == [
        (0, "This is one sentence."),
        (0, "And this is another!"),
        (1, "X likes his film."),
    ]


def test_labels_are_what_models_and_reviews_say_together(film: ModuleType, tmp_path: Path) -> None:
    """Models that don't know leave it to the review, at its odds; models that do are believed; unlabelled reviews go by their model."""
    count = 4000
    data = written(
        tmp_path / "data",
        [f"positive\tNumber {n} is unknown to them. Number {n} is bad for sure." for n in range(count)],
        [f"Number {n} has no known label." for n in range(count)],
    )
    folder = tmp_path / "film"
    film.split(data, folder)
    texts = (folder / "sentences.txt").read_text().splitlines()
    for model in ("sst2-1", "sst2-2"):
        lines = ("negative\t1.0000\n" if "for sure" in text else "positive\t0.5000\n" for text in texts)
        (folder / f"{model}.labels").write_text("".join(lines))
    (folder / "reviews.labels").write_text("negative\t1.0000\n" * count)
    film.label(data, folder)
    rows = [line.split("\t") for line in (folder / "sentences.tsv").read_text().splitlines()]
    assert [text for _, text in rows] == texts
    share = Counter(next(key for key in ("unknown", "for sure", "no known") if key in text) for label, text in rows if label == "positive")
    assert share["unknown"] / count == pytest.approx(0.731, abs=0.03)  # odds of e to 1
    assert share["no known"] / count == pytest.approx(0.269, abs=0.03)
    assert share["for sure"] / count == pytest.approx(0.019, abs=0.01)  # odds of 1 to 20,000, cooled, and 1 to e for the review


def test_without_models_nothing_is_labelled(film: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no sst2-\*\.labels; write them with regard classify"):
        film.label(written(tmp_path, [], []), tmp_path)
