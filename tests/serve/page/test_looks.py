"""How it looks: narrow and wide, light and dark, and colours that are as far apart as the numbers they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.serve.live import Live
from tests.serve.page.visit import LOVE, VIEWS, Visit

CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at), found = parse(style.backgroundColor);
      if (style.backgroundImage !== "none") return null;
      if (found.length && (found.length < 4 || found[3] > 0.99)) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    if (!own || !box.width || element.closest(".unseen, [disabled], svg, .skip, noscript") || style.visibility === "hidden") continue;
    const behind = ground(element);
    if (!behind) continue;
    const [one, other] = [light(parse(style.color)), light(behind)].sort((a, b) => b - a), ratio = (one + 0.05) / (other + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) poor.push([element.outerHTML.slice(0, 60), ratio]);
  }
  return poor;
}"""


@pytest.mark.parametrize(("width", "dark"), [(380, True), (1280, False), (1600, True)])
def test_narrow_wide_light_and_dark(visiting: Callable[..., Visit], site: Live, width: int, dark: bool) -> None:
    """Nothing sticks out of the window, and text can be read (WCAG AA)."""
    visit = visiting(site.address + "/", width=width, dark=dark, reduced_motion="reduce")
    for view in VIEWS:
        page = visit.open(view, text=LOVE, to="it", target=1, source=2, head=2)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.evaluate(CONTRAST) == [], view
    shade = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", shade)[0]) < 60) == dark
    page.locator("[data-key=theme]").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != shade
    assert page.evaluate(CONTRAST) == []


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
