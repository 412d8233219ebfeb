"""Step by step: what could have been written, and why it was not."""

from __future__ import annotations

import pytest

from tests.serve.live import Live
from tests.serve.page.visit import LOVE, Visit, document, number, texts


def test_candidates_and_why_others_were_dropped(visit: Visit, site: Live) -> None:
    page = visit.open("steps", text=LOVE, to="it")
    trace = document(site, model="translator", text=LOVE, to="it", options={"beam_size": 4, "n_best": 4})
    page.get_by_role("button", name="The next position").click()
    assert page.get_by_text("position 2 of 5", exact=True).is_visible()
    names = texts(page.locator(".bars .name"))
    assert names[:-1] == [token.strip() for token in trace["output"]["tokens"][1]]
    assert page.locator(".bars .chosen").inner_text() == trace["output"]["chosen"][1]["token"].strip()
    here = [node for node in trace["search"]["nodes"] if node["position"] == 2]
    rows = page.locator(".dropped tbody tr")
    assert rows.count() == len(here)
    assert [number(text) for text in texts(rows.locator("td:nth-child(3)"))] == pytest.approx([node["total"] for node in here], abs=6e-4)
    beaten = next(index for index, node in enumerate(here) if node["reason"] == "beaten")
    assert "4 continuations were more probable" in rows.nth(beaten).inner_text()
    drawn = page.locator(".tree g[role=button]")
    assert drawn.count() == sum(0 < node["position"] <= 2 for node in trace["search"]["nodes"])
    rows.nth(beaten).get_by_role("button").click()
    assert "beaten" in page.locator(".view-steps .made").first.inner_text()
    assert page.locator(".tree .picked").count() == 1
    page.get_by_role("button", name="Play").click()
    page.get_by_text("position 3 of 5", exact=True).wait_for()
    page.get_by_role("button", name="Stop").click()
