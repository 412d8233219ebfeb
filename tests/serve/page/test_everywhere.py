"""What holds in every view: it opens for every model, by keyboard alone, from its address, and never makes markup of a text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.serve.page.visit import ASKED, LOVE, VIEWS, Visit


@pytest.mark.parametrize("name", ["writer", "critic", "guesser"])
def test_every_view_of_a_small_model(visit: Visit, name: str) -> None:
    for view in VIEWS:
        page = visit.open(view, model=name, text=ASKED[name])
        assert page.locator(f"#header a[aria-current=page][data-key=view-{view}]").count() == 1
        assert page.locator(".trouble").count() == 0
        wanted = {"attention": ".weights td", "inside": "#stage-logits", "positions": "canvas", "runs": ".chart", "answer": ".output"}
        page.locator(wanted.get(view, "table tbody tr")).first.wait_for()


def test_by_keyboard_alone(visit: Visit) -> None:
    page = visit.open(to="it")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("body").press("/")
    page.keyboard.type(LOVE)
    page.keyboard.press("Enter")
    page.locator(".output").wait_for()
    visit.settled()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.dataset.key") != "word-target-1":
        page.keyboard.press("Tab")
    assert page.locator(".input .lit").count() > 0  # the focus points, too
    page.keyboard.press("Enter")
    page.keyboard.press("2")
    page.locator(".weights").wait_for()
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowRight")
    assert "layer=2" in page.url
    assert "head=1" in page.url
    page.keyboard.press("ArrowRight")
    assert "target=2" in page.url
    while page.evaluate("document.activeElement.dataset.key") != "cell":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "source=1" in page.url
    assert "target=3" in page.url
    assert page.evaluate("document.activeElement.tagName") == "TD"
    page.keyboard.press("t")
    page.locator(".lines").wait_for()
    page.keyboard.press("3")
    page.locator(".tree").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_text("position 3 of 5", exact=True).wait_for()
    page.keyboard.press("?")
    assert page.locator("dialog dt").count() > 8
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")  # which the browser tells a moment later
    page.keyboard.press("4")
    page.locator("#stage-self-scores").wait_for()
    page.keyboard.press("5")
    page.locator("canvas[data-key=positions]").wait_for()
    page.keyboard.press("6")
    page.locator(".chart").first.wait_for()


def test_the_address_is_all_there_is_to_it(visit: Visit, visiting: Callable[..., Visit]) -> None:
    page = visit.open("attention", text=LOVE, to="it")
    page.get_by_label("decoder", exact=True).check(force=True)
    page.get_by_role("button", name="layer 3, head 2", exact=True).click()
    page.locator(".weights tbody tr").nth(3).locator("td").nth(1).click()
    other = visiting(visit.address)
    other.page.goto(page.url)
    other.settled()
    assert (
        other.page.locator(".big h2").inner_text()
        == page.locator(".big h2").inner_text()
        == "Self-attention of the decoder, layer 3, head 2"
    )
    assert other.page.locator(".weights .picked").inner_text() == page.locator(".weights .picked").inner_text()
    page.locator("#header").get_by_text("Steps").click()
    page.get_by_text("position 4 of 5", exact=True).wait_for()  # what was picked stays picked
    page.go_back()
    page.locator(".weights .picked").wait_for()


def test_an_address_that_can_not_be(visit: Visit) -> None:
    page = visit.open("nothing", text=LOVE, to="it")
    assert page.locator("#header a[aria-current=page]").inner_text() == "Answer"
    page = visit.open("inside", text=LOVE, to="it", layer=0, part=0, kind="encoder")  # no model either: the first one
    page.locator("#stage-self-scores").wait_for()
    assert "through layer 1" in page.locator(".intro").inner_text()


def test_text_never_becomes_markup(visit: Visit) -> None:
    nasty = "<img src=x onerror=alert(1)> & <b>cats</b>"
    page = visit.open("attention", text=nasty, to="it")
    for view in VIEWS[:5]:
        page.keyboard.press(str(VIEWS.index(view) + 1))
        visit.settled()
        assert page.locator("#view img, #sentence img, #sentence b").count() == 0
    assert page.locator("textarea").input_value() == nasty
