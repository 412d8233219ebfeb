"""Positions: how each place is told, and how alike two of them are."""

from __future__ import annotations

import pytest

from tests.serve.live import Live
from tests.serve.page.visit import LOVE, Visit, document, unfolded


def test_positions(visit: Visit, site: Live) -> None:
    page = visit.open("positions", text=LOVE, to="it", source=2)
    schemes = document(site, model="translator", text=LOVE, to="it", parts=["schemes"])["schemes"]
    assert page.get_by_label("sinusoidal (this model's)").is_checked()
    shown = unfolded(page.locator("#view"))
    assert shown == pytest.approx(schemes["sinusoidal"]["similarity"]["mean"], abs=6e-4)
    canvas = page.locator("canvas[data-key=positions]")
    canvas.focus()
    canvas.press("ArrowDown")
    assert page.locator("figure", has=canvas).locator("output").inner_text().startswith("position 3, number 0: ")
    page.get_by_role("radio", name="rotary").check(force=True)
    assert "scheme=rotary" in page.url
