"""Translations and continuations: whatever else is asked for at the same time, and by whichever method."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import copy
from typing import Any

import pytest
import torch
from sacrebleu.metrics.chrf import CHRF

from regard.data.batch import Tokens
from regard.door import Model, Written
from regard.errors import ConfigError, RegardError, ShapeError
from regard.nn import record, using
from regard.text.split import split_long
from tests.door.trained import POEM, digits

Models = Callable[[str], Model]
LINES = [" ".join(line) for line in digits(20, seed=5)]
STRANGE = ["", "   ", "🦆", "\x00\x07", "a\ttab", "\u2028", "<end>", "é" * 10, "1" * 29]
LONG = " ".join("123456789" * 5)  # 45 tokens, and the context is 32


@pytest.fixture
def translator(model: Models) -> Model:
    return copy(model("translator"))  # whose warnings are its own


@pytest.fixture
def writer(model: Models) -> Model:
    return model("writer")


def texts(written: list[Written]) -> list[str]:
    return [answer.text for answer in written]


# What must never matter


@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"temperature": 1.0, "seed": 3}, {"mbr": 4}, {"samples": 2}], ids=str)
def test_an_answer_depends_on_its_own_text_alone(translator: Model, options: dict[str, Any]) -> None:
    """Alone or among others; and, but for chance, wherever it stands. Chance goes by the number of a text, whatever came before it."""
    translator.warn = lambda message: None
    lines = [LINES[0], "", LONG, *LINES[1:6], *STRANGE, LINES[6]]
    whole = translator.translate(lines, "back", **options)
    apart = [translator.translate(line, "back", first=number, **options) for number, line in enumerate(lines)]
    assert texts(whole) == texts(apart)
    assert [a.log_probability for a in whole] == pytest.approx([a.log_probability for a in apart], abs=1e-4)
    parts = [*translator.translate(lines[:4], "back", **options), *translator.translate(lines[4:], "back", first=4, **options)]
    assert texts(whole) == texts(parts)
    if options in ({}, {"beam_size": 1}):
        order = random.Random(1).sample(range(len(lines)), len(lines))
        mixed = translator.translate([lines[place] for place in order], "back", **options)
        assert texts(mixed) == [whole[place].text for place in order]


def test_prompts_depend_on_themselves_alone(writer: Model) -> None:
    prompts = ["the cat", "", "rain", "héllo 🦆", "my"]
    whole = writer.generate(prompts, seed=4, max_length=12)
    assert texts(whole) == [writer.generate(prompt, seed=4, max_length=12, first=number).text for number, prompt in enumerate(prompts)]
    assert len(set(texts(writer.generate(["the"] * 8, seed=4, temperature=2.0)))) > 1  # the same prompt twice is drawn for twice


def test_a_seed_repeats_and_another_does_not(translator: Model) -> None:
    drawn = [texts(translator.translate(LINES, "back", temperature=1.5, seed=seed)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_seed_alone_asks_for_no_chance(translator: Model) -> None:
    assert texts(translator.translate(LINES, "back", seed=9)) == texts(translator.translate(LINES, "back"))
    assert texts(translator.translate(LINES, "back", seed=9, beam_size=2)) == texts(translator.translate(LINES, "back", beam_size=2))


def test_beam_1_is_greedy(translator: Model) -> None:
    assert texts(translator.translate(LINES, "back", beam_size=1)) == texts(translator.translate(LINES, "back", temperature=0))


# Scores


@pytest.mark.parametrize("name", ["translator", "recurrent", "apart"])
@pytest.mark.parametrize("options", [{}, {"beam_size": 1}, {"temperature": 1.0}], ids=str)
def test_score_is_rescoring(model: Models, name: str, options: dict[str, Any]) -> None:
    loaded = model(name)
    to = "same" if name == "translator" else None
    for text, answer in zip(LINES, loaded.translate(LINES, to, **options), strict=True):
        assert answer.log_probability == pytest.approx(sum(answer.log_probabilities))
        assert len(answer.log_probabilities) == len(answer.ids) + answer.ended
        again = loaded.score(text, answer.text, to=to)
        if answer.ended and loaded.tokenizer.encode(answer.text) == list(answer.ids):
            assert again.log_probability == pytest.approx(answer.log_probability, abs=1e-4)
            assert again.tokens == (*answer.tokens, "<end>")
    assert loaded.translate(LINES[0], to, length_penalty=0.0).score == pytest.approx(
        loaded.translate(LINES[0], to, length_penalty=0.0).log_probability
    )


def test_what_is_read_in_other_tokens_has_another_score(translator: Model) -> None:
    """A model may write "1" and " 1" as it likes; its text is read in one way only."""
    drawn = translator.translate(["🦆 12"] * 40, "same", temperature=3.0, seed=1, max_length=4)
    other = [answer for answer in drawn if answer.ended and translator.tokenizer.encode(answer.text) != list(answer.ids)]
    assert other
    again = translator.score("🦆 12", other[0].text, to="same")
    assert again.tokens[:-1] != other[0].tokens


def test_what_is_cut_off_has_no_end(translator: Model) -> None:
    cut = translator.translate("1 2 3 4 5", "back", max_length=2)
    assert not cut.ended
    assert len(cut.ids) == len(cut.log_probabilities) == 2
    assert cut.as_json()["ended"] is False


# Long, empty and strange texts


def test_an_over_long_text_is_translated_in_parts(translator: Model) -> None:
    said: list[str] = []
    translator.warn = said.append
    long, short = translator.translate([LONG, LINES[0]], "back", first=6)
    assert said == [f"text 7: 46 tokens, and {translator.name} reads 31 at once; it was translated in 2 parts"]
    read = translator.source_tokenizer
    parts = split_long(LONG, lambda part: len(read.encode(part, "back")) <= 31)
    assert len(parts) == 2
    each = translator.translate(parts, "back")
    assert long.text == " ".join(texts(each))
    assert long.log_probability == pytest.approx(sum(part.log_probability for part in each), abs=1e-4)
    assert short.text == translator.translate(LINES[0], "back").text
    several = translator.translate(LONG, "back", n_best=3)
    assert len(several.alternatives) == 2


def test_warnings_are_warnings_unless_someone_listens(model: Models, bundle: Callable[[str], Any]) -> None:
    from regard.door import load

    with pytest.warns(UserWarning, match="text 1: 46 tokens"):
        load(bundle("translator")).translate(LONG, "back")


@pytest.mark.parametrize("length", range(26, 34))
@pytest.mark.parametrize("character", ["1", "Q"])
def test_texts_about_as_long_as_the_context(translator: Model, length: int, character: str) -> None:
    """A tag comes before a text and an end token after it; a Q was never seen, so that the space before the text is a token too."""
    said: list[str] = []
    translator.warn = said.append
    answer = translator.translate(character * length, "back")
    needed = len(translator.source_tokenizer.encode(character * length, "back")) + 1
    assert needed == length + 2 + (character == "Q")
    assert bool(said) == (needed > 32)
    assert len(answer.source) >= needed


def test_nothing_gives_nothing(translator: Model) -> None:
    assert [answer.as_json()["text"] for answer in translator.translate(["", " ", "\t"], "back", n_best=2)] == ["", "", ""]


def test_strange_characters_are_read(translator: Model) -> None:
    assert len(translator.translate(STRANGE, "back")) == len(STRANGE)
    with pytest.raises(RegardError, match="half of a character"):
        translator.translate("\ud800", "back")


# Languages, prefixes, words


def test_a_language_must_be_known(translator: Model, model: Models) -> None:
    assert translator.languages == ("back", "same")
    with pytest.raises(ConfigError, match=r"writes several languages; say which with to= \(on the command line --to\): back, same"):
        translator.translate("1 2")
    with pytest.raises(ConfigError, match=r"can't write 'bakc'; did you mean 'back'\?$"):
        translator.translate("1 2", "bakc")
    with pytest.raises(ConfigError, match="can't write 'it'; it writes one language only, so leave it out"):
        model("recurrent").translate("1 2", "it")


def test_prefixes(translator: Model) -> None:
    assert all(text.startswith("7") for text in texts(translator.translate([*LINES, ""], "back", prefix="7"))[:-1])
    own = translator.translate(["1 2", "", "3 4"], "back", prefix=["5", "6", "7"])
    assert [text[:1] for text in texts(own)] == ["5", "", "7"]
    drawn = translator.translate(["1 2", "", "3 4"], "back", prefix=["5", "6", "7"], temperature=1.0)
    assert [text[:1] for text in texts(drawn)] == ["5", "", "7"]
    with pytest.raises(ConfigError, match="1 prefixes for 2 texts"):
        translator.translate(["1", "2"], "back", prefix=["5"])
    assert translator.translate("1", "back", prefix="1 2 3", max_length=2).text == "1 2 3"
    room = translator.config.context
    with pytest.raises(ConfigError, match=rf"the prefix has \d+ tokens, and .* has room for {room}; shorten it"):
        translator.translate(["1", "", "2"], "back", prefix=["5", "", "7 " * room])
    assert translator.translate(["1", ""], "back", prefix=["5", "7 " * room])[1].text == ""
    with pytest.raises(ConfigError, match="a prefix is a text"):
        translator.translate(["1", "2"], "back", prefix=["5", None])  # type: ignore[list-item]


def test_banned_and_required_words(translator: Model) -> None:
    assert all("1" not in text for text in texts(translator.translate(LINES, "same", ban="1")))
    assert all("8" in text for text in texts(translator.translate(LINES, "same", require=["8"])))
    with pytest.raises(ConfigError, match="required words need a beam"):
        translator.translate("1", "same", require=["8"], beam_size=1)


def test_words_that_cannot_be_written(model: Models) -> None:
    with pytest.raises(ConfigError, match="'zebra' can't be written by this model at all"):
        model("recurrent").translate("1 2", ban=["zebra"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"beem_size": 2}, "there is no option 'beem_size'; did you mean 'beam_size'?"),
        ({"beam_size": 0}, "'beam_size' = 0"),
        ({"beam_size": 2, "temperature": 1.0}, "beam_size belongs to beam search and temperature to sampling; choose one of the two"),
        ({"n_best": 5, "beam_size": 2}, "n_best = 5 hypotheses can't come from a beam of beam_size = 2"),
        ({"n_best": 2, "mbr": 2}, "n_best belongs to beam search and mbr to sampling"),
        ({"mbr": 0}, "mbr = 0 should be how many samples to choose among"),
        ({"mbr": 2, "samples": 3}, "mbr says how many samples are drawn; leave samples out"),
        ({"seed": -1, "temperature": 1.0}, "'seed' = -1"),
        ({"top_p": 0.0}, "'top_p' = 0.0"),
        ({"max_length": "some"}, "'some' is no length"),
        ({"max_length": 0}, "max_length = 0 leaves nothing to write"),
        ({"groups": 3}, "groups = 3 does not divide beam_size = 4"),
    ],
)
def test_options_that_make_no_sense(translator: Model, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        translator.translate("1 2", "back", **options)
    assert says in str(error.value)


def test_several_outputs(translator: Model) -> None:
    best = translator.translate("1 2 3", "back", n_best=6)
    scores = [each.score for each in (best, *best.alternatives)]
    assert len(scores) == 6
    assert scores == sorted(scores, reverse=True)
    assert len({each.text for each in (best, *best.alternatives)}) == 6
    drawn = translator.translate("1 2 3", "back", samples=5, temperature=2.0)
    assert len(drawn.alternatives) == 4


def test_minimum_bayes_risk(translator: Model, writer: Model) -> None:
    """Of the samples, the one with the highest mean chrF against all of them, by a naive loop."""
    metric = CHRF()
    for text in LINES[:6]:
        drawn = translator.translate(text, "back", samples=12, temperature=1.0, seed=3)
        samples = [each.text for each in (drawn, *drawn.alternatives)]
        gains = {one: sum(metric.sentence_score(one, [other]).score for other in samples) / len(samples) for one in samples}
        chosen = translator.translate(text, "back", mbr=12, temperature=1.0, seed=3)
        assert gains[chosen.text] == pytest.approx(max(gains.values()))
        assert sorted([chosen.text, *(each.text for each in chosen.alternatives)]) == sorted(samples)
    drawn = writer.generate("the", samples=4, seed=2)
    assert writer.generate("the", mbr=4, seed=2).text in texts([drawn, *drawn.alternatives])


# Attention


@pytest.mark.parametrize("name", ["translator", "apart"])
def test_attention_of_what_a_beam_chose(model: Models, name: str) -> None:
    loaded = model(name)
    to = "back" if name == "translator" else None
    answer = loaded.translate("1 2 3 4", to, attention=True, n_best=2)
    for each in (answer, *answer.alternatives):
        source = [*loaded.source_tokenizer.encode("1 2 3 4", to), loaded.config.end_token]
        target = [loaded.config.start_token, *each.ids] if each.ended else [loaded.config.start_token, *each.ids[:-1]]
        assert each.attention is not None
        shown = [each.attention.encoder, each.attention.decoder, each.attention.cross]
        sizes = [(len(source), len(source)), (len(target), len(target)), (len(target), len(source))]
        with torch.inference_mode(), using("explicit"), record(loaded.network) as taps:
            loaded.network(Tokens(torch.tensor([source])), Tokens(torch.tensor([target])))
        names = ["encoder.layers.0.attention.weights", "decoder.layers.0.attention.weights", "decoder.layers.0.cross.weights"]
        for weights, size, tap in zip(shown, sizes, names, strict=True):
            assert weights is not None
            assert weights.shape == (1, 4, *size)
            torch.testing.assert_close(weights.sum(-1), torch.ones(1, 4, size[0]))
            torch.testing.assert_close(weights, taps[tap])
        assert each.alignment is not None
        assert each.alignment.shape == (len(target), len(each.source))
        torch.testing.assert_close(each.alignment, shown[2][-1].mean(0))  # type: ignore[index]
    told = answer.as_json()
    assert torch.tensor(told["attention"]["cross"]).shape == answer.attention.cross.shape  # type: ignore[union-attr]
    assert torch.tensor(told["alignment"]).shape == (len(answer.ids) + answer.ended, len(answer.source))
    assert "attention" in told["alternatives"][0]


def test_attention_of_recurrent_models(model: Models) -> None:
    answer = model("recurrent").translate("1 2 3", attention=True)
    assert answer.attention is not None
    assert answer.attention.cross is not None
    assert answer.attention.cross.shape == (1, 1, len(answer.ids) + answer.ended, 4)
    assert answer.attention.encoder is None
    torch.testing.assert_close(answer.alignment.sum(-1), torch.ones(len(answer.ids) + answer.ended))  # type: ignore[union-attr]
    plain = model("recurrent_plain").translate("1 2 3", attention=True)
    assert plain.alignment is None
    assert plain.as_json()["attention"] == {}


def test_attention_of_a_language_model(writer: Model) -> None:
    answer = writer.generate("the cat", attention=True, beam_size=3)
    assert answer.alignment is None
    assert answer.attention is not None
    assert answer.attention.decoder is not None
    length = len(answer.source) + len(answer.ids) + answer.ended - 1
    assert answer.attention.decoder.shape == (1, 4, length, length)
    torch.testing.assert_close(answer.attention.decoder.sum(-1), torch.ones(1, 4, length))
    assert answer.attention.decoder.triu(1).abs().max() == 0


# Continuations


def test_a_memorised_line_goes_on(writer: Model) -> None:
    assert writer.generate("rain falls", temperature=0).text == " on the old town"
    assert writer.generate("rain falls", beam_size=4).text == " on the old town"
    assert writer.generate("", temperature=0).text in POEM


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0}, {"seed": 5}, {"seed": 8, "temperature": 3.0}, {"beam_size": 1, "max_length": 5}, {"ban": ["cat"]}],
    ids=str,
)
@pytest.mark.parametrize("prompt", ["the cat", "", "héllo", "🦆", "h\u0000x "])
@pytest.mark.parametrize("name", ["writer", "speller"])
def test_streaming_is_generating(model: Models, name: str, prompt: str, options: dict[str, Any]) -> None:
    loaded = model(name)
    if name == "speller" and "ban" in options:
        options = {"ban": ["c"]}
    pieces = list(loaded.stream(prompt, **options))
    assert "".join(pieces) == loaded.generate(prompt, **options).text


def test_never_half_a_character(writer: Model) -> None:
    """A duck is four bytes, a token each; no piece shows part of it, though all of them come."""
    whole = "".join(writer.stream("héllo wörld", temperature=0))
    assert "🦆" in whole
    assert "\ufffd" not in whole
    assert all("\ufffd" not in piece for piece in writer.stream("héllo wörld", temperature=0))
    cut = list(writer.stream("héllo wörld", temperature=0, max_length=3))  # in the midst of a duck
    assert "".join(cut) == writer.generate("héllo wörld", temperature=0, max_length=3).text


def test_unknown_characters_in_a_prompt(model: Models) -> None:
    speller = model("speller")
    assert speller.tokenizer.unknown_id in speller.tokenizer.encode("Ж")
    answer = speller.generate("Ж the c", temperature=0, max_length=4)
    assert answer.source[1] == "<unk>"
    assert answer.text.startswith("at")


def test_a_prompt_that_leaves_no_room(writer: Model) -> None:
    fits = "the" + "x" * 45
    assert len(writer.tokenizer.encode(fits)) == 46
    assert writer.generate(fits, temperature=0).ids  # one place is left
    with pytest.raises(ShapeError, match=r"text 3: the prompt is 48 tokens long, but .* has a context of 48; shorten it"):
        writer.generate(["a", "b", f"{fits}x"])
    with pytest.raises(ShapeError, match="text 1: the prompt is 48 tokens long"):
        writer.stream(f"{fits}x")


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"samples": 2}, {"mbr": 2}, {"n_best": 2}], ids=str)
def test_what_cannot_be_streamed(writer: Model, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="stream"):
        writer.stream("a", **options)
