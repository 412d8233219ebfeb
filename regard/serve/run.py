"""Starting and stopping: a socket, the models, and uvicorn in between."""

from __future__ import annotations

import gc
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType

import uvicorn
from fastapi import FastAPI

from regard.door import Model
from regard.errors import SHOWN, ConfigError
from regard.serve.app import create_app
from regard.serve.connections import Connection
from regard.serve.settings import Settings

IDLE_SECONDS = 30  # that a connection is kept open for a next request
SPARE = 512  # connections beside those that may wait
GRACE_SECONDS = 5  # beyond the time that a request may take
TURN_SECONDS = 0.0005  # that a thread may keep Python to itself while others want it: workers need it for a moment between two products


class Server(uvicorn.Server):
    """Told to stop, it takes no more, and ends when what was taken is done."""

    def __init__(self, app: FastAPI, settings: Settings, ready: Callable[[], None] = lambda: None) -> None:
        """`ready` is called once it can be asked, and be told to stop."""
        limits = settings.limits
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, proxy_headers=False, ws="none", lifespan="on", http=Connection,
            limit_concurrency=limits.waiting + limits.streams + SPARE, timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=int(limits.seconds) + GRACE_SECONDS,
        )  # fmt: skip
        super().__init__(config)
        self._desk, self._ready = app.state.desk, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._desk.close_door()
        super().handle_exit(sig, frame)


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address, which is not listened on yet."""
    bound = None
    try:
        kind, *_, address = next(iter(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)))
        # Said to be TCP: only then asyncio has answers sent at once, and not held back for 40 ms on a connection that is kept open.
        bound = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        if bound is not None:
            bound.close()
        reason = error.strerror if isinstance(error, OSError) else "that is no name of a machine"
        raise ConfigError(f"can't serve at {host[:SHOWN]}, port {port}: {reason}; choose another with --host or --port") from error
    return bound


def address_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(models: Mapping[str, Model], settings: Settings, bound: socket.socket, ready: Callable[[str], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes what was taken. `ready` is told the address."""
    server = Server(create_app(models, settings), settings, lambda: ready(address_of(bound)))
    sys.setswitchinterval(TURN_SECONDS)
    gc.freeze()  # what is here by now stays: to look through it for garbage takes a tenth of a second, in which nobody is answered
    for sign in (signal.SIGTERM, signal.SIGINT):
        # Until uvicorn listens itself, and after: it raises what it heard once more when all is done, and that must not end us otherwise.
        signal.signal(sign, server.handle_exit)
    bound.listen(2048)
    server.run(sockets=[bound])
