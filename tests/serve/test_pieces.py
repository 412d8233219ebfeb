"""Texts in parts, and where an output ends."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.door.aligned import Aligned
from regard.serve.markup import TAG, html_of, lines_of
from regard.serve.stops import Stops, cut


@given(st.text(alphabet="ab \t\n\r<>&;", max_size=40))
def test_lines_come_back_as_they_were(text: str) -> None:
    parts = lines_of(text)
    assert parts.joined(parts.texts) == text
    assert all(part.strip() == part and part for part in parts.texts)
    assert not any("\n" in part or "\r" in part for part in parts.texts)


@pytest.mark.parametrize(
    ("page", "texts", "again"),
    [
        ("<p>One <b>two</b> three.</p>", ("One two three.",), None),
        ("<p>One</p> <p>\n two\n three </p>", ("One", "two three"), "<p>One</p> <p>\n two three </p>"),
        ("a &amp; b &lt;c&gt;", ("a & b <c>",), None),
        ("<br/><hr> x <img alt='> y'>z", ("x z",), None),
        ("a <img src=x> b", ("a b",), None),
        ("<b>a <i>b</b> c</i>", ("a b c",), None),
        ("<p>one <b>two</p><p>three</b> four</p>", ("one two", "three four"), None),
        (
            "use <code title='>'>a &lt; <i>b</i></code> <!-- so --> now",
            ("use a < b now",),
            "use <code title='>'>a &lt; <i>b</i></code> <!-- so -->now",
        ),
        ("<code>x = 1</code>", (), None),
        ("&nbsp;<b>one</b>&nbsp;", ("one",), None),
        ("<b></b>&nbsp;", (), None),
        ("<a href='x'><div>in a link</div></a>", ("in a link",), None),
        ("<style>p {}</style><pre>code &lt;</pre><script>a<b</script>t", ("t",), None),
        ("<!doctype html><!-- no --><?pi?>yes", ("yes",), None),
        ("<P>Loud</P><SCRIPT>x</ScRiPt>", ("Loud",), None),
        ("never <!-- closed", ("never",), None),
        ("1 < 2 > 0 <3", ("1 < 2 > 0 <3",), "1 &lt; 2 &gt; 0 &lt;3"),
        ("half <b", ("half <b",), "half &lt;b"),
        ("", (), None),
    ],
)
def test_html_is_taken_apart_and_put_together(page: str, texts: tuple[str, ...], again: str | None) -> None:
    parts = html_of(page)
    assert parts.texts == texts
    assert parts.joined(texts) == (page if again is None else again)


PIECES = ["<b>", "</b>", "<i x='>'>", "</i>", "<img>", "<!--c-->", "<code>x</code>", "<p>", " ", "a", "b c.", "&lt;"]


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_no_tag_is_lost_or_written_twice(pieces: list[str]) -> None:
    page = "".join(pieces)
    parts = html_of(page)
    again = parts.joined([f"{text[::-1]} more" for text in parts.texts])
    assert sorted(map(str.strip, TAG.findall(again))) == sorted(TAG.findall(page))


def test_tags_a_thousand_deep() -> None:
    page = f"{'<b>' * 5000}one{'</b>' * 5000} two"
    assert html_of(page).joined(["one two"]) == page


def test_a_translation_is_never_markup() -> None:
    parts = html_of("<p>hello</p>")
    assert parts.joined(["<script>alert(1)</script>"]) == "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"


@given(st.text(max_size=60))
def test_any_text_can_be_read_as_html(page: str) -> None:
    parts = html_of(page)
    assert len(parts.around) == len(parts.texts) + 1


HOSTILE = [
    "<",
    "<!--",
    "<a ",
    "&",
    "<![CDATA[",
    "<a b='",
    "</",
    "<?",
    "<a href=",
    "<script>",
    "<script",
    "<pre/",
    "&#x1",
    " ",
    "<a/",
    "<!d ",
    "\n ",
    "<b>",
    "</b>",
    "<b>x</b> ",
    "<b>x<i>",
    "<code>",
    "<code>x</code>",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_html_takes_time_in_proportion_to_its_length(piece: str) -> None:
    def seconds(size: int) -> float:
        page = f"a{piece * (size // len(piece))}b"
        begun = time.process_time()
        html_of(page)
        lines_of(page)
        return time.process_time() - begun

    seconds(10_000)
    assert seconds(400_000) < 2.0  # forty texts of the greatest length; where it grows with the square, minutes


@pytest.mark.parametrize("piece", ["<b>a</b> ", "<b><i>a</i> b</b> ", "<img>a ", "<b>a", "a<!---->", "<code>x</code> "])
@pytest.mark.parametrize("known", [False, True])
def test_many_tags_are_put_back_in_no_time(piece: str, known: bool) -> None:
    """Of a text of the greatest length, with what each word looked at and without."""
    parts = html_of(f"x {piece * (10_000 // len(piece))} y")
    [text] = parts.texts
    spans = [(place, min(place + 4, len(text))) for place in range(0, len(text), 4)]
    of_each = [spans[first : first + 100] for first in range(0, len(spans), 100)]
    looks = [Aligned(own, own, torch.eye(len(own)).flip(0)) for own in of_each]
    begun = time.process_time()
    parts.joined([text[::-1]], [looks if known else None])
    assert time.process_time() - begun < 2.0  # where each tag looks at every word and every other tag, a minute


@given(st.text("abc", max_size=30), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.data())
def test_stops_in_pieces_are_those_of_the_whole(text: str, stops: list[str], data: st.DataObject) -> None:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    heard, said = Stops(stops), ""
    for piece in pieces:
        said += heard.take(piece)
        assert text.startswith(said)
        if heard.met:
            break
    whole, met = cut(text, stops)
    assert heard.met == met
    assert (said if met else said + heard.rest()) == whole
