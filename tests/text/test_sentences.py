"""Where sentences end: what the text is made of stays, traps are known, and no text takes long."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.text.sentences import sentences

TRAPS = [line.split("\t") for line in (Path(__file__).parent / "traps.tsv").read_text(encoding="utf-8").splitlines()]
# What only someone who understands the text can tell: a pause from an end, where the next word would have a capital (or has none) anyway.
NOT_YET = ("Well … I don't know … maybe.", "हाँ... शायद।", "क्या वह आएगा... पता नहीं।")
LANGUAGES = ("en", "de", "fr", "es", "pt", "it", "nl", "hi")
ROWS = {
    "en": [
        "Where were you last night?",
        "I left my keys at home.",
        '"It is late," she said.',
        "What a day!",
        "Well, that is that…",
        "Is he 30?",
    ],
    "de": [
        "Wo warst du gestern Abend?",
        "Ich habe 3 Äpfel.",
        "„Es ist spät“, sagte sie.",
        "So ein Tag!",
        "Na ja…",
        "Über uns wohnt niemand.",
    ],
    "fr": ["Où étais-tu hier soir ?", "J'ai oublié mes clés.", "« Il est tard », dit-elle.", "Quelle journée !", "Eh bien…", "À demain."],
    "es": ["¿Dónde estabas anoche?", "He olvidado las llaves.", "¡Qué día!", "¿Es tarde?", "Pues bien…", "Él no ha venido."],
    "pt": ["Onde você estava ontem?", "Esqueci as chaves.", "Que dia!", "“É tarde”, disse ela.", "Pois é…", "Às vezes ele vem."],
    "it": ["Dov'eri ieri sera?", "Ho dimenticato le chiavi.", "Che giornata!", "È tardi.", "Beh…", "«Vengo», disse."],
    "nl": [
        "Waar was je gisteravond?",
        "Ik ben mijn sleutels vergeten.",
        "Wat een dag!",
        "'s Avonds leest hij.",
        "Nou ja…",
        "Ze komt om 5 uur.",
    ],
    "hi": ["कल रात तुम कहाँ थे?", "मैं चाबी भूल गया।", "क्या दिन है!", "वह यहाँ है.", "अच्छा…", "5 लोग आए।"],
}
MARKS = [".", "!", "?", "…", "...", "।", "。", '"', "”", "»", " »", ")", "(", "'", "-", ":"]
WORDS = ["a", "Word", "ein", "Dr", "z", "B", "3", "42", "I", "etc", "p.m", "डॉ", "猫", "😀", "é", "J"]
TEXTS = st.lists(st.sampled_from([*MARKS, *WORDS, " ", " ", "  ", "\n", "\t", "\u2028", "\xa0", "\x00"]), max_size=40).map("".join)


def told_apart(text: str) -> list[str]:
    return [text[begin:end] for begin, end in sentences(text)]


@settings(deadline=None)
@given(TEXTS)
def test_nothing_but_spaces_is_left_out(text: str) -> None:
    places = sentences(text)
    assert all(begin < end and not text[begin].isspace() and not text[end - 1].isspace() for begin, end in places)
    ends = [0, *(place for pair in places for place in pair), len(text)]
    assert ends == sorted(ends)
    assert not "".join(text[end:begin] for end, begin in zip(ends[::2], ends[1::2], strict=True)).strip()
    assert bool(places) == bool(text.strip())
    if len(places) > 1:
        assert all(any(letter.isalnum() for letter in text[begin:end]) for begin, end in places)


@pytest.mark.parametrize("language", LANGUAGES)
def test_plain_sentences(language: str) -> None:
    rows = ROWS[language]
    for shift in range(len(rows)):  # each before each
        for step in (1, 5):
            turned = [rows[(shift + step * place) % len(rows)] for place in range(len(rows))]
            assert told_apart(" ".join(turned)) == turned
            assert told_apart("  ".join(turned)) == turned


@pytest.mark.parametrize("language", LANGUAGES)
def test_traps(language: str) -> None:
    own = [text.split(" | ") for tag, text in TRAPS if tag == language]
    assert len(own) >= 50
    wrong = [parts for parts in own if told_apart(" ".join(parts)) != parts]
    assert [parts for parts in wrong if not any(" ".join(parts).startswith(known) for known in NOT_YET)] == []
    assert len(wrong) <= 2


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        (" \n ", []),
        ("...", ["..."]),
        ("?! . … !", ["?! . … !"]),
        ("😀 😀! 😀", ["😀 😀! 😀"]),
        ("One. ...", ["One. ..."]),
        ("... One. Two.", ["... One.", "Two."]),
        ("no marks at all", ["no marks at all"]),
        ("  One.  Two. ", ["One.", "Two."]),
        ("first line\nsecond line", ["first line", "second line"]),
        ("Mr.\nSmith \n\n came", ["Mr.", "Smith", "came"]),
        ("One.Two.", ["One.Two."]),
        ("私は猫です。「そうですか。」はい。", ["私は猫です。", "「そうですか。」", "はい。"]),
        ("* one. * two. - three", ["* one.", "* two.", "- three"]),
    ],
)
def test_where_they_end(text: str, parts: list[str]) -> None:
    assert told_apart(text) == parts


def test_as_many_as_there_are() -> None:
    assert told_apart(" ".join(["I love you."] * 400)) == ["I love you."] * 400


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        ".",
        ". ",
        "! ",
        "? A",
        "...  ",
        "\n",
        " ",
        '."',
        '. "',
        "(.) ",
        "z. B. ",
        "A. ",
        "1. ",
        "Dr. ",
        "« ",
        ".» ",
        "\xa0»",
        "‐",
        "a." + " " * 99,
        "x" * 200 + ". ",
    ],
)
def test_time_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    before = time.process_time()
    sentences(text)
    assert time.process_time() - before < 20  # seconds of a slow machine; with the square it would be hours
