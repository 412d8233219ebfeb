"""A page in one file, which needs no server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from regard.view.page import MOST, write_page
from regard.view.trace_json import as_json
from tests.serve.live import Live
from tests.serve.page.visit import LOVE, Visit


def test_one_file_without_a_server(visiting: Callable[..., Visit], site: Live, tmp_path: Path) -> None:
    model = site.desk.models["translator"]
    found = as_json(model.trace(LOVE, to="it", n_best=3), most=MOST)
    path = tmp_path / "page.html"
    assert write_page(found, path) < 3_000_000
    visit = visiting(path.as_uri())
    page = visit.open()
    assert page.locator(".output").inner_text() == found["answer"]["text"]
    assert page.locator("[data-key=view-runs]").count() == 0
    for key, wanted in (("2", ".weights td"), ("3", ".tree"), ("4", "#stage-embedding"), ("5", "canvas[data-key=positions]")):
        page.keyboard.press(key)
        page.locator(wanted).first.wait_for()
        assert page.locator(".trouble").count() == 0
    page.keyboard.press("2")
    page.locator(".weights tbody tr").nth(1).locator("td").nth(2).click()
    page.locator(".made").get_by_role("button", name="head 2").click()  # an average has a product for each head
    page.locator("#stage-cross-scores .equation").wait_for()
    assert "target=1" in page.url
    assert "head=2" in page.url
    page.reload()
    page.locator("#stage-cross-scores .equation").wait_for()
