"""Labels, missing words and vectors, against the same by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.data.batch import Tokens
from regard.door import Model
from regard.door.reading import around_masks, masked_ids
from regard.errors import ConfigError, RegardError, ShapeError
from regard.recipe import TokenizerSettings
from regard.text.tokenizer import Tokenizer
from tests.closeness import assert_close
from tests.door.trained import POEM, reviews

Models = Callable[[str], Model]
TEXTS = ["this lovely film", "", "a very very dull story", "🦆 what"]


def states(model: Model, text: str) -> torch.Tensor:
    """Of one text on its own (length, width)."""
    ids = [model.config.start_token, *model.tokenizer.encode(text), model.config.end_token]
    with torch.inference_mode():
        return model.encoder(Tokens(torch.tensor([ids])))[0]


# Labels


def test_labels(model: Models) -> None:
    critic = model("critic")
    rows = reviews(40, seed=9)
    found = critic.classify([text for _, text in rows])
    assert [answer.label for answer in found] == [label for label, _ in rows]
    for answer, (_, text) in zip(found, rows, strict=True):
        pooled = states(critic, text).mean(0)
        with torch.inference_mode():
            alone = critic.encoder.classifier(pooled).softmax(-1)  # type: ignore[misc]
        assert list(answer.probabilities) == ["bad", "good"]
        assert_close(torch.tensor(list(answer.probabilities.values())), alone, critic.network)
        assert answer.probability == max(answer.probabilities.values())
        assert str(answer) == answer.label
    assert critic.classify("").label in ("bad", "good")


def test_a_text_that_is_too_long_is_cut_and_that_is_said(model: Models) -> None:
    critic, said = copy(model("critic")), []
    critic.warn = said.append
    long = " ".join(["film"] * 22 + ["awful"] * 22)
    found, want = critic.classify(["film", long], first=4)[1], critic.classify(" ".join(["film"] * 22))
    assert_close(*(torch.tensor(list(each.probabilities.values())) for each in (found, want)), critic.network)
    assert said == [f"text 6: 44 tokens, and {critic.name} reads 22; the rest was left out"]


# Missing words


@pytest.mark.parametrize("name", ["guesser", "word_guesser"])
@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("the cat [MASK] on the mat.", "the cat sat on the mat."),
        ("the dog sat on the <mask>.", "the dog sat on the log."),
        ("[MASK] falls on the old town.", "rain falls on the old town."),
        ("my sister [MASK] a long book.", "my sister reads a long book."),
        ("a bird [MASK] over the [MASK].", "a bird flew over the house."),
        ("my sister reads a long book[MASK]", "my sister reads a long book."),
    ],
)
def test_a_memorised_sentence_is_filled(model: Models, name: str, text: str, filled: str) -> None:
    answer = model(name).fill(text, choices=3)
    assert str(answer) == answer.text == filled
    assert len(answer.choices) == text.count("[MASK]") + text.count("<mask>")
    for place in answer.choices:
        assert len(place) == 3
        chances = [choice.probability for choice in place]
        assert chances == sorted(chances, reverse=True)
        assert 0 < sum(chances) <= 1
    assert answer.as_json()["choices"][0][0]["word"] in filled


def test_what_is_unknown_stays_in_the_text(model: Models) -> None:
    assert model("word_guesser").fill("Zorblax  [MASK] (on) the mat 🦆").text.startswith("Zorblax  ")
    assert model("word_guesser").fill("Zorblax  [MASK] (on) the mat 🦆").text.endswith(" (on) the mat 🦆")
    assert model("guesser").fill("Zorblax [MASK]  (on) the mat 🦆").text.endswith("  (on) the mat 🦆")


def test_filling_depends_on_the_text_alone(model: Models) -> None:
    guesser = model("guesser")
    texts = ["the cat [MASK] on the mat.", "[MASK]", "[MASK] [MASK] [MASK] on the [MASK] town.", "a bird [MASK]"]
    together, alone = guesser.fill(texts), [guesser.fill(text) for text in texts]
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    for one, other in zip(together, alone, strict=True):
        found, want = (torch.tensor([choice.probability for place in each.choices for choice in place]) for each in (one, other))
        assert_close(found, want, guesser.network)


def test_a_masked_word_equals_the_head_by_hand(model: Models) -> None:
    guesser = model("guesser")
    ids = [1, *guesser.tokenizer.encode("the cat sat on the mat."), 2]
    place = guesser.tokenizer.pieces(ids).index(" sat")
    ids[place] = guesser.tokenizer.mask_id
    with torch.inference_mode():
        logits = guesser.encoder.fill(guesser.encoder(Tokens(torch.tensor([ids]))))[0, place].clone()
        logits[sorted(guesser.tokenizer.special_ids)] = float("-inf")
    best = guesser.fill("the cat [MASK] on the mat.", choices=1).choices[0][0]
    assert_close(torch.tensor(best.probability), logits.softmax(-1).max(), guesser.network)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "char"])
def test_a_mask_takes_the_place_of_a_word_and_of_nothing_else(kind: str) -> None:
    """What stands around it is read as it is in the whole text, be it a space, a bracket or nothing."""
    lines = [*(f"{line}." for line in POEM[:5]), "(the cat) sat, on: “the” mat! 3 4 5"]
    tokenizer = Tokenizer.train(lines * 20, TokenizerSettings(kind=kind, size=400 if kind in ("bpe", "unigram") else 60))  # type: ignore[arg-type]
    model: Any = SimpleNamespace(tokenizer=tokenizer, config=SimpleNamespace(context=100), name="m", place=str)
    for line in lines:
        whole = tokenizer.encode(line)
        for word in re.finditer("." if kind == "char" else r"\w+", line):
            text = f"{line[: word.start()]}[MASK]{line[word.end() :]}"
            ids = masked_ids(model, around_masks(model, text, 0), 0)[1:-1]
            place = ids.index(tokenizer.mask_id)
            before, after = ids[:place], ids[place + 1 :]
            assert whole[: len(before)] == before
            assert whole[len(whole) - len(after) :] == after
            assert (
                "".join(tokenizer.pieces(whole[len(before) : len(whole) - len(after)])).removeprefix(" " if kind != "char" else "")
                == word[0]
            )


def test_texts_that_cannot_be_filled(model: Models) -> None:
    guesser = copy(model("guesser"))
    with pytest.raises(RegardError, match=r"text 2: there is no \[MASK\] to fill; write \[MASK\] where a word is missing: 'no mask'"):
        guesser.fill(["a [MASK]", "no mask"])
    with pytest.raises(ShapeError, match=r"text 1: \d+ tokens, and .* reads 24; shorten it"):
        guesser.fill("[MASK]" * 30)
    with pytest.raises(ConfigError, match="choices = 0 should be how many words"):
        guesser.fill("a [MASK]", choices=0)
    assert len(guesser.fill("a [MASK]", choices=10_000).choices[0]) == guesser.tokenizer.size - len(guesser.tokenizer.special_ids)


# Vectors


@pytest.mark.parametrize("name", ["critic", "guesser"])
def test_vectors(model: Models, name: str) -> None:
    loaded = model(name)
    for pooling in ("mean", "first"):
        found = loaded.embed(TEXTS, pooling=pooling)
        assert found.shape == (len(TEXTS), 32)
        for text, vector in zip(TEXTS, found, strict=True):
            rows = states(loaded, text)
            assert_close(vector, rows[0] if pooling == "first" else rows.mean(0), loaded.network)
            assert_close(loaded.embed(text, pooling=pooling), vector, loaded.network)
    assert_close(loaded.embed(TEXTS), loaded.embed(TEXTS, pooling=loaded.config.pooling), loaded.network)  # type: ignore[union-attr]
    unit = loaded.embed(TEXTS, normalise=True)
    assert_close(unit.norm(dim=1), torch.ones(len(TEXTS)), loaded.network)
    assert_close(unit, loaded.embed(TEXTS) / loaded.embed(TEXTS).norm(dim=1, keepdim=True), loaded.network)
    with pytest.raises(ConfigError, match=r"pooling = 'meen' is unknown; did you mean 'mean'\?"):
        loaded.embed("x", pooling="meen")
