"""`regard generate --speculate`: the same lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.running import run

Bundles = Callable[[str], Path]


def test_the_same_lines(bundle: Bundles) -> None:
    asked = ("generate", "the cat", "-m", bundle("writer"), "--max-length", "40", "--min-length", "40", "--seed", "5")
    plain = run(*asked)
    assert plain.code == 0
    for guesser in ("ngram", "off", bundle("writer")):
        assert run(*asked, "--speculate", guesser).out == plain.out


def test_what_does_not_fit_is_said(bundle: Bundles) -> None:
    done = run("generate", "the cat", "-m", bundle("writer"), "--speculate", bundle("speller"))
    assert done.code == 1
    assert "take a draft that was made with the same tokenizer" in done.err
    done = run("generate", "the cat", "-m", bundle("writer"), "--speculate", "ngrams")
    assert done.code == 1
    assert "'ngrams' is neither 'ngram' nor 'off'" in done.err
    done = run("generate", "the cat", "-m", bundle("writer"), "--speculate", "ngram", "--beam-size", "4")
    assert done.code == 1
    assert "take beam_size = 1 or sampling" in done.err
