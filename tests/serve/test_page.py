"""The page in a real browser: six views for a translator, a language model and a classifier; what it shows is what the trace says.

Nothing here may be fetched from elsewhere and nothing may be complained about in the console: each test ends with a look at both.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from regard.door import Model, load
from regard.serve.settings import Settings
from regard.shipped import shipped
from regard.view.page import MOST, write_page
from regard.view.trace import as_json, decoded
from tests.serve.live import Live

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

VIEWS = ("answer", "attention", "steps", "inside", "positions", "runs")
LOVE = "I love you very much."
ASKED = {"translator": LOVE, "writer": "the cat", "critic": "this film was lovely", "guesser": "the [MASK] sat on the mat."}
PATIENCE = 60_000  # milliseconds: for machines that have other things to do
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="the page is tested in a browser: pip install playwright")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("the page is tested in a browser; install one, as in: apt-get install chromium")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="session")
def runs(bundle: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of trainings: those that made the small models."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("writer", "critic"):
        run = folder / name
        run.mkdir()
        for file in ("metrics.jsonl", "recipe.toml"):
            shutil.copy(bundle(name).parent / file, run / file)
    return folder


@pytest.fixture(scope="session")
def site(models: dict[str, Model], runs: Path) -> Iterator[Live]:
    """The translator that comes with regard, and the small ones beside it."""
    if "translator" not in shipped():
        pytest.skip("no translator comes with this installation")
    mine = load("translator", device="cpu")
    mine.name = "translator"
    with Live({**models, "translator": mine}, Settings(runs=runs)) as running:
        yield running


class Visit:
    """A page that is being looked at, and everything that it asked for or complained about."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.complaints: list[str] = []
        self.outside: list[str] = []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else self.outside.append(asked.url))
        page.set_default_timeout(PATIENCE)

    def open(self, view: str = "answer", **said: Any) -> Page:
        from urllib.parse import urlencode

        self.page.goto(f"{self.address}#/{view}?{urlencode(said)}")
        self.settled()
        return self.page

    def settled(self) -> None:
        self.page.locator("#view[aria-busy=false]:not(:has(.working)):not(:empty)").wait_for()


@pytest.fixture
def visiting(browser: Browser) -> Iterator[Callable[..., Visit]]:
    contexts, visits = [], []

    def visit(address: str, *, width: int = 1280, dark: bool = False, **options: Any) -> Visit:
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme="dark" if dark else "light", locale="en-GB", **options)  # type: ignore[arg-type]
        contexts.append(context)
        visits.append(Visit(context.new_page(), address))
        return visits[-1]

    yield visit
    for context in contexts:
        context.close()
    assert [complaint for visit in visits for complaint in visit.complaints] == []
    assert [url for visit in visits for url in visit.outside] == []


@pytest.fixture
def visit(visiting: Callable[..., Visit], site: Live) -> Visit:
    return visiting(site.address + "/")


def document(site: Live, **asked: Any) -> dict[str, Any]:
    reply = site.post("/api/trace", asked)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json
    return found


def texts(found: Locator) -> list[str]:
    return [text.strip() for text in found.all_inner_texts()]


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", ""))


def unfolded(card: Locator) -> list[float]:
    """The first column of the numbers that a card holds."""
    card.locator("summary", has_text="Numbers").click()
    card.locator(".numbers td").first.wait_for()
    return [number(text) for text in texts(card.locator(".numbers tbody td:nth-child(2)"))]


# Answer


def test_a_translation_and_what_its_words_looked_at(visit: Visit, site: Live) -> None:
    page = visit.open()
    page.get_by_role("button", name=LOVE).click()  # the example of an empty page
    visit.settled()
    trace = document(site, model="translator", text=LOVE, to="it", options={"beam_size": 4, "n_best": 4})
    answer = page.locator(".output")
    assert answer.inner_text() == trace["answer"]["text"]
    titles = [word.get_attribute("title") or "" for word in answer.locator("button").all()]
    sure = [number(title.removeprefix("probability ")) for title in titles]
    assert sure == pytest.approx(np.exp(trace["answer"]["log_probabilities"][: len(sure)]), abs=6e-4)
    others = page.get_by_role("region", name="Alternatives").locator("tbody tr td:nth-child(2)")
    assert [" ".join(text.split()) for text in texts(others)] == [other["text"] for other in trace["answer"]["alternatives"]]
    answer.locator("button").nth(1).hover()
    looks = decoded(trace["alignment"])[1]
    lit = texts(page.locator(".input .lit"))
    assert trace["source"]["tokens"][int(looks.argmax())].strip() in lit
    told = page.locator(".told").inner_text()
    best = trace["source"]["tokens"][int(looks.argmax())].strip()
    assert f"looked at {best} {float(looks.max()):.2f}" in told
    answer.locator("button").nth(1).click()
    assert "target=1" in page.url


def test_the_other_verbs(visit: Visit, site: Live) -> None:
    page = visit.open(model="critic", text=ASKED["critic"])
    said = site.post("/api/classify", {"model": "critic", "texts": ASKED["critic"]}).json["answers"][0]
    assert page.locator(".output strong").inner_text() == said["label"]
    shown = {row.split("\t")[0]: number(row.split("\t")[-1]) for row in texts(page.get_by_role("region", name="label").locator("tbody tr"))}
    assert shown == pytest.approx(said["probabilities"], abs=6e-4)
    page = visit.open(model="guesser", text=ASKED["guesser"])
    filled = site.post("/api/fill", {"model": "guesser", "texts": ASKED["guesser"], "choices": 8}).json["answers"][0]
    assert page.locator(".output").inner_text() == filled["text"]
    assert texts(page.locator(".bars .name"))[0] == filled["choices"][0][0]["word"]
    page = visit.open(model="writer", text=ASKED["writer"], seed=3, length=12)
    said = site.post(
        "/api/generate", {"model": "writer", "texts": "the cat", "max_length": 12, "temperature": 0.8, "top_p": 0.95, "seed": 3}
    )
    assert " ".join(page.locator(".output").inner_text().split()).endswith(" ".join(said.json["answers"][0]["text"].split()))
    page.get_by_role("button", name="Another").click()
    assert "seed=4" in page.url


# Attention


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


# Steps


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


# Inside


def test_one_word_through_a_layer(visit: Visit, site: Live) -> None:
    page = visit.open("inside", text=LOVE, to="it", kind="encoder", source=2, layer=1, head=4)
    trace = document(site, model="translator", text=LOVE, to="it")
    stages = ["Embedding", "+ position", "Norm", "Q, K, V of head 4", "Scores", "Mask", "Softmax", "Weighted sum", "Heads joined"]
    stages += ["Projection", "Add", "Norm", "Feed-forward", "Add", "To layer 2"]
    assert texts(page.locator(".stage h3")) == stages
    vectors = trace["vectors"]["encoder"]
    for stage, wanted in (
        ("embedding", decoded(vectors["embeddings"])[2]),
        ("self-out", decoded(vectors["layers"][0]["attention"]["output"])[2]),
        ("next", decoded(vectors["layers"][1]["input"])[2]),
    ):
        card = page.locator(f"#stage-{stage}")
        shown = unfolded(card)
        np.testing.assert_allclose(shown, wanted.numpy(), atol=0.02, rtol=2e-3)  # halves, summed by the page
    weights, values = (decoded(trace["attention"]["encoder"][name]) for name in ("weights", "v"))
    card = page.locator("#stage-self-sum")
    shown = unfolded(card)
    np.testing.assert_allclose(shown, (weights[0, 3, 2] @ values[0, 3]).numpy(), atol=2e-4)
    page.get_by_role("button", name="On to layer 2").click()
    assert "layer=2" in page.url
    assert texts(page.locator(".stage h3"))[0] == "Input"


def test_the_decoder_has_cross_attention_and_ends_in_words(visit: Visit) -> None:
    page = visit.open("inside", text=LOVE, to="it", target=1, layer=3)
    assert texts(page.locator(".path > h2")) == ["Coming in", "Masked self-attention", "Cross-attention", "Feed-forward", "Going on"]
    assert page.locator("#stage-logits .chosen").inner_text() == "amo"
    assert page.locator("#stage-self-mask td.hidden").count() == 3  # of five positions, the second sees two


# Positions and runs


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


# Everywhere


@pytest.mark.parametrize("name", ["writer", "critic", "guesser"])
def test_every_view_of_a_small_model(visit: Visit, name: str) -> None:
    for view in VIEWS:
        page = visit.open(view, model=name, text=ASKED[name])
        assert page.locator(f"#header a[aria-current=page][data-key=view-{view}]").count() == 1
        assert page.locator(".trouble").count() == 0
        wanted = {"attention": ".weights td", "inside": "#stage-logits", "positions": "canvas", "runs": ".chart", "answer": ".output"}
        page.locator(wanted.get(view, "table tbody tr")).first.wait_for()


def test_by_keyboard_alone(visit: Visit) -> None:
    page = visit.open(to="it")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.locator("body").press("/")
    page.keyboard.type(LOVE)
    page.keyboard.press("Enter")
    page.locator(".output").wait_for()
    visit.settled()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.dataset.key") != "word-target-1":
        page.keyboard.press("Tab")
    assert page.locator(".input .lit").count() > 0  # the focus points, too
    page.keyboard.press("Enter")
    page.keyboard.press("2")
    page.locator(".weights").wait_for()
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("Shift+ArrowRight")
    assert "layer=2" in page.url
    assert "head=1" in page.url
    page.keyboard.press("ArrowRight")
    assert "target=2" in page.url
    while page.evaluate("document.activeElement.dataset.key") != "cell":
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "source=1" in page.url
    assert "target=3" in page.url
    assert page.evaluate("document.activeElement.tagName") == "TD"
    page.keyboard.press("t")
    page.locator(".lines").wait_for()
    page.keyboard.press("3")
    page.locator(".tree").wait_for()
    page.keyboard.press("ArrowLeft")
    page.get_by_text("position 3 of 5", exact=True).wait_for()
    page.keyboard.press("?")
    assert page.locator("dialog dt").count() > 8
    page.keyboard.press("Escape")
    assert page.locator("dialog").count() == 0
    page.keyboard.press("4")
    page.locator("#stage-self-scores").wait_for()
    page.keyboard.press("5")
    page.locator("canvas[data-key=positions]").wait_for()
    page.keyboard.press("6")
    page.locator(".chart").first.wait_for()


def test_the_address_is_all_there_is_to_it(visit: Visit, visiting: Callable[..., Visit]) -> None:
    page = visit.open("attention", text=LOVE, to="it")
    page.get_by_label("decoder", exact=True).check(force=True)
    page.get_by_role("button", name="layer 3, head 2", exact=True).click()
    page.locator(".weights tbody tr").nth(3).locator("td").nth(1).click()
    other = visiting(visit.address)
    other.page.goto(page.url)
    other.settled()
    assert (
        other.page.locator(".big h2").inner_text()
        == page.locator(".big h2").inner_text()
        == "Self-attention of the decoder, layer 3, head 2"
    )
    assert other.page.locator(".weights .picked").inner_text() == page.locator(".weights .picked").inner_text()
    page.locator("#header").get_by_text("Steps").click()
    page.get_by_text("position 4 of 5", exact=True).wait_for()  # what was picked stays picked
    page.go_back()
    page.locator(".weights .picked").wait_for()


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


def test_text_never_becomes_markup(visit: Visit) -> None:
    nasty = "<img src=x onerror=alert(1)> & <b>cats</b>"
    page = visit.open("attention", text=nasty, to="it")
    for view in VIEWS[:5]:
        page.keyboard.press(str(VIEWS.index(view) + 1))
        visit.settled()
        assert page.locator("#view img, #sentence img, #sentence b").count() == 0
    assert page.locator("textarea").input_value() == nasty


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


def test_something_happens_at_once(visit: Visit) -> None:
    page = visit.open(to="it")

    def late(route: Any) -> None:
        time.sleep(0.5)
        route.continue_()

    page.route("**/api/translate", late)
    page.locator("textarea").fill(LOVE)
    shown = page.evaluate(
        """async () => {
          const begun = performance.now();
          document.querySelector(".ask .go").click();
          while (!document.querySelector(".working") && performance.now() - begun < 2000) await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        }"""
    )
    assert shown < 100
    page.locator(".output").wait_for()
    visit.settled()


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
    page.get_by_role("button", name="The dot product behind it").click()
    page.locator("#stage-cross-scores .equation").wait_for()
    assert "target=1" in page.url
    page.reload()
    page.locator("#stage-cross-scores .equation").wait_for()
