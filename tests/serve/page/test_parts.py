"""Texts of several lines, and longer ones than a model reads at once: all of it is translated, and each part can be looked into."""

from __future__ import annotations

from tests.serve.live import Live
from tests.serve.page.visit import Visit, document, texts

LINES = "Good morning.\n\n  How are you today?\nI am fine."


def test_line_by_line_as_translate_does(visit: Visit, site: Live) -> None:
    page = visit.open(text=LINES, to="it", target=0)
    wanted = site.post("/translate", {"q": LINES, "source": "en", "target": "it"}).json["translatedText"]
    assert page.evaluate("document.querySelector('.output').textContent") == wanted
    assert "part 1 of 3" in page.locator(".facts").first.inner_text()
    page.locator(".output").get_by_role("button", name=wanted.splitlines()[2].strip()).click()
    visit.settled()
    assert "part=2" in page.url
    assert "target=" not in page.url  # what was picked in the other part is let go
    trace = document(site, model="translator", text="How are you today?", to="it", options={"beam_size": 4, "n_best": 4})
    assert trace["answer"]["text"] in page.locator(".output .now").inner_text()
    assert page.evaluate("document.querySelector('.output').textContent") == wanted
    page.keyboard.press("2")
    page.locator(".weights").wait_for()
    source = page.locator("#sentence .strip-row", has_text="source").get_by_role("button")
    assert texts(source) == [token.strip() for token in trace["source"]["tokens"]]
    page.get_by_role("button", name="The next part").click()
    visit.settled()
    assert "fine" in texts(source)
    page.go_back()
    page.get_by_text("2 of 3", exact=True).wait_for()
    visit.settled()
    assert "today" in texts(source)


def test_more_than_a_model_reads_at_once(visit: Visit) -> None:
    """Every view has something to show, and no box says that it was too long."""
    text = " ".join(f"This is the sentence number {number} of my text." for number in range(1, 16))
    page = visit.open(text=text, to="it", beam=1, part=2)
    assert page.locator(".output .part").count() > 1
    assert page.locator(".trouble, .warning").count() == 0
    for key, wanted in (("2", ".weights td"), ("3", ".tree"), ("4", "#stage-logits, #stage-next"), ("5", "canvas[data-key=positions]")):
        page.keyboard.press(key)
        page.locator(wanted).first.wait_for()
        assert page.locator(".trouble").count() == 0
