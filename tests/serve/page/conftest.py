"""A real browser, and a site for it to look at.

Nothing may be fetched from elsewhere and nothing may be complained about in the console: each test ends with a look at both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from regard.door import Model, load
from regard.serve.settings import Settings
from regard.shipped import shipped
from tests.serve.live import Live
from tests.serve.page.visit import Visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium(own: str) -> str | None:
    """The Chromium that CHROMIUM names, else one on the PATH, else Playwright's own, if it was installed."""
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else [*BROWSERS, own])), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    api = pytest.importorskip("playwright.sync_api", reason="the library that drives a browser is missing")
    with api.sync_playwright() as playwright:
        path = chromium(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("the page is tested in a browser, and there is no Chromium")
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
def site(models: dict[str, Model], bundle: Callable[[str], Path], runs: Path) -> Iterator[Live]:
    """The translator that comes with regard, and the small ones beside it."""
    if "translator" not in shipped():
        pytest.skip("no translator comes with this installation")
    mine = load("translator", device="cpu")
    mine.name = "translator"
    recurrent = load(bundle("recurrent"), device="cpu")
    recurrent.name = "recurrent"
    with Live({**models, "translator": mine, "recurrent": recurrent}, Settings(runs=runs)) as running:
        yield running


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
