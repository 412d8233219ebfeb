"""What goes wrong says what to do, and a key is asked for where one is needed."""

from __future__ import annotations

from collections.abc import Callable

from regard.door import Model
from regard.serve.settings import Settings
from tests.serve.live import Live, until
from tests.serve.page.visit import ASKED, Visit


def test_what_goes_wrong_says_what_to_do(visiting: Callable[..., Visit], site: Live) -> None:
    visit = visiting(site.address + "/")
    way = visit.way("**/api/translate")
    page = visit.open(model="nobody", text="hello")
    assert "no model “nobody” here" in page.locator(".trouble").inner_text()
    page.locator(".trouble").get_by_role("button", name="critic").click()
    page.locator(".output").wait_for()
    visit.settled()
    way.cut()
    page.goto(f"{site.address}/#/answer?model=translator&to=it&text=hello")
    page.locator(".trouble").wait_for()
    assert "Is it still running?" in page.locator(".trouble").inner_text()
    way.mend()
    page.get_by_role("button", name="Try again").click()
    page.locator(".output").wait_for()
    visit.settled()
    visit.complaints = [said for said in visit.complaints if "ERR_FAILED" not in said]  # the browser's own word on what we broke


def test_what_could_not_be_had_is_asked_for_again(visit: Visit) -> None:
    """A trace and its later parts: by pressing, and by coming back. What would fail again offers no such button."""
    way = visit.way("**/api/trace")
    page = visit.open(text="Hello.", to="it")
    way.cut()
    for key, wanted in (("4", "#stage-self-scores, #stage-scores"), ("5", "canvas[data-key=positions]")):
        page.keyboard.press(key)
        page.locator(".trouble").wait_for()
        assert "Is it still running?" in page.locator(".trouble").inner_text()
        way.mend()
        page.get_by_role("button", name="Try again").click()
        page.locator(wanted).first.wait_for()
        way.cut()
    page.goto(visit.address + "#/inside?model=translator&to=it&text=Good+morning.")
    page.locator(".trouble").wait_for()
    way.mend()
    page.keyboard.press("1")
    visit.settled()
    page.keyboard.press("4")
    page.locator("#stage-self-scores").wait_for()
    way.instead = lambda route: route.fulfill(status=413, json={"error": "too large; ask for less"})
    page.goto(visit.address + "#/attention?model=translator&to=it&text=Thanks.")
    page.locator(".trouble").wait_for()
    assert page.get_by_role("button", name="Try again").count() == 0
    visit.complaints = [said for said in visit.complaints if "ERR_FAILED" not in said and "413" not in said]


def test_a_server_that_wants_a_key(visiting: Callable[..., Visit], models: dict[str, Model]) -> None:
    """The form has the focus, takes any characters, says where a key was not taken, and stands in every view."""
    with Live(models, Settings(api_key="sésame, ouvre-toi € là")) as locked:
        visit = visiting(locked.address + "/", width=320)
        page = visit.page
        page.goto(f"{locked.address}/#/runs")
        page.get_by_label("API key").wait_for()
        assert page.evaluate("document.activeElement.dataset.key") == "api-key"
        assert page.locator(".refused").count() == 0
        for wrong in ("sésame", "sesam”", "ключ"):
            page.keyboard.type(wrong)
            page.keyboard.press("Enter")
            page.locator(".refused").wait_for()
            until(lambda: page.locator("[data-key=api-key]:focus").count() and not page.get_by_label("API key").input_value())
            assert "not taken" in page.locator(".refused").inner_text()
        page.reload()
        page.locator("[data-key=api-key]:focus").wait_for()
        page.keyboard.type("sésame, ouvre-toi € là")
        page.keyboard.press("Enter")
        page.locator(".empty pre").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page = visit.open(model="critic", text=ASKED["critic"])
        page.locator(".output").wait_for()
        page.evaluate("sessionStorage.clear()")
        page.reload()
        page.get_by_label("API key").fill("sésame, ouvre-toi € là")
        page.get_by_label("API key").press("Enter")
        page.locator(".output").wait_for()
        visit.settled()
        assert "sesame" not in page.url
        visit.complaints = [said for said in visit.complaints if "401" not in said]
