"""Attention: the weights shown are those of the trace, from the grid of heads to the product behind a cell."""

from __future__ import annotations

import re

import numpy as np
import pytest

from regard.view.trace_json import decoded
from tests.serve.live import Live
from tests.serve.page.visit import LOVE, Visit, document, number, texts


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_weights_are_those_of_the_trace(visit: Visit, site: Live, kind: str) -> None:
    """Of the hypothesis that beam search chose: the table's numbers, rows that sum to 1, zeros where masked."""
    page = visit.open("attention", text=LOVE, to="it", kind=kind, layer=2, head=3)
    trace = document(site, model="translator", text=LOVE, to="it", parts=["weights"])
    weights = decoded(trace["attention"][kind]["weights"])
    cells = page.locator(".weights tbody tr")
    titles = [[cell.get_attribute("title") or "" for cell in row.locator("td:not(.total)").all()] for row in cells.all()]
    shown = [[0.0 if "may not see" in title else float(title.split()[-1]) for title in row] for row in titles]
    np.testing.assert_allclose(shown, weights[1, 2].numpy(), atol=1e-6)
    printed = [[number(text) for text in texts(row.locator("td"))] for row in cells.all()]
    np.testing.assert_allclose([row[:-1] for row in printed], weights[1, 2].numpy(), atol=5.1e-4)
    assert [row[-1] for row in printed] == [1.0] * len(printed)
    hidden = page.locator(".weights td.hidden").count()
    size = len(printed)
    assert hidden == (size * (size - 1) // 2 if kind == "decoder" else 0)
    layers, heads = weights.shape[:2]
    assert page.locator(".heads button").count() == layers * heads
    page.get_by_label("all", exact=True).check(force=True)
    average = [[number(text) for text in texts(row.locator("td"))][:-1] for row in page.locator(".weights tbody tr").all()]
    np.testing.assert_allclose(average, weights[1].mean(0).numpy(), atol=5.1e-4)


def test_from_a_cell_to_the_product_behind_it(visit: Visit, site: Live) -> None:
    page = visit.open("attention", text=LOVE, to="it", kind="cross", layer=3, head=5)
    page.locator(".weights tbody tr").nth(1).locator("td").nth(2).click()
    assert "target=1" in page.url
    assert "source=2" in page.url
    page.get_by_role("button", name="The dot product behind it").click()
    visit.settled()
    trace = document(site, model="translator", text=LOVE, to="it", parts=["weights", "scores", "qkv"])
    cross = trace["attention"]["cross"]
    said = page.locator("#stage-cross-scores .equation").inner_text()
    dot, _, scaled = (number(found) for found in re.findall(r"[−\d][\d.]*", said.split("q·k =")[1])[:3])
    product = decoded(cross["q"])[2, 4, 1] * decoded(cross["k"])[2, cross["kv"][4], 2]
    assert dot == pytest.approx(float(product.sum()), abs=2e-3)
    assert scaled == pytest.approx(float(decoded(cross["scores"])[2, 4, 1, 2]), abs=2e-2)
    weights = texts(page.locator("#stage-cross-softmax tbody tr").last.locator("td"))
    np.testing.assert_allclose([number(text) for text in weights], decoded(cross["weights"])[2, 4, 1].numpy(), atol=5.1e-4)


def test_lines_and_the_grid(visit: Visit) -> None:
    page = visit.open("attention", text=LOVE, to="it", shape="lines")
    page.locator(".lines path").first.wait_for(state="attached")
    page.locator(".lines text", has_text="amo").hover()
    faded = [float(path.get_attribute("opacity") or 1) for path in page.locator(".lines path").all()]
    assert min(faded) < 0.1 < max(faded)
    page.get_by_role("button", name="layer 2, head 6", exact=True).click()
    assert "layer=2" in page.url
    assert "head=6" in page.url
    assert "layer 2, head 6" in page.locator(".big h2").inner_text()
