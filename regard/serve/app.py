"""The application: its routes, and what becomes of errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from regard import __version__
from regard.door import Model
from regard.errors import RegardError
from regard.serve import libretranslate, native, openai, runs, trace_route
from regard.serve.bodies import Json
from regard.serve.desk import Desk, GoneError, UnknownModelError, desk_of
from regard.serve.metrics import CONTENT_TYPE
from regard.serve.queue import ClosingError, FullError, LateError, TooMuchError
from regard.serve.schemas import Health
from regard.serve.security import Guard, OneEnd, problem
from regard.serve.settings import Settings

WEB = Path(__file__).parent / "web"
ROUTERS = [native.router, libretranslate.router, openai.router, trace_route.router, runs.router]  # more of /api goes here
STATUS: dict[type[RegardError], int] = {
    UnknownModelError: 404,
    TooMuchError: 413,
    FullError: 429,
    LateError: 503,
    ClosingError: 503,
    GoneError: 499,
}
MOST_COMPLAINTS = 3  # about a body, in one message


def create_app(models: Mapping[str, Model], settings: Settings | None = None) -> FastAPI:
    """The server of some models, by the names that requests know them by."""
    settings = settings or Settings()
    app = FastAPI(
        title="regard",
        version=__version__,
        summary="Translate, generate, classify, fill, embed and score.",
        lifespan=_lifespan,
        openapi_url=None,  # ours is made in a thread: the first time it takes a while
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
    )
    app.state.desk = desk = Desk(models, settings)
    for router in ROUTERS:
        app.include_router(router)
    app.add_api_route("/health", health, responses={200: {"model": Health}, 503: {"model": Health}})
    app.add_api_route("/metrics", metrics, responses={200: {"content": {"text/plain": {}}}}, response_class=Response)
    app.add_api_route("/openapi.json", description, include_in_schema=False)
    pages = page_routes(WEB)
    app.router.routes.extend(pages)
    app.add_middleware(Guard, settings=settings, metrics=desk.metrics, open=frozenset({"/health", *(page.path for page in pages)}))
    if settings.origins:
        headers = ["authorization", "content-type", "x-api-key"]
        app.add_middleware(CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST"], allow_headers=headers)
    app.add_middleware(OneEnd)
    app.add_exception_handler(RegardError, _stated)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    desk: Desk = app.state.desk
    working = asyncio.create_task(desk.queue.run())
    yield
    desk.close_door()
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working
    desk.close()


def page_routes(folder: Path) -> list[Route]:
    """A route for each file of the page: what a request says is compared with these, and never becomes a path."""

    def serve(path: Path) -> Any:
        async def send(_: Request) -> Response:
            return FileResponse(path, headers={"cache-control": "no-cache"})

        return send

    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    named = {"/" + path.relative_to(folder).as_posix(): path for path in files}
    if "/index.html" in named:
        named["/"] = named["/index.html"]
    return [Route(name, serve(path), methods=["GET"], include_in_schema=False) for name, path in named.items()]


async def health(request: Request) -> Response:
    """Whether it takes requests: 200, or 503 once it is about to stop."""
    desk = desk_of(request)
    waiting = int(desk.metrics.registry.get_sample_value("regard_waiting_texts") or 0)
    closing = desk.queue.closing
    return Json({"status": "closing" if closing else "ok", "models": list(desk.models), "waiting": waiting}, 503 if closing else 200)


def description(request: Request) -> Response:
    """All that may be asked, for programs."""
    app = request.app
    assert isinstance(app, FastAPI)
    return Json(app.openapi())


async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(desk_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})


async def _stated(request: Request, error: Exception) -> Response:
    status = next((STATUS[kind] for kind in type(error).mro() if kind in STATUS), 400)
    again = {"retry-after": str(error.retry_after)} if isinstance(error, FullError) else {"retry-after": "5"} if status == 503 else None
    return problem(request.url.path, status, str(error), again)


async def _invalid(request: Request, error: Exception) -> Response:
    """What is wrong with a body, by key. Nothing of the body is repeated: it may be anything."""
    assert isinstance(error, RequestValidationError)
    complaints = dict.fromkeys(f"{'.'.join(map(str, one['loc'][1:]))[:80] or 'body'}: {one['msg']}" for one in error.errors())
    return problem(request.url.path, 400, "; ".join(list(complaints)[:MOST_COMPLAINTS]))


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(request.url.path, error.status_code, str(error.detail), dict(error.headers or {}))
