"""How it looks: narrow and wide, light and dark, and colours that are as far apart as the numbers they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.serve.live import Live
from tests.serve.page.visit import LOVE, VIEWS, Visit

if TYPE_CHECKING:
    from playwright.sync_api import Page

CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const over = (one, other) => one.slice(0, 3).map((part, at) => part * (one[3] ?? 1) + other[at] * (1 - (one[3] ?? 1)));
  const grounds = (element) => {  // every colour that may stand behind its text: gradients are drawn over what lies below
    if (!element) return [[255, 255, 255]];
    const style = getComputedStyle(element), own = parse(style.backgroundColor);
    const below = own.length && (own[3] ?? 1) > 0.99 ? [own] : grounds(element.parentElement).map((each) => over(own, each));
    const layers = style.backgroundImage.match(/(?:repeating-)?linear-gradient\\((?:[^()]|\\([^()]*\\))*\\)/g);
    if (!layers) return below;
    const colours = layers.at(-1).match(/(?:rgba?|color)\\([^()]*\\)/g).map((text) => text.startsWith("color")
      ? parse(text.replace("srgb", "")).map((part, at) => at < 3 ? part * 255 : part) : parse(text));  // the ones above are lines
    return colours.flatMap((colour) => below.map((each) => over(colour, each)));
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (!own || !box.width || element.closest(".unseen, [disabled], svg, .skip, noscript") || style.visibility === "hidden") continue;
    const ratio = Math.min(...grounds(element).map((behind) => {
      const [one, other] = [light(parse(style.color)), light(behind)].sort((a, b) => b - a);
      return (one + 0.05) / (other + 0.05);
    }));
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) poor.push([element.outerHTML.slice(0, 60), ratio]);
  }
  return poor;
}"""


@pytest.mark.parametrize(("width", "dark"), [(320, True), (1280, False), (1600, True)])
def test_narrow_wide_light_and_dark(visiting: Callable[..., Visit], site: Live, width: int, dark: bool) -> None:
    """Nothing sticks out of the window, and text can be read (WCAG AA)."""
    visit = visiting(site.address + "/", width=width, dark=dark, reduced_motion="reduce")
    for view in VIEWS:
        page = visit.open(view, model="translator", text=LOVE, to="it", target=1, source=2, head=2)
        assert page.locator(".trouble").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.evaluate(CONTRAST) == [], view
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", shade)[0]) < 60) == dark
    page.locator("[data-key=theme]").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != shade
    assert page.evaluate(CONTRAST) == []


def test_words_of_any_probability_can_be_read(visiting: Callable[..., Visit], site: Live) -> None:
    """Their ground is an image, the warmer the less sure: the least sure one is tried, by day and in the dark."""
    for dark in (False, True):
        visit = visiting(site.address + "/", dark=dark)
        page = visit.open(model="translator", text=LOVE, to="it")
        page.evaluate("""async () => {
          const made = (await import("/answer.js")).sure(0);
          for (const word of document.querySelectorAll(".sure")) word.style.setProperty("--warm", made.style["--warm"]);
        }""")
        assert page.locator(".sure").count() > 4
        assert page.evaluate(CONTRAST) == []


def test_on_paper(visiting: Callable[..., Visit], site: Live) -> None:
    """Light, with all grounds and what is chosen, nothing cut off, and no controls."""
    visit = visiting(site.address + "/", dark=True)
    page = visit.open("attention", model="translator", text=LOVE, to="it", layer=3, target=4)
    dark = page.locator(".weights .picked-word + td").first.evaluate("own => getComputedStyle(own).backgroundColor")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".weights .picked-word + td").first.evaluate("own => getComputedStyle(own).backgroundColor") != dark
    for chosen in (".weights td", ".options input:checked + span", ".heads canvas", ".token.lit"):
        assert page.locator(chosen).first.evaluate("own => getComputedStyle(own).printColorAdjust") == "exact"
    assert page.locator(".options input:checked + span").all_inner_texts() == ["cross", "3", "all", "table"]
    assert not page.locator(".tools").is_visible()
    assert page.locator(".big > .scroll").evaluate("own => getComputedStyle(own).maxHeight") == "none"
    assert page.locator(".card").first.evaluate("own => getComputedStyle(own).breakInside") == "avoid"
    page.set_viewport_size({"width": 718, "height": 1000})  # A4 within its margins
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator(".weights .picked-word + td").first.evaluate("own => getComputedStyle(own).backgroundColor") == dark


CUT = """() => [...document.querySelectorAll(".card")].flatMap((card) => [...card.querySelectorAll("table, canvas, p")]
  .filter((own) => own.getBoundingClientRect().right > card.getBoundingClientRect().right + 0.5)
  .map((own) => own.outerHTML.slice(0, 80)))"""
SHEET = 1122 - 24 / 25.4 * 96  # the height of A4 within its margins
BETWEEN_SHEETS = """(card, sheet) => {
  const made = (height) => Object.assign(document.createElement("div"), { style: `height: ${height}px` });
  card = card.closest(".card");
  const { top, height } = card.getBoundingClientRect();
  while (card.nextSibling) card.nextSibling.remove();
  card.before(made((2 * sheet - top - scrollY - height / 2) % sheet));
  card.after(made(sheet - 0.8 * height));
}"""


def pages(page: Page) -> int:
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(format="A4")))


def test_sheets_of_paper(visit: Visit) -> None:
    """Inside takes few, and what fits on one is not cut over two, nor at its edge."""
    page = visit.page
    page.set_viewport_size({"width": 718, "height": 1000})
    page.emulate_media(media="print")
    for view, said, most in (
        ("answer", {}, 1),
        ("attention", {}, 1),
        ("steps", {"target": 2}, 2),
        ("inside", {"target": 1, "layer": 3}, 3),
    ):
        page = visit.open(view, text=LOVE, to="it", **said)
        assert page.evaluate(CUT) == [], view
        assert page.evaluate("document.documentElement.scrollHeight") / SHEET <= pages(page) <= most, view
    for name in ("Alternatives, best first", "Every token"):
        page = visit.open(text=LOVE, to="it")
        card = page.get_by_role("region", name=name)
        assert card.evaluate("own => own.closest('.card').offsetHeight") < SHEET / 2
        # Half of it would fit on the first sheet, and what follows on the second: but it goes to the second as a whole.
        card.evaluate(BETWEEN_SHEETS, SHEET)
        assert pages(page) == 3, name


def test_the_scale_is_even(visit: Visit) -> None:
    """Steps of the scale are about as far apart to the eye (CIELAB), and always darker."""
    page = visit.open()
    table = np.array(page.evaluate("async () => (await import('/colour.js')).EVEN")) / 255
    straight = np.where(table <= 0.04045, table / 12.92, ((table + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = straight @ matrix.T / [0.9505, 1.0, 1.089]
    bent = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    lightness = 116 * bent[:, 1] - 16
    assert (np.diff(lightness[::8]) < 0).all()
    steps = -np.diff(lightness[::16])
    assert steps.max() < 1.8 * steps.min()
