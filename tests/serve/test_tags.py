"""Sentences of a page, translated whole by the model that comes with regard, with the tags within them put back."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from html.parser import HTMLParser

import pytest

import regard
from regard.door import Model, Written
from regard.door.aligned import aligned
from regard.serve.markup import Parts, html_of

SNIPPETS = [
    "<p>I have a <b>red car</b> and a small dog.</p>",
    "<p>I have a red car and a <i>small dog</i>.</p>",
    "Please <a href=\"/help?a=1&amp;b=2\" class='x'>read the instructions</a> before you start.",
    "The <em>old <strong>man</strong></em> gave her a book.",
    "<p>She <u>smiled</u>. <b>He did not.</b> We <i>left</i>.</p>",
    "<p><b>We will see you tomorrow.</b> It is late.</p>",
    "<b>Tom</b> and <b>Mary</b> live in <i>Boston</i>.",
    'I love <span class="you">you</span> very much.',
    "I don't know <em>where</em> he lives.",
    "<li>I live in <code>Boston</code>.</li>",
    "My <small>little</small> brother is <big>sick</big>.",
    "The water <sub>here</sub> is <sup>cold</sup>.",
    "This is <mark>very important</mark> for me.",
    'My <abbr title="the woman">mother</abbr> is a doctor.',
    'I saw <img src="cat.png" alt="a cat"> a cat in the garden.',
    "The train <!-- from Rome --> arrives at five.",
    "He said that he was <del>sick</del> <ins>tired</ins>.",
    "<h1>Where is the <a href='#s'>station</a>?</h1>",
    "<td>The <b>white</b> house is <b>old</b>.</td>",
    "Bread &amp; <b>butter</b> are on the table.",
    "<p>Good <b>morning</b>!<br>How <i>are</i> you?</p>",
    "<a href='/'><b>Come</b> home</a> soon.",
    "<div><span>It is raining</span>, so we stay <span>at home</span>.</div>",
    "We need <q>more time</q>, not <q>more money</q>.",
    "<p>My name is <strong>Tom</strong>.</p><p>I am <strong>thirty</strong> years old.</p>",
    "The <i class='icon'></i> door is open.",
    "<s>Nobody</s> knows the <time datetime='2020'>answer</time>.",
    "Do you speak <b><i><u>English</u></i></b>?",
    "<p>I can't <b>swim</p>",
    "Give <kbd>Tom</kbd> the key, please.",
]
VOID = ("img", "br")


class Tree(HTMLParser):
    """Every tag with its attributes and those that it stands in. A page that is not well nested has a problem."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, ...]] = []
        self.problems: list[str] = []
        self.feed(page)
        self.close()
        self.problems += self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((*self.open, f"{tag} {attrs}"))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        else:
            self.problems.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append((*self.open, data))


def stripped(page: str) -> str:
    blocks = re.sub(r"</?(p|li|td|h1|div|br)\b[^>]*>", " | ", page)
    text = unescape(re.sub(r"<!--.*?-->|<[^>]*>", "", blocks))
    return " ".join(text.replace("|", " ").split())


@pytest.fixture(scope="module")
def translator() -> Model:
    return regard.load("translator", device="cpu", precision="float32")


@pytest.fixture(scope="module")
def pages(translator: Model) -> list[tuple[str, Parts, list[Written], str]]:
    """Each snippet, its parts, their translations, and the page made of them."""
    parts = [html_of(page) for page in SNIPPETS]
    answers = iter(translator.translate([text for own in parts for text in own.texts], "de", attention=True, beam_size=1))
    found = []
    for page, own in zip(SNIPPETS, parts, strict=True):
        written = [next(answers) for _ in own.texts]
        looks = [aligned(translator, text, answer) for text, answer in zip(own.texts, written, strict=True)]
        found.append((page, own, written, own.joined([answer.text for answer in written], looks)))
    return found


def test_sentences_stay_whole_and_tags_stay(translator: Model, pages: list[tuple[str, Parts, list[Written], str]]) -> None:
    assert len(pages) >= 30
    for page, parts, written, again in pages:
        assert " ".join(parts.texts) == stripped(page)  # what is translated: whole sentences, none in pieces
        before, after = Tree(page), Tree(again)
        assert Counter(after.tags) == Counter(before.tags), again
        assert after.problems == before.problems, again
        assert stripped(again) == " ".join(" ".join(answer.text for answer in written).split()), again
    plain = translator.translate([text for _, parts, _, _ in pages[:3] for text in parts.texts], "de", beam_size=1)
    assert [answer.text for answer in plain] == [written[0].text for _, _, written, _ in pages[:3]]  # tags change no word


def test_tags_stand_around_the_words_that_they_stood_around(pages: list[tuple[str, Parts, list[Written], str]]) -> None:
    again = {page: made for page, _, _, made in pages}
    assert again[SNIPPETS[0]] == "<p>Ich habe ein <b>rotes Auto</b> und einen kleinen Hund.</p>"
    assert again[SNIPPETS[3]] == "Der <em>alte <strong>Mann</strong></em> gab ihr ein Buch."
    assert "<a href=\"/help?a=1&amp;b=2\" class='x'>die Anweisungen</a>" in again[SNIPPETS[2]]
    assert "<b>Tom</b> und <b>" in again[SNIPPETS[6]]
    assert "<i>Boston</i>." in again[SNIPPETS[6]]


def test_without_an_alignment_tags_go_by_proportion() -> None:
    assert html_of("one <b>two</b> three").joined(["eins zwei drei"]) == "eins <b>zwei</b> drei"
