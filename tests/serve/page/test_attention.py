"""Attention: the weights shown are those of the trace, from the grid of heads to the product behind a cell."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from regard.view.trace_json import decoded
from tests.serve.live import Live, until
from tests.serve.page.visit import LOVE, Visit, document, number, texts

if TYPE_CHECKING:
    from playwright.sync_api import Page


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
    assert arrived(page) == ["stage-cross-scores", True]
    trace = document(site, model="translator", text=LOVE, to="it", parts=["weights", "scores", "qkv"])
    cross = trace["attention"]["cross"]
    said = page.locator("#stage-cross-scores .equation").inner_text()
    dot, _, scaled = (number(found) for found in re.findall(r"[−\d][\d.]*", said.split("q·k =")[1])[:3])
    product = decoded(cross["q"])[2, 4, 1] * decoded(cross["k"])[2, cross["kv"][4], 2]
    assert dot == pytest.approx(float(product.sum()), abs=2e-3)
    assert scaled == pytest.approx(float(decoded(cross["scores"])[2, 4, 1, 2]), abs=2e-2)
    weights = texts(page.locator("#stage-cross-softmax tbody tr").last.locator("td"))
    np.testing.assert_allclose([number(text) for text in weights], decoded(cross["weights"])[2, 4, 1].numpy(), atol=5.1e-4)


def arrived(page: Page) -> list[object]:
    """What has the focus, and whether it begins within the window."""
    found: list[object] = page.evaluate("""() => {
      const own = document.activeElement, top = own.getBoundingClientRect().top;
      return [own.id, top >= 0 && top < innerHeight / 2 && scrollY > 0];
    }""")
    return found


def test_from_an_average_to_the_head_that_is_asked_for(visit: Visit) -> None:
    """Each head has a weight and a product of its own: the link says which it leads to, and leads there, by keyboard too."""
    page = visit.open("attention", text=LOVE, to="it", kind="cross", layer=3, target=0, source=4)
    links = page.locator(".made").get_by_role("button")
    weights = [number(text.split(": ")[1]) for text in texts(links)]
    cell = number(page.locator(".weights .picked").inner_text())
    assert np.mean(weights) == pytest.approx(cell, abs=1e-3)
    links.nth(2).focus()
    page.keyboard.press("Enter")
    visit.settled()
    assert arrived(page) == ["stage-cross-scores", True]
    assert "head=3" in page.url
    row = page.locator("#stage-cross-softmax tbody tr").last.locator("td")
    assert number(row.nth(4).inner_text()) == weights[2]
    assert "This is the row that Attention shows" in page.locator("#stage-cross-softmax").inner_text()
    assert "Attention shows" not in page.locator("#stage-self-softmax").inner_text()  # but cross-attention's
    page.evaluate("scrollTo(0, 500)")
    page.wait_for_timeout(150)
    page.keyboard.press("2")
    page.locator(".weights").wait_for()
    page.evaluate("scrollTo(0, 0)")
    page.go_back()
    visit.settled()
    until(lambda: page.evaluate("scrollY") == 500)  # the way back goes to where it was left
    page.goto(visit.address + "#/inside?model=translator&to=it&text=Hello.&layer=3&stage=cross-scores")
    visit.settled()
    assert arrived(page) == ["stage-cross-scores", True]  # and an address alone leads there
    page.goto(visit.address + "#/inside?model=translator&to=it&text=Hello.&layer=3")
    visit.settled()
    assert "averaged with those of the other heads" in page.locator("#stage-cross-softmax").inner_text()
    assert "Attention shows" not in page.locator("#stage-self-softmax").inner_text()
    page.goto(visit.address + "#/inside?model=translator&to=it&text=Hello.&layer=3&head=2&kind=decoder")
    visit.settled()
    assert "This is the row that Attention shows" in page.locator("#stage-self-softmax").inner_text()
    assert "Attention shows" not in page.locator("#stage-cross-softmax").inner_text()


def test_lights_show_what_the_table_shows(visit: Visit) -> None:
    """The same layer, head and kind: the colours of the picked word's row, and of the tokens above it, are one."""
    lit = (
        """() => [...document.querySelectorAll(".weights tr:has(.picked-word) td:not(.total)")].map((cell) => cell.style.backgroundColor)"""
    )
    strip = """(name) => [...document.querySelectorAll(`[aria-label="${name} tokens"] button`)]
        .map((own) => own.classList.contains("lit") ? own.style.backgroundColor : null)"""
    for kind, side, layer, head in (
        ("cross", "source", 1, 0),
        ("cross", "source", 3, 2),
        ("encoder", "source", 4, 5),
        ("decoder", "target", 2, 3),
    ):
        place = {"source": 3} if kind == "encoder" else {"target": 2}
        page = visit.open("attention", text=LOVE, to="it", kind=kind, layer=layer, head=head, **place)
        page.locator("h1").hover()
        cells, lights = page.evaluate(lit), page.evaluate(strip, side)
        assert len(cells) == len(lights)
        assert any(lights), page.locator("body").inner_text()
        assert all(own in (None, cell) for own, cell in zip(lights, cells, strict=True)), kind
        assert f"layer {layer}, {f'head {head}' if head else 'average of all heads'}" in page.locator(".strip-light").inner_text()
        page.keyboard.press("4")
        visit.settled()
        row = page.locator(f"#stage-{'cross' if kind == 'cross' else 'self'}-softmax tbody tr").last.locator("td")
        row.first.wait_for()
        page.locator("h1").hover()
        cells, lights = row.evaluate_all("all => all.map((cell) => cell.style.backgroundColor)"), page.evaluate(strip, side)
        assert len(cells) == len(lights)
        assert any(lights), kind
        assert all(own in (None, cell) for own, cell in zip(lights, cells, strict=True)), kind
        assert f"layer {layer}, head {head or 1}" in page.locator(".strip-light").inner_text()  # an average can't be looked inside
    page = visit.open(text=LOVE, to="it", target=0)
    page.locator("h1").hover()
    lights = [own for own in page.locator(".input [role=button]").evaluate_all("all => all.map((own) => own.style.backgroundColor)") if own]
    page.get_by_role("button", name="all attention").click()
    page.locator(".weights").wait_for()
    assert lights
    assert set(lights) <= set(page.evaluate(lit))


def test_a_recurrent_model_has_no_dot_product(visit: Visit) -> None:
    page = visit.open("attention", model="recurrent", text="1 2 3")
    assert "dot product" not in page.locator("#view").inner_text()
    page.locator(".weights tbody tr").nth(1).locator("td").nth(1).click()
    assert "dot product" not in page.locator("#view").inner_text()
    assert "average" not in page.locator("#view").inner_text()
    edges = page.locator(".heads .row-picked").evaluate("own => getComputedStyle(own).boxShadow")
    assert "0px 0px 0px 2px inset" in edges  # on all four sides
    page.get_by_role("button", name="The context").click()
    visit.settled()
    assert page.evaluate("document.activeElement.id") == "stage-context"
    page.keyboard.press("1")
    page.locator(".output").wait_for()
    visit.settled()
    page.locator(".intro .why summary").click()
    page.locator(".intro .why p").first.wait_for()
    why = page.locator(".intro .why").inner_text()
    assert "additive attention" in why
    assert not re.search("queries|keys|heads|layer", why)


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
