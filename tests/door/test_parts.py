"""Texts of several sentences, each translated on its own by a model that learned single ones."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

import regard
from regard.door import Model
from regard.door.parts import split_of
from regard.errors import ConfigError, RegardWarning, ShapeError
from regard.recipe import parse_recipe
from regard.shipped import shipped
from regard.training.run import run_recipe
from tests.cli.running import run
from tests.door.trained import QUIET

Models = Callable[[str], Model]
SENTENCES = ["I love you.", "Where is the station?", "Dr. Smith lives in the U.S. now.", "It is late!"]


@pytest.fixture(scope="module")
def shipped_translator() -> Model:
    return regard.load("translator", device="cpu", precision="float32")


@pytest.fixture
def translator(model: Models) -> Model:
    return model("translator")


def test_a_line_is_translated_sentence_by_sentence(shipped_translator: Model) -> None:
    model = shipped_translator
    warnings: list[str] = []
    model.warn = warnings.append
    lines = [" ".join(SENTENCES), "\n\n".join(SENTENCES[:2]), SENTENCES[0], ""]
    answers = model.translate([*lines, *SENTENCES], "it", n_best=2)
    alone = answers[len(lines) :]
    texts = [answer.text for answer in alone]
    assert [answer.text for answer in answers[:4]] == [" ".join(texts), "\n\n".join(texts[:2]), texts[0], ""]
    whole = answers[0]
    assert [part.part for part in whole.parts] == SENTENCES
    assert [part.text for part in whole.parts] == texts
    assert whole.score == pytest.approx(sum(answer.score for answer in alone))
    assert whole.alternatives[0].text == " ".join(answer.alternatives[0].text for answer in alone)
    assert [token for token, _ in whole.log_probability_of_each] == list(whole.tokens)
    assert (answers[2].parts, answers[2].part) == ((), "")
    assert warnings == []
    assert whole.as_json()["parts"][1]["part"] == SENTENCES[1]


def test_what_each_looked_at_stays_with_the_part(translator: Model) -> None:
    answer = translator.translate("1 2 3. 4 5.", "back", attention=True)
    assert answer.alignment is None
    for part in answer.parts:
        assert part.alignment is not None
        assert part.alignment.shape == (len(part.tokens) + part.ended, len(part.source))


def test_four_hundred_sentences_are_four_hundred(translator: Model) -> None:
    assert len(translator.translate(" ".join(["1 2."] * 400), "back", beam_size=1).parts) == 400


def test_a_long_sentence_among_others_is_split_and_said_to_be(translator: Model) -> None:
    said: list[str] = []
    quiet = regard.door.Model(translator.network, translator.tokenizer, name="it")
    quiet.warn = said.append
    answer = quiet.translate(f"1 2. {'3 4 5 ' * 12}6. 7.", "back")
    assert len(answer.parts) == 4
    assert len(said) == 1
    assert re.fullmatch(r"text 1: a sentence of \d+ tokens, and it reads 31 at once; it was translated in 2 parts", said[0])
    with pytest.raises(ShapeError, match="tokens, and it reads 31 at once; shorten it, or have it split"):
        quiet.translate("3 4 5 " * 12, "back", split="none")


def test_what_stands_between_parts_stays(translator: Model) -> None:
    """Lines, blank ones and indents, where a text is split for its length alone."""
    space = "\r\n\r\n\t"
    with pytest.warns(RegardWarning, match="translated in 3 parts"):
        answer = translator.translate(space.join(["3 4 5 6 7 8 9 1 2 3 4 5 6 7 8 9 1 2 3."] * 3), "back", split="length")
    assert answer.text == space.join(part.text for part in answer.parts)


def test_how_it_is_split_is_said_by_the_config_or_whoever_asks(translator: Model) -> None:
    assert translator.config.split == "sentences"  # as the rows were that it learned from
    two = "1 2. 3 4."
    assert len(translator.translate(two, "back").parts) == 2
    for split in ("length", "none"):
        assert translator.translate(two, "back", split=split).parts == ()  # type: ignore[arg-type]
    assert split_of(translator, {"require": ["5"]}) == "length"  # required of the text, not of every sentence
    assert split_of(translator, {"require": ["5"], "split": "sentences"}) == "sentences"
    with pytest.raises(ConfigError, match="split = 'words' is unknown"):
        translator.translate(two, "back", split="words")  # type: ignore[arg-type]
    assert json.loads((shipped()["translator"] / "config.json").read_text())["split"] == "sentences"


def test_only_what_is_translated_is_split(model: Models) -> None:
    with pytest.raises(ConfigError, match="split is for texts to be translated; leave it out"):
        model("writer").generate("a bird", split="sentences")


def test_a_trace_is_of_one_pass(translator: Model) -> None:
    whole = translator.trace("1 2. 3 4.", "back")
    assert whole.answer.text == translator.translate("1 2. 3 4.", "back", split="length").text
    with pytest.raises(ShapeError, match="the text has 2 sentences, and each is translated in a pass of its own; trace one of them"):
        translator.trace("1 2. 3 4.", "back", split="sentences")


def test_on_the_command_line(bundle: Callable[[str], object]) -> None:
    asked = ("translate", "1 2. 3 4.", "--to", "back", "-m", str(bundle("translator")), "--format", "json")
    assert [part["part"] for part in json.loads(run(*asked).out)["parts"]] == ["1 2.", "3 4."]
    assert "parts" not in json.loads(run(*asked, "--split", "length").out)


@pytest.mark.parametrize(("row", "split"), [("One {0}. Two {0}.", "length"), ("One {0}, two {0}.", "sentences")])
def test_training_notes_what_rows_are_like(tmp_path: object, row: str, split: str) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    lines = "".join(f"{row.format(number)}\t{number}\n" for number in range(60))
    (folder / "pairs.tsv").write_text(lines, encoding="utf-8")
    settings = {
        "task": "translate",
        "data": {"train": [str(folder / "pairs.tsv")], "max_length": 48, "dev_share": 0.1},
        "tokenizer": {"size": 280},
        "model": {"width": 16, "heads": 2, "layers": 1, "feedforward": 16},
        "training": {"steps": 1, "batch_tokens": 256, "warmup": 1, "validate_every": 1, "checkpoint_every": 1, "keep": 1},
        "decoding": {"examples": 0, "max_length": 8},
    }
    made = run_recipe(parse_recipe(settings), folder / "run", console=QUIET)
    assert json.loads((made / "config.json").read_text())["split"] == split
