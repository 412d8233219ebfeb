"""What is left out of training data, and why."""

from __future__ import annotations

from typing import Any

import pytest

from regard.errors import ConfigError
from regard.recipe import DataFile, DataSettings, FilterSettings, Task
from regard.text.corpus import Row
from regard.text.sieve import Sieve, held_out_keys, learned_from, letters, plain, share_in

FILE = DataFile(path="a.tsv")
HINDI = DataFile(path="a.tsv", to="hi", script="Devanagari")
LONG = "The quick brown fox jumps over the lazy dog."


def sieve(task: Task = "translate", held_out: frozenset[int] = frozenset(), **settings: Any) -> Sieve:
    return Sieve(DataSettings(filter=FilterSettings(**settings)), task, held_out)


def pair(source: str, target: str) -> Row:
    return Row((source, target), "a.tsv", 1)


@pytest.mark.parametrize(
    ("settings", "kept", "left_out", "reason"),
    [
        ({"shortest": 3}, ("abc", "abc"), ("abc", "ab"), "under 3 characters"),
        ({"longest": 5}, ("abcde", "a"), ("abcdef", "a"), "over 5 characters"),
        ({"most_words": 2}, ("a b", "c"), ("a", "b c d"), "over 2 words"),
        ({"ratio": 2}, ("a" * 30, "b" * 15), ("a" * 31, "b" * 15), "one side over 2 times as long"),
        ({"ratio": 2}, ("Hi", "Guten Tag zusammen"), ("b" * 10, "a" * 21), "one side over 2 times as long"),  # a greeting may be longer
        ({"drop_same": True}, ("LibreOffice", "LibreOffice"), (LONG, LONG.upper()), "source and target the same"),
        ({"letters": 0.5}, ("ab 12", "हिन्दी में"), ("abc", "12 34 a"), "too few letters"),
        ({"letters": 0.5}, ("a b c", "x"), ("***", "abc"), "too few letters"),
    ],
)
def test_a_reason_for_each(settings: dict[str, Any], kept: tuple[str, str], left_out: tuple[str, str], reason: str) -> None:
    assert sieve(**settings).reason(pair(*kept), FILE) is None
    assert sieve(**settings).reason(pair(*left_out), FILE) == reason
    assert sieve().reason(pair(*left_out), FILE) is None  # nothing is left out that was not asked for


def test_a_target_in_another_script() -> None:
    sift = sieve()
    assert sift.reason(pair("Open GNOME", "GNOME को खोलें और देखें"), HINDI) is None
    assert sift.reason(pair("Open GNOME", "GNOME kholein"), HINDI) == "not in Devanagari"
    assert sift.reason(pair("12", "12:30"), HINDI) is None  # no letters, no script
    assert sift.reason(pair("Open", "Apri"), FILE) is None
    assert sieve(script_share=0.9).reason(pair("Open GNOME", "GNOME को खोलें"), HINDI) == "not in Devanagari"
    with pytest.raises(ConfigError, match="script = 'Devnagari': Unicode has no characters of that name"):
        share_in("Devnagari", "abc")


def test_marks_are_letters() -> None:
    assert letters("हिन्दी, naïve é 5") == "हिन्दीnaïveé"
    assert share_in("Devanagari", "हिन्दी ab 5!") == 0.75


def test_duplicates_across_files_but_not_across_languages() -> None:
    sift = sieve(drop_duplicates=True)
    german, other = DataFile(path="b.tsv", to="de"), DataFile(path="c.tsv", to="de")
    row = pair("Hello.", "Hallo.")
    assert [sift.reason(row, file) for file in (german, other, FILE, german)] == [None, "a duplicate", None, "a duplicate"]
    assert sift.reason(pair("Hello.", "Servus."), german) is None
    assert sieve(drop_duplicates=True).reason(row, german) is None  # another reading begins anew


def test_what_was_left_out_is_no_original() -> None:
    """A row that is too long does not make a duplicate of the next like it."""
    sift = sieve(drop_duplicates=True, longest=3)
    assert [sift.reason(pair("abcd", "a"), FILE) for _ in range(2)] == ["over 3 characters"] * 2


def test_dev_and_test_are_kept_apart_whatever_case_and_punctuation() -> None:
    dev = [pair("Where's the  cat?", "Wo ist die Katze?"), pair("…", "…"), pair("मैं", "I")]
    sift = sieve(held_out=held_out_keys(dev, "translate"))
    assert sift.reason(pair("WHERE’S THE CAT!", "Dov'è il gatto?"), FILE) == "in dev or test"
    assert sift.reason(pair("Where is the cat?", "Wo ist die Katze?"), FILE) is None  # only the source decides
    assert sift.reason(pair("…", "…"), FILE) == "in dev or test"
    assert sift.reason(pair("!", "!"), FILE) is None
    assert sift.reason(pair("मे", "In"), FILE) is None  # vowel signs are part of a word


def test_other_tasks() -> None:
    reviews = held_out_keys([Row(("good", "A fine film"), "t", 1)], "classify")
    assert sieve("classify", reviews, shortest=5).reason(Row(("bad", "a fine, FILM!"), "f", 1)) == "in dev or test"
    assert sieve("classify", reviews, shortest=5).reason(Row(("bad", "dull film"), "f", 1)) is None  # a label may be short
    lines = sieve("lm", drop_duplicates=True)
    assert [lines.reason(Row(("so it goes",), "f", line)) for line in (1, 2)] == [None, "a duplicate"]
    assert learned_from(Row(("good", "A fine film"), "t", 1), "classify") == "a fine film"


def test_plain() -> None:
    assert plain("  Don't – EVER… stop!") == "don t ever stop"
    assert plain("Straße") == "strasse"
    assert plain(" ?! ") == "?!"
