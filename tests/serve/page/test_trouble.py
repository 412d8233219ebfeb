"""What goes wrong says what to do, and a key is asked for where one is needed."""

from __future__ import annotations

from collections.abc import Callable

from regard.door import Model
from regard.serve.settings import Settings
from tests.serve.live import Live
from tests.serve.page.visit import ASKED, Visit


def test_what_goes_wrong_says_what_to_do(visiting: Callable[..., Visit], site: Live) -> None:
    visit = visiting(site.address + "/")
    page = visit.open(model="nobody", text="hello")
    assert "no model “nobody” here" in page.locator(".trouble").inner_text()
    page.locator(".trouble").get_by_role("button", name="critic").click()
    page.locator(".output").wait_for()
    visit.settled()
    page.route("**/api/translate", lambda route: route.abort())
    page.goto(f"{site.address}/#/answer?model=translator&to=it&text=hello")
    page.locator(".trouble").wait_for()
    assert "Is it still running?" in page.locator(".trouble").inner_text()
    page.unroute("**/api/translate")
    page.get_by_role("button", name="Try again").click()
    page.locator(".output").wait_for()
    visit.settled()
    visit.complaints = [said for said in visit.complaints if "ERR_FAILED" not in said]  # the browser's own word on what we broke


def test_a_server_that_wants_a_key(visiting: Callable[..., Visit], models: dict[str, Model]) -> None:
    with Live(models, Settings(api_key="open sesame")) as locked:
        visit = visiting(locked.address + "/")
        page = visit.open(model="critic", text=ASKED["critic"])
        page.get_by_label("API key").fill("open sesame")
        page.get_by_label("API key").press("Enter")
        page.locator(".output").wait_for()
        visit.settled()
        assert "sesame" not in page.url
        visit.complaints = [said for said in visit.complaints if "401" not in said]
