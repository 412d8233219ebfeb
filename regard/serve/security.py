"""Who may ask, how much is read, and what every answer says to browsers. Nothing gets past it unseen: it is the
outermost layer, but for the questions that browsers ask beforehand where other origins are allowed."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.bodies import Json
from regard.serve.metrics import Metrics
from regard.serve.settings import Settings

LOG = logging.getLogger("regard.serve")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:/?#@\[\]\\]*))(?::\d*)?", re.IGNORECASE)  # a name alone, or with a port
LOOK_THEMSELVES = frozenset({"/translate", "/detect", "/languages"})  # the key may be in the body, where LibreTranslate's clients send it


def problem(path: str, status: int, message: str, headers: dict[str, str] | None = None, kind: str | None = None) -> Response:
    """An error as the clients of that interface expect it."""
    if path.startswith("/v1/"):
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        named = kind or kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
        return Json({"error": {"message": message, "type": named, "param": None, "code": status}}, status, headers)
    return Json({"error": message}, status, headers)


class OneEnd:
    """Refuses a request that says twice where it ends. A proxy that goes by the other would take what follows for a part of it, and we for
    a request of its own, which nobody checked."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            message = "a request has either a Content-Length or a Transfer-Encoding; send it with one of them"
            await problem(scope["path"], 400, message, {"connection": "close"})(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Guard:
    """Hosts, origins, key, size and time of bodies; headers on every answer; and a count of all of it."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, open: frozenset[str] = frozenset()) -> None:
        """`open`: the paths that need no key. Whatever is not named here is guarded."""
        self.app, self.settings, self.metrics, self.open = app, settings, metrics, open | LOOK_THEMSELVES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 499  # the client went away before there was an answer

        async def heard(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refusal(scope)
        try:
            if refused is not None:
                await refused(scope, receive, heard)
            else:
                await self.app(scope, self._measured(scope, receive), heard)
        except ClientDisconnect:
            pass  # amid its request: nobody would read an answer
        except Exception:
            LOG.exception("%s %s", scope["method"], scope["path"])
            if status != 499:
                raise
            await problem(scope["path"], 500, "something went wrong here; the server's log says what")(scope, receive, heard)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never what a request says: it could say anything
            self.metrics.request(route, status, time.perf_counter() - begun)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        host = _host(headers.get("host", ""))
        if self.settings.hosts and host not in self.settings.hosts:
            return problem(path, 400, "this server does not answer to that host name; start it with --allow-host to have it do so")
        if (path not in self.open and self._from_elsewhere(headers)) or (
            scope["method"] not in ("GET", "HEAD") and not self._own_origin(headers)
        ):
            return problem(path, 403, "pages of other sites may not ask; start the server with --allow-origin to let one")
        if path not in self.open and not has_key(self.settings, headers):
            return no_key(path)
        if headers.get("content-length", "").isdecimal() and int(headers["content-length"]) > self.settings.limits.body:
            return problem(path, 413, self._too_large())
        return None

    def _from_elsewhere(self, headers: Headers) -> bool:
        """Whether a browser says that a page of another site asks: such as for an image, which needs no origin."""
        return headers.get("sec-fetch-site") == "cross-site" and headers.get("origin") not in self.settings.origins

    def _own_origin(self, headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None or origin in self.settings.origins:
            return True
        return origin.partition("://")[2] == headers.get("host", "")

    def _too_large(self) -> str:
        return f"a request may have {self.settings.limits.body} bytes; send less at once"

    def _measured(self, scope: Scope, receive: Receive) -> Receive:
        """Reads a body up to the limit, in the time there is."""
        read, more = 0, True
        until = time.monotonic() + self.settings.limits.seconds

        async def measured() -> Message:
            nonlocal read, more
            if not more:  # what comes now is only that the client went away
                return await receive()
            try:
                # Not wait_for, which in Python 3.11 may lose that it was cancelled: then it waits for ever for the client to go away.
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request did not come in time") from None
            more = message["type"] == "http.request" and message.get("more_body", False)
            read += len(message.get("body", b""))
            if read > self.settings.limits.body:
                raise HTTPException(413, self._too_large())
            return message

        return measured


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    found = HOST.fullmatch(header)
    return "" if found is None else (found[1] or found[2]).lower()


def has_key(settings: Settings, headers: Headers, given: object = None) -> bool:
    """Whether a request may pass: the key as a bearer, in a header of its own, or as given elsewhere."""
    if settings.api_key is None:
        return True
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    in_headers = [bearer.strip(" \t") if kind.lower() == "bearer" else "", headers.get("x-api-key", "")]
    offered = [one.encode("latin-1") for one in in_headers]  # the bytes as they came: to Latin-1, those of à end in a space
    if isinstance(given, str):
        offered.append(given.encode("utf-8", "replace"))
    wanted = settings.api_key.encode()
    # All are compared, however the first came out: how long it takes says nothing.
    right = [hmac.compare_digest(one, wanted) for one in offered]
    return any(right)


def no_key(path: str) -> Response:
    return problem(path, 401, "this server needs an API key; send it as Authorization: Bearer KEY", {"www-authenticate": "Bearer"})
