"""A difference is called real when it is, and only then; sacreBLEU's command line says the same."""

from __future__ import annotations

import io
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from regard.errors import ConfigError, CorpusError
from regard.evaluation import compare
from regard.evaluation.compare import Comparison, compare_accuracy, compare_perplexity, paired_bootstrap
from regard.evaluation.metrics import accuracy, perplexity, translation_scores

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "over", "green", "hill", "with", "small", "bird"]


def sentences(count: int, seed: int = 0) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(4, 15))).capitalize() + "." for _ in range(count)]


def spoilt(texts: list[str], share: float, seed: int) -> list[str]:
    chance = random.Random(seed)
    return [" ".join(chance.choice(WORDS) if chance.random() < share else word for word in text.split()) for text in texts]


def shown(comparison: Comparison, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    comparison.show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def command_line(tmp_path: Path, resamples: int, **systems: list[str]) -> dict[str, tuple[list[float], list[float]]]:
    """The value, mean and half interval of each figure for both systems, and the p of the second, as sacreBLEU prints them."""
    for name, texts in systems.items():
        (tmp_path / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    options = ["-m", "bleu", "chrf", "ter", "--paired-bs", "-w", "10", "-f", "latex", "--paired-bs-n"]
    done = subprocess.run(
        [sys.executable, "-m", "sacrebleu", "ref", "-i", "a", "b", *options, str(resamples)],
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.rstrip("\\ ").split(" & ")[1:] for line in done.stdout.splitlines() if re.match(r"\s*(Baseline: a|b) &", line)]
    numbers = [[[float(number) for number in re.findall(r"\d+\.\d+", cell)] for cell in row] for row in rows]
    return {name: (one, other) for name, one, other in zip(("BLEU", "chrF", "TER"), *numbers, strict=True)}


def test_figures_are_those_of_sacrebleus_command_line(tmp_path: Path) -> None:
    references = sentences(120)
    a, b = spoilt(references, 0.3, 1), spoilt(references, 0.28, 2)
    theirs = command_line(tmp_path, 300, ref=references, a=a, b=b)
    ours = paired_bootstrap(a, b, references, resamples=300)
    for name, (one, other) in theirs.items():
        row = ours[name]
        for figure, (value, mean, half) in ((row.a, one), (row.b, other[:3])):
            assert (figure.value, figure.low, figure.high) == pytest.approx((value, mean - half, mean + half), abs=1e-4), name
        assert row.p == pytest.approx(other[3], abs=6e-5), name  # it prints four digits
        assert row.difference == row.b.value - row.a.value
        assert "bs:300|seed:12345|" in str(row.signature)
    scores = translation_scores(b, references, ter=True)
    assert scores.ter is not None
    assert (ours["BLEU"].b.value, ours["chrF"].b.value, ours["TER"].b.value) == (scores.bleu.value, scores.chrf.value, scores.ter.value)


def test_a_better_translator() -> None:
    references = sentences(150)
    good, bad = spoilt(references, 0.1, 1), spoilt(references, 0.4, 2)
    found = paired_bootstrap(bad, good, references, names=("old", "new"))
    assert all(row.real for row in found.differences)
    assert found["BLEU"].difference > 0 > found["TER"].difference  # fewer edits are better
    assert found.sentence().splitlines()[0] == f"new is better by {found['BLEU'].difference:.1f} BLEU (p = 0.001)"
    assert f"new is better by {-found['TER'].difference:.1f} TER" in found.sentence()
    mirrored = paired_bootstrap(good, bad, references, names=("new", "old"))
    for row in found.differences:
        other = mirrored[row.figure]
        assert (other.a, other.b, other.difference, other.p) == (row.b, row.a, -row.difference, row.p)
    assert mirrored.sentence() == found.sentence()


def test_equal_translators_never_differ() -> None:
    references = sentences(60)
    same = spoilt(references, 0.3, 1)
    found = paired_bootstrap(same, same, references, resamples=200)
    assert [row.p for row in found.differences] == [1, 1, 1]  # sacreBLEU says 0.005
    assert found.sentence() == "no difference that this data could show (p = 1 for BLEU, 1 for chrF, 1 for TER)"
    shouted = paired_bootstrap(same, [text.upper() for text in same], references, resamples=200)
    assert shouted["BLEU"].real
    assert shouted["TER"].p == 1  # it is blind to case
    assert "TER: no difference that this data could show (p = 1)" in shouted.sentence()


def test_a_few_sentences_are_no_evidence() -> None:
    found = paired_bootstrap(["a dog sat."], ["a cat sat."], ["a cat sat."])
    assert found["BLEU"].difference > 50
    assert [row.p for row in found.differences] == [1, 1, 1]  # each draw of a single sentence is that sentence


def test_nothing_is_printed_and_no_process_is_made(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))
    tokens = [text[:-1] + " ." for text in sentences(120)]  # which sacreBLEU would complain of
    paired_bootstrap(tokens, tokens, tokens, ter=False, resamples=100)
    assert capfd.readouterr() == ("", "")
    assert "SACREBLEU_SEED" not in os.environ


def test_the_seed_alone_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    references = sentences(60)
    a, b = spoilt(references, 0.3, 1), spoilt(references, 0.3, 2)
    first = paired_bootstrap(a, b, references, ter=False, resamples=200)
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert paired_bootstrap(a, b, references, ter=False, resamples=200) == first
    assert os.environ["SACREBLEU_SEED"] == "none"
    other = paired_bootstrap(a, b, references, ter=False, resamples=200, seed=7)
    assert other["BLEU"].a.value == first["BLEU"].a.value
    assert other["BLEU"].a.low != first["BLEU"].a.low
    assert "seed:7|" in str(other["BLEU"].signature)
    right = [np.random.default_rng(seed).random(100) < 0.7 for seed in (1, 2)]
    assert compare_accuracy(*right) == compare_accuracy(*right)
    assert compare_accuracy(*right, seed=1) != compare_accuracy(*right, seed=2)


def test_accuracy() -> None:
    chance = np.random.default_rng(0)
    a = chance.random(400) < 0.7
    b = a | (chance.random(400) < 0.2)
    found = compare_accuracy(a.tolist(), b.tolist())
    row = found["accuracy"]
    assert row.a.value == pytest.approx(accuracy(a.tolist(), [True] * 400))
    assert row.b.value - row.a.value == pytest.approx(row.difference)
    assert row.a.low < row.a.value < row.a.high
    # A share's interval and that of the mean gap of pairs are known in closed form, where examples are many.
    error = math.sqrt(row.a.value * (1 - row.a.value) / 400)
    assert (row.a.low, row.a.high) == pytest.approx((row.a.value - 1.96 * error, row.a.value + 1.96 * error), abs=0.004)
    gaps = b.astype(float) - a
    error = gaps.std() / math.sqrt(400)
    assert row.interval == pytest.approx((gaps.mean() - 1.96 * error, gaps.mean() + 1.96 * error), abs=0.004)
    assert row.real
    assert found.sentence() == f"B is better by {100 * row.difference:.1f} points of accuracy (p = 0.0001)"
    mirrored = compare_accuracy(b.tolist(), a.tolist())["accuracy"]
    assert (mirrored.a, mirrored.b, mirrored.p, mirrored.difference) == (row.b, row.a, row.p, -row.difference)


def test_equal_systems_have_p_1() -> None:
    right = [True, False, True] * 30
    assert compare_accuracy(right, right)["accuracy"].p == 1
    assert compare_accuracy(right, right).sentence() == "no difference that this data could show (p = 1)"
    surprise = np.random.default_rng(0).random(50).tolist()
    assert compare_perplexity(surprise, surprise, [3] * 50)["perplexity"].p == 1
    swapped = compare_accuracy([True, False] * 40, [False, True] * 40)["accuracy"]
    assert (swapped.difference, swapped.p) == (0, 1)


@pytest.mark.parametrize(("differing", "p"), [(1, 1), (3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_so_few_differing_examples_show_only_so_much(differing: int, p: float) -> None:
    """As the sign test has it: six of six are the least that can be called real."""
    row = compare_accuracy([False] * differing + [True] * 4, [True] * (differing + 4))["accuracy"]
    assert row.p >= p
    assert not row.real or differing == 6
    if differing > 3:
        all_differ = compare_accuracy([False] * differing, [True] * differing)["accuracy"]
        assert all_differ.p == p


def test_p_is_below_5_percent_in_5_percent_of_cases_without_a_difference() -> None:
    chance = np.random.default_rng(0)
    cases = 300
    lucky = sum(compare_accuracy(chance.random(200) < 0.6, chance.random(200) < 0.6, resamples=300)["accuracy"].real for _ in range(cases))
    assert 0.02 * cases < lucky < 0.09 * cases


def test_perplexity() -> None:
    chance = np.random.default_rng(0)
    counts = chance.integers(1, 40, 300)
    a = counts * chance.gamma(4, 0.5, 300)
    b = a - 0.5 * counts + chance.normal(0, 0.5, 300)
    row = compare_perplexity(a.tolist(), b.tolist(), counts.tolist())["perplexity"]
    assert row.a.value == pytest.approx(perplexity(a.sum(), int(counts.sum())))  # of sums, not a mean of means
    assert row.b.value == pytest.approx(perplexity(b.sum(), int(counts.sum())))
    assert row.real
    assert row.interval is not None
    assert row.interval[0] < row.difference < row.interval[1] < 0
    assert row.sentence(("old", "new")) == f"new is better by {-row.difference:.1f} perplexity (p = {row.p:.2g})"
    less = compare_perplexity(a.tolist(), (a + chance.normal(0, 5, 300)).tolist(), counts.tolist())
    assert not less["perplexity"].real


def test_a_perplexity_too_large_for_a_number_is_no_trouble() -> None:
    found = compare_perplexity([1e4] * 20, [2e4] * 20, [1] * 20)
    assert found["perplexity"].a.value == math.inf
    assert json.loads(json.dumps(found.as_json(), allow_nan=False))["differences"][0]["a"]["value"] is None


def test_draws_in_parts_are_draws_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    right = [np.random.default_rng(seed).random(50) < 0.7 for seed in (1, 2)]
    at_once = compare_accuracy(*right, resamples=1000)
    monkeypatch.setattr(compare, "DRAWN_AT_ONCE", 70)
    assert compare_accuracy(*right, resamples=1000) == at_once


def test_as_json_and_as_a_table() -> None:
    references = sentences(60)
    found = paired_bootstrap(spoilt(references, 0.4, 1), spoilt(references, 0.1, 2), references, names=("runs/[old]", "new"), resamples=200)
    told = json.loads(json.dumps(found.as_json()))
    assert told["names"] == ["runs/[old]", "new"]
    assert (told["examples"], told["resamples"], told["seed"]) == (60, 200, 12345)
    assert told["differences"][0]["figure"] == "BLEU"
    assert told["differences"][0]["a"] == vars(found["BLEU"].a)
    assert told["differences"][0]["real"] is True
    assert told["sentence"] == found.sentence()
    page = shown(found)
    assert "runs/[old]" in page
    assert f"{found['TER'].difference:+.2f}" in page
    assert "lower is better" in page
    assert str(found["chrF"].signature) in page
    assert page.endswith(f"{found.sentence()}\n")
    assert "…" not in page.replace(" … ", "")  # nothing is cut off at 80 columns
    assert "76.00 %" in shown(compare_accuracy([True] * 19 + [False] * 6, [True] * 25))


def test_what_cannot_be_compared_is_said() -> None:
    with pytest.raises(CorpusError, match="1 of A, 2 of B, 2 of the references; both systems need the same examples"):
        paired_bootstrap(["x"], ["x", "y"], ["x", "y"])
    with pytest.raises(CorpusError, match="there are no examples"):
        paired_bootstrap([], [], [])
    with pytest.raises(CorpusError, match="2 of A, 1 of B; both systems"):
        compare_accuracy([True, False], [True])
    with pytest.raises(CorpusError, match="example 2 of B is inf"):
        compare_perplexity([1.0, 2.0], [1.0, math.inf], [1, 1])
    with pytest.raises(CorpusError, match="example 1 has no tokens"):
        compare_perplexity([1.0, 2.0], [1.0, 2.0], [0, 1])
    with pytest.raises(ConfigError, match="10 resamples say too little"):
        compare_accuracy([True], [True], resamples=10)
    with pytest.raises(ConfigError, match="seed 0: sacreBLEU needs 1 or more"):
        paired_bootstrap(["x"], ["x"], ["x"], seed=0)
    many = ["x"] * 10_000
    with pytest.raises(CorpusError, match="10,000 resamples of 10,000 sentences are more than sacreBLEU can hold; take 3,000 resamples"):
        paired_bootstrap(many, many, many, resamples=10_000)
    many = ["x"] * 100_000
    with pytest.raises(CorpusError, match="compare on 30,000 sentences"):
        paired_bootstrap(many, many, many)
