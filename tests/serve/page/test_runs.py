"""Runs: curves that grow while a training goes on."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.serve.page.visit import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_training_in_progress(visit: Visit, runs: Path) -> None:
    page = visit.open("runs")
    page.get_by_role("button", name=re.compile("^critic")).click()
    page.locator(".chart[data-key=chart-accuracy]").wait_for()
    before = page.locator("td", has_text="123,456").count()
    record = {"step": 123456, "time": time.time(), "kind": "train", "loss": 0.125, "tokens_per_second": 9876.0}
    with (runs / "critic" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    page.locator("td", has_text="123,456").first.wait_for()
    assert before == 0
    assert "0.125" in page.locator("tr", has_text="123,456").first.inner_text()


def test_curves_can_be_compared(visit: Visit) -> None:
    """One colour for one kind in every chart, and a name; one axis of steps; numbers that are what they say."""
    figures = {"loss": 7.0, "perplexity": 9000.0}
    records: list[dict[str, object]] = [
        {"step": step, "kind": "train", "loss": 9.0 - step / 500, "perplexity": 9e3 / step} for step in (1, 1000)
    ]
    records += [{"step": step, "kind": "dev", **figures, "bleu": 2.0, "exact": 0.0} for step in (500, 1000)]
    own = {"name": "young", "updated": 0.0, "step": 1000, "steps": None, "task": "translate"}
    said = {"name": "young", "records": records, "since": 1, "reset": False, "more": False}
    visit.page.route("**/api/runs", lambda route: route.fulfill(json={"runs": [own]}))
    visit.page.route("**/api/runs/*", lambda route: route.fulfill(json=said))
    page = visit.open("runs")
    page.locator(".chart[data-key=chart-exact] polyline").wait_for(state="attached")

    def colour(chart: str, name: str) -> str | None:
        figure = page.locator("figure.curves", has=page.locator(f"[data-key=chart-{chart}]"))
        return figure.locator(".names li", has_text=name).locator("line").get_attribute("stroke")

    assert colour("loss", "train") == colour("perplexity", "train")
    assert colour("loss", "dev") == colour("bleu", "dev") == colour("exact", "dev") == colour("perplexity", "dev")
    assert colour("loss", "train") != colour("loss", "dev")
    ticks = {name: texts_of(page, name) for name in ("loss", "bleu", "exact", "perplexity")}
    steps = [text for text in ticks["loss"]["middle"] if text]
    assert all(own["middle"] == steps for own in ticks.values())
    assert "1,000" in ticks["perplexity"]["end"]
    assert all(re.fullmatch(r"[\d.]+|\d{1,3}(,\d{3})+", text) for text in ticks["perplexity"]["end"])
    assert min(float(text.replace("−", "-")) for text in ticks["exact"]["end"]) == 0


def texts_of(page: Page, chart: str) -> dict[str, list[str]]:
    """What stands at the ticks of each axis: steps in the middle, figures at the end."""
    return {
        anchor: page.locator(f"[data-key=chart-{chart}] .tick:not(.name)[text-anchor={anchor}]").all_text_contents()
        for anchor in ("middle", "end")
    }
