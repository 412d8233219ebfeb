"""No request keeps the event loop to itself: others have their turn, whatever is sent."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from tests.serve.live import Live, Start, until

MEGABYTE = (1 << 20) - 200
LONGEST = 0.1  # seconds of processor time between two turns of the others


@dataclass
class Beat:
    """How long others waited at most, in seconds of processor time of this process: what else runs on the machine counts for nothing."""

    longest: float = 0.0
    count: int = 0

    async def go_on(self) -> None:
        while True:
            wall, own = time.perf_counter(), time.process_time()
            await asyncio.sleep(0.002)
            self.longest = max(self.longest, min(time.perf_counter() - wall, time.process_time() - own))
            self.count += 1


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join((f"{line} HTTP/1.1", "host: localhost", "connection: close", *fields, "", "")).encode()


def post(path: str, body: bytes, kind: str = "application/json") -> bytes:
    return head(f"POST {path}", f"content-type: {kind}", f"content-length: {len(body)}") + body


def filled(begin: str, item: str, end: str) -> bytes:
    """A megabyte of the same."""
    count = (MEGABYTE - len(begin) - len(end)) // (len(item) + 1)
    return (begin + ",".join([item] * count) + end).encode()


def crumbs(size: int) -> bytes:
    return head("POST /api/translate", "content-type: application/json", "transfer-encoding: chunked") + b"1\r\n \r\n" * size


KEYS = '{"texts": "1", ' + ", ".join(f'"k{number}": 1' for number in range(70_000)) + "}"
LISTS = {
    "/api/translate": ('{"to": "back", "texts": [', "]}"),
    "/translate": ('{"target": "back", "q": [', "]}"),
    "/v1/completions": ('{"model": "writer", "prompt": [', "]}"),
    "/v1/chat/completions": ('{"model": "writer", "messages": [{"role": "user", "content": [', "]}]}"),
}
REQUESTS = {
    f"{item} to {path}": post(path, filled(begin, item, end)) for path, (begin, end) in LISTS.items() for item in ("1", '""', "[]", "{}")
}
REQUESTS |= {
    "many keys": post("/api/translate", KEYS.encode()),
    "no key at all": post("/api/translate", b'"" ' * (MEGABYTE // 3)),
    "many lines": post("/translate", json.dumps({"target": "back", "q": ["1\n" * 4_900] * 70}).encode()),
    "tags": post("/translate", json.dumps({"target": "back", "format": "html", "q": ["<p>1" * 2_400] * 100}).encode()),
    "crumbs": crumbs(100_000),
    "the description": head("GET /openapi.json"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_a_server_does() -> Iterator[None]:
    """What was there before is not looked through for garbage, which takes a tenth of a second."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", REQUESTS)
def test_others_have_their_turn(start: Start, name: str) -> None:
    live, beat = start(), Beat()
    loop = live.server.servers[0].get_loop()
    beating = asyncio.run_coroutine_threadsafe(beat.go_on(), loop)
    status = asked(live, REQUESTS[name])
    answered = beat.count
    until(lambda: beat.count > answered + 1)
    beating.cancel()
    assert beat.longest < LONGEST
    assert status in (200, 400, 413)
    assert live.get("/health").status == 200


def asked(live: Live, request: bytes) -> int:
    """The status of the answer, with which the server may well have refused to read on; of such a one 400."""
    said = b""
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as connection, suppress(ConnectionError):
        with suppress(ConnectionError):
            connection.sendall(request)
        while came := connection.recv(1 << 16):
            said += came
    return int(said[9:12] or 400)
