"""Figures equal those of the libraries and command lines that others use."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from regard.errors import ConfigError, CorpusError
from regard.evaluation.metrics import accuracy, confusion, exact_match, perplexity, translation_scores
from regard.training.loss import cross_entropy

REFERENCES = [
    'Zwei junge Männer, beide "blond", stehen im Garten (bei 3,5 °C).',
    "Die Frau sagte: „Das kostet 1.234,56 €!“ – und ging.",
    "It's a well-known fact: dogs can't fly, but they'd like to...",
    "Ein Hund läuft über die grüne Wiese & bellt.",
    "Was ist das? Niemand weiß es; niemand fragt.",
]
HYPOTHESES = [
    'Zwei junge Männer, beide "blond", stehen in einem Garten (bei 3,5 °C).',
    "Die Frau sagte: „Das kostet 1.234,50 €“ und ging weg.",
    "It's a well known fact: dogs can't fly, but they would like to...",
    "ein Hund läuft über eine grüne Wiese und bellt.",
    "",
]


def command_line(tmp_path: Path, *options: str) -> dict[str, dict[str, str | float]]:
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in REFERENCES), encoding="utf-8")
    (tmp_path / "hyp").write_text("".join(f"{line}\n" for line in HYPOTHESES), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-i", str(tmp_path / "hyp"), "-w", "10"]
    done = subprocess.run([*command, "-m", "bleu", "chrf", "ter", *options], capture_output=True, text=True, check=True)
    return {entry["name"]: entry for entry in json.loads(done.stdout)}


@pytest.mark.parametrize("tokenize", ["13a", "none", "intl"])
def test_scores_are_those_of_sacrebleus_command_line(tmp_path: Path, tokenize: str) -> None:
    theirs = command_line(tmp_path, "--tokenize", tokenize, "--force")
    ours = translation_scores(HYPOTHESES, REFERENCES, tokenize=tokenize, ter=True)
    assert ours.ter is not None
    for name, score in (("BLEU", ours.bleu), ("chrF2", ours.chrf), ("TER", ours.ter)):
        assert score.value == pytest.approx(theirs[name]["score"], abs=1e-9), name
        assert score.signature == theirs[name]["signature"]
    assert 0 < ours.bleu.value < 100
    assert f"tok:{tokenize}|" in ours.bleu.signature
    assert "version:" in ours.chrf.signature


@pytest.mark.parametrize("name", ["spm", "flores101", "flores200", "spBLEU-1K"])
def test_nothing_is_downloaded_unasked(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object) -> None:
        raise AssertionError("it would be downloaded")

    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.download_file", download)
    with pytest.raises(ConfigError, match=rf"tokenizer {name} needs .*models.*; download it from https://.*, or choose another tokenizer"):
        translation_scores(HYPOTHESES, REFERENCES, tokenize=name)


def test_a_tokenizer_that_needs_what_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(ConfigError, match=r"tokenizer ja-mecab can't be used: .*or choose another"):
        translation_scores(HYPOTHESES, REFERENCES, tokenize="ja-mecab")
    with pytest.raises(ConfigError, match="has no tokenizer 'flores2000'; did you mean 'flores200'"):
        translation_scores(HYPOTHESES, REFERENCES, tokenize="flores2000")


def test_scores_as_json() -> None:
    scores = translation_scores(REFERENCES, REFERENCES)
    assert json.loads(json.dumps(scores.as_json())) == scores.as_json()
    assert scores.as_json().keys() == {"bleu", "chrf"}
    assert scores.as_json()["bleu"] == {"value": pytest.approx(100), "signature": scores.bleu.signature}


def test_each_hypothesis_needs_its_reference() -> None:
    with pytest.raises(CorpusError, match="5 hypotheses for 4 references; each needs its own"):
        translation_scores(HYPOTHESES, REFERENCES[:-1])
    with pytest.raises(CorpusError, match="there are no hypotheses to score"):
        translation_scores([], [])
    with pytest.raises(CorpusError, match="1 predictions for 2 right answers"):
        accuracy(["a"], ["a", "b"])


def test_perplexity() -> None:
    loss = cross_entropy(torch.zeros(7, 31, dtype=torch.double), torch.zeros(7, dtype=torch.long))
    assert perplexity(float(loss.total), int(loss.count)) == pytest.approx(31)  # even odds among 31 words
    assert perplexity(0.0, 3) == 1
    assert perplexity(1e6, 1) == math.inf
    with pytest.raises(CorpusError, match="no tokens"):
        perplexity(0.0, 0)


def test_accuracy_and_confusion() -> None:
    gold = ["cat", "dog", "dog", "emu", "cat", "dog"]
    predicted = ["cat", "dog", "cat", "dog", "cat", "dog"]
    table = confusion(predicted, gold)
    assert table.labels == ("cat", "dog", "emu")
    assert [list(row) for row in table.counts] == confusion_matrix(gold, predicted).tolist()
    assert table.accuracy == accuracy(predicted, gold) == pytest.approx(4 / 6)
    assert table.as_json() == {
        "labels": ["cat", "dog", "emu"],
        "counts": [[2, 0, 0], [1, 2, 0], [0, 1, 0]],
        "accuracy": table.accuracy,
        "macro_f1": table.macro_f1,
        "per_label": [vars(scores) for scores in table.per_label],
    }
    assert confusion(["dog"], ["dog"], labels=["emu", "dog"]).counts == ((0, 0), (0, 1))
    with pytest.raises(CorpusError, match="the label 'emu' is not one of cat, dog"):
        confusion(predicted, gold, labels=["cat", "dog"])


def test_figures_of_each_label_are_those_of_scikit_learn() -> None:
    chance = random.Random(0)
    labels = ["a", "b", "c", "never right", "never seen", "never predicted"]
    gold = chance.choices(["a", "b", "c", "never predicted"], k=200)
    predicted = [chance.choice([right, "a", "b", "never right"]).replace("never predicted", "c") for right in gold]
    table = confusion(predicted, gold, labels)
    theirs = zip(*precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0), strict=True)
    for label, ours, (precision, recall, f1, count) in zip(labels, table.per_label, theirs, strict=True):
        assert (ours.label, ours.count) == (label, count)
        assert (ours.precision, ours.recall, ours.f1) == pytest.approx((precision, recall, f1))
    macro = precision_recall_fscore_support(gold, predicted, labels=labels, average="macro", zero_division=0)[2]
    assert table.macro_f1 == pytest.approx(macro)


def test_exact_match() -> None:
    assert exact_match(["1 2 3", "4 5", "6"], ["1 2 3", "5 4", "6 "]) == pytest.approx(1 / 3)
