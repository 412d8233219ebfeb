"""Bodies in JSON. The event loop answers everyone: nobody's body may keep it, neither while it is read nor while it is written.

What is read is bounded before anything is made of it: a megabyte of numbers would be half a million complaints. What is written and may be
large is written in a thread, in pieces: one that is written at once would keep Python from everyone else until it is done.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from regard.evaluation.metrics import finite
from regard.serve.settings import Limits

MARKS = (b",", b"[", b"{")  # one for each value at least
NEXT_MARK = re.compile(rb'(?:[^",\[{]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+[,\[{]', re.DOTALL)  # none within a string is one


def parsed(body: bytes, limits: Limits) -> Any:
    """What JSON says, unless it says more than is ever asked. ValueError where it is none."""
    if json.detect_encoding(body) not in ("utf-8", "utf-8-sig"):
        raise HTTPException(400, "JSON is written in UTF-8; send the body so")
    if sum(map(body.count, MARKS)) > limits.values and _has_marks(body, limits.values + 1):
        raise HTTPException(413, f"a request may hold {limits.values} texts, numbers and keys; send fewer at once")
    return json.loads(body)


def _has_marks(body: bytes, count: int) -> bool:
    """Whether there are so many of them."""
    place = 0
    for _ in range(count):
        if (found := NEXT_MARK.match(body, place)) is None:
            return False
        place = found.end()
    return True


class Bounded(Request):
    """A request that is not read beyond its limits."""

    async def json(self) -> Any:
        return parsed(await self.body(), self.app.state.desk.settings.limits)


class Route(APIRoute):
    """For routers: routes whose bodies are read so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            return await handle(Bounded(request.scope, request.receive))

        return handled


class Json(Response):
    """JSON that every client can read: no NaN, and no half of a character."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return _encoded(_dumped(content))


async def large(made: Callable[[], Any]) -> Response:
    """The same of what takes a while to make and to write; others are answered meanwhile."""
    content = await asyncio.to_thread(lambda: _encoded("".join(_pieces(made()))))
    return Response(content, media_type=Json.media_type)


def _dumped(content: Any) -> str:
    try:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(finite(content), ensure_ascii=False, separators=(",", ":"))


def _pieces(content: Any) -> Iterator[str]:
    """The same, a row of numbers or words at a time."""
    if isinstance(content, dict) and content:
        for place, (key, value) in enumerate(content.items()):
            yield f"{',' if place else '{'}{_dumped(key)}:"
            yield from _pieces(value)
        yield "}"
    elif isinstance(content, list | tuple) and content and isinstance(content[0], dict | list | tuple):
        for place, value in enumerate(content):
            yield "," if place else "["
            yield from _pieces(value)
        yield "]"
    else:
        yield _dumped(content)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
