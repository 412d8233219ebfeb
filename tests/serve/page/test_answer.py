"""The answer: what a model says, how sure it is of each word, and what that looked at."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from regard.view.trace_json import decoded
from tests.serve.live import Live
from tests.serve.page.visit import ASKED, LOVE, Visit, document, number, texts


def test_a_translation_and_what_its_words_looked_at(visit: Visit, site: Live) -> None:
    page = visit.open()
    page.get_by_role("button", name=LOVE).click()  # the example of an empty page
    visit.settled()
    trace = document(site, model="translator", text=LOVE, to="it", options={"beam_size": 4, "n_best": 4})
    answer = page.locator(".output")
    assert answer.inner_text() == trace["answer"]["text"]
    titles = [word.get_attribute("title") or "" for word in answer.get_by_role("button").all()]
    sure = [number(title.removeprefix("probability ")) for title in titles]
    assert sure == pytest.approx(np.exp(trace["answer"]["log_probabilities"][: len(sure)]), abs=6e-4)
    others = page.get_by_role("region", name="Alternatives").locator("tbody tr td:nth-child(2)")
    assert [" ".join(text.split()) for text in texts(others)] == [other["text"] for other in trace["answer"]["alternatives"]]
    answer.get_by_role("button").nth(1).hover()
    looks = decoded(trace["alignment"])[1]
    lit = texts(page.locator(".input .lit"))
    assert trace["source"]["tokens"][int(looks.argmax())].strip() in lit
    told = page.locator(".told").inner_text()
    best = trace["source"]["tokens"][int(looks.argmax())].strip()
    assert f"looked at {best} {float(looks.max()):.2f}" in told
    answer.get_by_role("button").nth(1).click()
    assert "target=1" in page.url


def test_the_other_verbs(visit: Visit, site: Live) -> None:
    page = visit.open(model="critic", text=ASKED["critic"])
    said = site.post("/api/classify", {"model": "critic", "texts": ASKED["critic"]}).json["answers"][0]
    assert page.locator(".output strong").inner_text() == said["label"]
    shown = {row.split("\t")[0]: number(row.split("\t")[-1]) for row in texts(page.get_by_role("region", name="label").locator("tbody tr"))}
    assert shown == pytest.approx(said["probabilities"], abs=6e-4)
    page = visit.open(model="guesser", text=ASKED["guesser"])
    filled = site.post("/api/fill", {"model": "guesser", "texts": ASKED["guesser"], "choices": 8}).json["answers"][0]
    assert page.locator(".output").inner_text() == filled["text"]
    assert texts(page.locator(".bars .name"))[0] == filled["choices"][0][0]["word"]
    page = visit.open(model="writer", text=ASKED["writer"], seed=3, length=12)
    said = site.post(
        "/api/generate", {"model": "writer", "texts": "the cat", "max_length": 12, "temperature": 0.8, "top_p": 0.95, "seed": 3}
    )
    assert " ".join(page.locator(".output").inner_text().split()).endswith(" ".join(said.json["answers"][0]["text"].split()))
    page.get_by_role("button", name="Another").click()
    assert "seed=4" in page.url


def test_the_answer_is_text(visit: Visit, site: Live) -> None:
    """It can be selected, by dragging and word by word, and copied; picking a word goes on working."""
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit.open(text=LOVE, to="it")
    said = site.post("/api/translate", {"model": "translator", "texts": LOVE, "to": "it"}).json["answers"][0]["text"]
    output = page.locator(".output")
    first, last = output.get_by_role("button").first.bounding_box(), output.get_by_role("button").last.bounding_box()
    assert first
    assert last
    page.mouse.move(first["x"] + 1, first["y"] + first["height"] / 2)
    page.mouse.down()
    page.mouse.move(last["x"] + last["width"] + 2, last["y"] + last["height"] / 2, steps=5)
    page.mouse.up()
    assert page.evaluate("String(getSelection())").strip() == said
    page.evaluate("document.querySelector('[data-key=theme]').click()")  # drawn anew, what is selected stays so
    page.locator("html[data-theme]").wait_for()
    assert page.evaluate("String(getSelection())").strip() == said
    second = output.get_by_role("button").nth(1)
    word = second.inner_text()
    second.dblclick()
    assert page.evaluate("String(getSelection())").strip() == word
    page.locator("h1").click()
    second.click(delay=20)
    output.locator("[aria-pressed=true]").wait_for()
    assert "target=1" in page.url
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == said


def test_a_double_click_selects_and_picks_once(visit: Visit) -> None:
    page = visit.open(text=LOVE, to="it")
    second = page.locator(".output").get_by_role("button").nth(1)
    word = second.inner_text()
    second.dblclick()
    page.locator(".output [aria-pressed=true]").wait_for()
    page.wait_for_timeout(200)
    assert page.evaluate("String(getSelection())").strip() == word
    assert texts(page.locator(".output [aria-pressed=true]")) == [word]
    assert "target=1" in page.url


def test_nothing_but_words_under_a_continuation(visit: Visit) -> None:
    page = visit.open(model="writer", text="the cat", length=5)
    page.locator("section", has_text="Token by token").locator("tbody tr").first.wait_for()
    assert "false" not in page.locator("#view").inner_text()
    page.keyboard.press("2")
    written = page.locator("#sentence .token.written")
    written.first.wait_for()
    assert written.count() == 5  # the last one too, though it is never read
    assert "".join(texts(written)).replace("·", "")


def test_a_filled_word_is_marked_within_a_word(visit: Visit) -> None:
    page = visit.page
    found = {"text": "say my my,, lord", "choices": [[{"word": "my,", "probability": 0.5}]]}
    page.route("**/api/fill", lambda route: route.fulfill(json={"model": "guesser", "answers": [found], "warnings": []}))
    page.route("**/api/trace", lambda route: route.fulfill(json=route.fetch().json() | {"answer": found}))
    page = visit.open(model="guesser", text="say my [MASK], lord")
    assert texts(page.locator(".output .sure")) == ["my,"]
    assert page.locator(".output").inner_text() == found["text"]


def test_something_happens_at_once(visit: Visit) -> None:
    page = visit.open(to="it")

    def late(route: Any) -> None:
        time.sleep(0.5)
        route.continue_()

    page.route("**/api/translate", late)
    page.locator("textarea").fill(LOVE)
    shown = page.evaluate(
        """async () => {
          const begun = performance.now();
          document.querySelector(".ask .go").click();
          while (!document.querySelector(".working") && performance.now() - begun < 2000) await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        }"""
    )
    assert shown < 100
    page.locator(".output").wait_for()
    visit.settled()
