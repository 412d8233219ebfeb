"""Guessing ahead, as a person asks for it: the same text, a clear word where it can't be, and a draft that fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.decoding import speculation
from regard.door import Model
from regard.errors import BundleError, ConfigError

Models, Bundles = Callable[[str], Model], Callable[[str], Path]
HOW: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 3}, {"seed": 4, "temperature": 1.2}, {"beam_size": 1}]
LONG = {"max_length": 40, "min_length": 40}  # far enough to go round in circles


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many guesses were read, pass by pass."""
    seen: list[int] = []
    original = speculation.Ahead._checked

    def told(self: speculation.Ahead, words: Any) -> list[int]:
        seen.append(len(words))
        return original(self, words)

    monkeypatch.setattr(speculation.Ahead, "_checked", told)
    return seen


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("guesser", ["ngram", "bundle", "model"])
def test_a_continuation_is_the_same(model: Models, bundle: Bundles, how: dict[str, Any], guesser: str, offered: list[int]) -> None:
    writer = model("writer")
    speculate = {"ngram": "ngram", "bundle": bundle("writer"), "model": writer}[guesser]
    plain = writer.generate("the cat", **LONG, **how)
    guessed = writer.generate("the cat", **LONG, **how, speculate=speculate)
    assert (guessed.text, guessed.ids, guessed.ended) == (plain.text, plain.ids, plain.ended)
    assert guessed.log_probability == pytest.approx(plain.log_probability, abs=1e-4)
    assert offered
    assert "".join(writer.stream("the cat", **LONG, **how, speculate=speculate)) == "".join(writer.stream("the cat", **LONG, **how))


def test_translations_too(model: Models, offered: list[int]) -> None:
    translator, other = model("translator"), model("other_translator")
    for guesser in ("ngram", other):
        for text in ("1 2 3 4", "7 7 7 7 7 7"):
            plain = translator.translate(text, "same", beam_size=1)
            assert translator.translate(text, "same", beam_size=1, speculate=guesser).ids == plain.ids
    assert offered


def test_off_is_off(model: Models, offered: list[int]) -> None:
    model("writer").generate("the cat", **LONG, speculate="off")
    model("writer").generate(["the cat", "a bird"], **LONG, speculate="ngram")  # read together
    assert not offered


def test_what_does_not_fit_is_refused(model: Models, tmp_path: Path) -> None:
    writer = model("writer")
    for options in ({"beam_size": 4}, {"samples": 2}, {"mbr": 3}):
        with pytest.raises(ConfigError, match="one output at a time; take beam_size = 1 or sampling"):
            writer.generate("the cat", speculate="ngram", **options)
    with pytest.raises(ConfigError, match="one output at a time"):
        model("translator").translate("1 2", "same", speculate="ngram")  # by a beam, unless said otherwise
    with pytest.raises(ConfigError, match="a recurrent model can't take back"):
        model("recurrent").translate("1 2", beam_size=1, speculate="ngram")
    with pytest.raises(ConfigError, match="have different tokenizers, so one can't guess for the other"):
        writer.generate("the cat", speculate=model("speller"))
    with pytest.raises(ConfigError, match="can translate, score, evaluate, so it can't guess for"):
        writer.generate("the cat", speculate=model("translator"))
    with pytest.raises(BundleError, match="'ngrams' is neither 'ngram' nor 'off', so it should be a draft model: there is no model"):
        writer.generate("the cat", speculate="ngrams")
    with pytest.raises(BundleError, match="should be a draft model"):
        writer.generate("the cat", speculate=tmp_path)
