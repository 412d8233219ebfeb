"""Long texts in parts: each fits, together they are the text, and the cuts are where a reader would make them."""

from __future__ import annotations

import textwrap
import unicodedata
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import CorpusError
from regard.text.split import split_long

PLAIN = ["a", "word", "Längste", " ", "  ", "\n", "\t", "\xa0", "\x00", "\x85", "\u2028", "3.5"]
MARKS = [".", ",", "?", "…", "”", "\u202f»", "।", "。", "、", "「", "」"]
JOINED = ["e\u0301", "\u0301", "\u200d", "👨\u200d👩\u200d👧", "🇮🇹", "👍🏽", "❤\ufe0f", "각", unicodedata.normalize("NFD", "각")]
PIECES = st.sampled_from([*PLAIN, *MARKS, *JOINED])
TEXTS = st.lists(PIECES, max_size=60).map("".join)


def at_most(size: int) -> Callable[[str], bool]:
    return lambda text: len(text) <= size


def check(text: str, parts: list[str], fits: Callable[[str], bool]) -> None:
    """All that holds of any split."""
    assert parts
    assert all(map(fits, parts))
    place = 0
    for part in parts:
        found = text.index(part, place)
        assert not text[place:found].strip()  # nothing but spaces is left out
        place = found + len(part)
    assert not text[place:].strip()
    assert "".join("".join(parts).split()) == "".join(text.split())


@settings(deadline=None)
@given(TEXTS, st.integers(1, 30))
def test_parts_fit_and_are_the_text(text: str, size: int) -> None:
    parts = split_long(text, at_most(size))
    check(text, parts, at_most(size))
    assert parts == [text] or not at_most(size)(text)
    assert all(part.strip() for part in parts) or len(parts) == 1


@settings(deadline=None)
@given(TEXTS, st.integers(1, 12))
def test_parts_fit_whatever_fitting_means(text: str, size: int) -> None:
    """A tokenizer may need fewer tokens for a longer text."""

    def fits(part: str) -> bool:
        return len(part) <= 1 or (len(part) <= size + 8 and zlib.crc32(part.encode()) % 3 > 0)

    check(text, split_long(text, fits), fits)


@settings(deadline=None)
@given(st.lists(st.text("abcdefgh", min_size=1, max_size=10), min_size=1, max_size=60), st.integers(10, 40))
def test_words_fill_parts_as_they_fill_lines(words: list[str], size: int) -> None:
    text = " ".join(words)
    parts = split_long(text, at_most(size))
    assert parts == textwrap.wrap(text, size)
    assert " ".join(parts) == text


@settings(deadline=None)
@given(st.lists(st.text("abcdefgh ,", min_size=1, max_size=15), min_size=1, max_size=40), st.integers(20, 60))
def test_sentences_stay_whole_where_each_fits(contents: list[str], size: int) -> None:
    sentences = [f"A{content}end." for content in contents]
    wanted = [sentences[0]]
    for sentence in sentences[1:]:
        longer = f"{wanted[-1]} {sentence}"
        wanted[-1:] = [longer] if len(longer) <= size else [wanted[-1], sentence]
    assert split_long(" ".join(sentences), at_most(size)) == wanted


@pytest.mark.parametrize(
    ("text", "size", "parts"),
    [
        ("One. Two! Three? Four.", 10, ["One. Two!", "Three?", "Four."]),
        ('He said: "Stop!" Then he went.', 20, ['He said: "Stop!"', "Then he went."]),
        ("« Oui\u202f!\u202f» Elle rit.", 14, ["« Oui\u202f!\u202f»", "Elle rit."]),
        ("Er rief „Halt!“ Dann ging er.", 20, ["Er rief „Halt!“", "Dann ging er."]),
        ("यह है। वह है।", 8, ["यह है।", "वह है।"]),
        ("私は猫です。「そうですか。」はい。", 13, ["私は猫です。", "「そうですか。」はい。"]),
        ("私は猫です。「そうですか。」はい。", 14, ["私は猫です。「そうですか。」", "はい。"]),
        ("It cost 3.5 million. Too much.", 22, ["It cost 3.5 million.", "Too much."]),
        ("Ask J. Smith or, z. B. me, approx. now.", 20, ["Ask J. Smith or,", "z. B. me,", "approx. now."]),
        ("first line\nsecond line", 15, ["first line", "second line"]),
        ("at 10:30, for 1,000; or else", 12, ["at 10:30,", "for 1,000;", "or else"]),
        ("no marks at all in here", 12, ["no marks at", "all in here"]),
        ("  indented text and more", 15, ["  indented text", "and more"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("Hi abcdefghij", 4, ["Hi", "abcd", "efgh", "ij"]),
        ("e\u0301e\u0301e\u0301", 3, ["e\u0301", "e\u0301", "e\u0301"]),
        ("👨\u200d👩\u200d👧👨\u200d👩\u200d👧", 7, ["👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"]),
        ("🇮🇹🇩🇪🇫🇷", 3, ["🇮🇹", "🇩🇪", "🇫🇷"]),
        ("❤\ufe0f❤\ufe0f👍🏽", 3, ["❤\ufe0f", "❤\ufe0f", "👍🏽"]),
        (unicodedata.normalize("NFD", "각각"), 4, [unicodedata.normalize("NFD", "각")] * 2),
        ("e" + "\u0301" * 5, 4, ["e" + "\u0301" * 3, "\u0301" * 2]),  # a character that is itself too long
        ("fits", 4, ["fits"]),
        ("  ", 4, ["  "]),
        ("", 4, [""]),
        ("end.      ", 5, ["end."]),
        (" " * 50 + "end", 5, ["end"]),
    ],
)
def test_where_the_cuts_are(text: str, size: int, parts: list[str]) -> None:
    assert split_long(text, at_most(size)) == parts
    check(text, parts, at_most(size))


def test_when_nothing_fits() -> None:
    with pytest.raises(CorpusError, match="not even the character 'a' fits"):
        split_long("abc", lambda _: False)


@pytest.mark.parametrize(
    "unit", ["The fox, it jumps. ", "word ", "a", ".", ". ", '."', "。", "🇮🇹", "e\u0301", "\u0301", ",", "etc. a ", "\xa0", "\n"]
)
def test_time_grows_with_the_text_and_not_with_its_square(unit: str) -> None:
    text = unit * (300_000 // len(unit))
    asked = longest = 0

    def fits(part: str) -> bool:
        nonlocal asked, longest
        asked, longest = asked + len(part), max(longest, len(part))
        return len(part) <= 5000

    parts = split_long(text, fits)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert asked <= 20 * len(text)
    assert longest <= 2 * 5000
