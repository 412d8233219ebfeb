"""Runs: curves that grow while a training goes on."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from tests.serve.page.visit import Visit


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
