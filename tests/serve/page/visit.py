"""A page that is being looked at, and plain ways to read what it shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from tests.serve.live import Live

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

VIEWS = ("answer", "attention", "steps", "inside", "positions", "runs")
LOVE = "I love you very much."
ASKED = {"translator": LOVE, "writer": "the cat", "critic": "this film was lovely", "guesser": "the [MASK] sat on the mat."}
PATIENCE = 60_000  # milliseconds: for machines that have other things to do


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
        self.page.goto(f"{self.address}#/{view}?{urlencode(said)}")
        self.settled()
        return self.page

    def way(self, pattern: str) -> Way:
        return Way(self.page, pattern)

    def settled(self) -> None:
        self.page.locator("#view[aria-busy=false]:not(:has(.working)):not(:empty)").wait_for()


class Way:
    """The way to one of the server's answers, which can be cut and mended. All of it is watched from before the page opens: where watching
    begins or ends under way, a request that comes at once may still go as before."""

    def __init__(self, page: Page, pattern: str) -> None:
        self.instead: Callable[[Route], None] | None = None
        page.route(pattern, lambda route: self.instead(route) if self.instead else route.continue_())

    def cut(self) -> None:
        self.instead = lambda route: route.abort()

    def mend(self) -> None:
        self.instead = None


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
