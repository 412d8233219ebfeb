"""Figures as a person sees them: all there, nothing cut off."""

from __future__ import annotations

import io

from rich.console import Console

from regard.evaluation.metrics import Confusion, confusion, translation_scores
from regard.evaluation.tables import show_confusion, show_scores


def page(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_scores_with_their_signatures() -> None:
    scores = translation_scores(["a cat sat on the mat"], ["a cat sat on a mat"], ter=True)
    assert scores.ter is not None
    console = page(40)
    show_scores(scores, console)
    lines = text(console).splitlines()
    for line, name, score in zip(lines, ("BLEU", "chrF", "TER"), (scores.bleu, scores.chrf, scores.ter), strict=False):
        assert line.split()[:2] == [name, f"{score.value:.2f}"]
        assert f"{name} {score.signature}" in lines  # in one line, however narrow the console
    assert "lower is better" in lines[2]


def test_scores_without_ter() -> None:
    console = page()
    show_scores(translation_scores(["a"], ["a"]), console)
    assert "TER" not in text(console)


def test_a_confusion() -> None:
    gold = ["cat", "dog", "dog", "[emu]", "cat", "dog"]
    console = page()
    show_confusion(confusion(["cat", "dog", "cat", "dog", "cat", "dog"], gold), console)
    lines = [line.split() for line in text(console).splitlines()]
    assert lines[0] == ["rows:", "what", "is", "right;", "columns:", "what", "was", "predicted"]
    assert lines[1:5] == [["[emu]", "cat", "dog"], ["[emu]", "0", "0", "1"], ["cat", "0", "2", "0"], ["dog", "0", "1", "2"]]
    assert lines[6] == ["label", "precision", "recall", "F1", "examples"]
    assert lines[7:10] == [
        ["[emu]", "0.0%", "0.0%", "0.0%", "1"],
        ["cat", "66.7%", "100.0%", "80.0%", "2"],
        ["dog", "66.7%", "66.7%", "66.7%", "3"],
    ]
    assert text(console).splitlines()[-1] == "accuracy 66.7% of 6 examples, macro F1 48.9%"


def test_a_confusion_too_wide_lists_the_most_frequent_mistakes() -> None:
    labels = tuple(f"number {index}" for index in range(15))
    counts = tuple(tuple(9 if i == j else 5 if (i, j) == (2, 7) else 1 if j == 0 else 0 for j in range(15)) for i in range(15))
    console = page()
    show_confusion(Confusion(labels, counts), console)
    lines = text(console).splitlines()
    assert lines[0] == "the most frequent mistakes"
    assert lines[2].split() == ["5", "number", "2", "number", "7"]
    assert lines[12] == ""  # ten of them
    assert "…" not in text(console)
    wide = page(400)
    show_confusion(Confusion(labels, counts), wide)
    assert text(wide).startswith("rows: what is right")


def test_many_labels_without_a_mistake() -> None:
    names = [str(index) for index in range(100)]
    console = page()
    show_confusion(confusion(names, names), console)
    assert "mistakes" not in text(console)
    assert "accuracy 100.0% of 100 examples, macro F1 100.0%" in text(console)
