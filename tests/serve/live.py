"""A server in a thread, and plain ways to ask it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from regard.door import Model
from regard.serve.app import create_app
from regard.serve.desk import Desk
from regard.serve.run import Server, address_of, bind
from regard.serve.settings import Settings

Start = Callable[..., "Live"]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Live:
    """Listens on loopback while it is entered."""

    def __init__(self, models: Mapping[str, Model], settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.app = create_app(models, self.settings)
        self.server = Server(self.app, self.settings)
        self._socket = bind("127.0.0.1", 0)
        self.address, self.port = address_of(self._socket), int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._socket]})

    @property
    def desk(self) -> Desk:
        desk: Desk = self.app.state.desk
        return desk

    def __enter__(self) -> Self:
        self._socket.listen(128)
        self._thread.start()
        until(lambda: self.server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._socket.close()

    def ask(self, method: str, path: str, body: bytes | str | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, record: object, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("POST", path, json.dumps(record), {"content-type": "application/json", **(headers or {})})

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.ask("GET", path, headers=headers)


class Held:
    """A worker that waits until it is let go, so that a test can look at what waits."""

    def __init__(self, live: Live) -> None:
        self._queue = live.desk.queue
        self._work = self._queue._work
        self._go = threading.Event()
        self.begun = threading.Event()
        self.batches: list[int] = []
        self._queue._work = self._waiting

    def _waiting(self, kind: Any, entries: Any, company: Any) -> Any:
        self.batches.append(len(entries))
        self.begun.set()
        assert self._go.wait(60)
        return self._work(kind, entries, company)

    def let_go(self) -> None:
        self._go.set()


def until(happened: Callable[[], object], seconds: float = 20.0) -> None:
    """Waits for something to be so."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Each call in a thread of its own, all at once; their results in order."""
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda place=place, call=call: found.update({place: call()})) for place, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return [found[place] for place in range(len(calls))]
