"""What a connection may cost. Whoever says nothing, says it slowly or reads nothing is waited for only so long, and gives way to others.

A connection that has a whole request under way is being worked for; every other one has no claim to its place.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 20.0  # for the headers of a request: from the beginning of the connection, or for later ones from their first byte
UNREAD_SECONDS = 20.0  # in which a client reads at least UNREAD_BYTES of what waits for it
UNREAD_BYTES = 1 << 16
MOST_UNREAD = 64 << 20  # bytes of answers that wait to be read, on all connections together
LAST_SECONDS = 5.0  # to read an answer in, once the server is about to end
MOST_HEAD = 16 << 10  # bytes of the headers of a request
MOST_CHUNKS = 1024  # of a body: each costs as much as kilobytes do
CRUMBS = f"A body may come in {MOST_CHUNKS} chunks; send larger ones."
ASKED_AFTER = 0.3  # seconds without an answer, after which we ask whether a client that says no more still listens
MOST_PAUSE = 1.0  # between two looks at whether it does


class Reader(h11.Connection):
    """Reads requests, and no body in crumbs."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MOST_HEAD)
        self._chunks = 0

    @property
    def crumbs(self) -> bool:
        """Whether there were too many of them."""
        return self._chunks > MOST_CHUNKS

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = 0
        elif isinstance(event, h11.Data) and event.chunk_end:
            self._chunks += 1
            if self.crumbs:
                raise h11.RemoteProtocolError(CRUMBS)
        return event


class Connection(H11Protocol):
    """One client's. Where there are too many, those that are not being worked for make room, the one that was idle longest first: of those
    that never had an answer, or don't read it, and then of the others. Addresses are not counted: behind a proxy, all come from one."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._whole_app, self.app = self.app, self._app
        self.conn = self.reader = Reader()
        self._head_due: asyncio.TimerHandle | None = None
        self._read_due: asyncio.TimerHandle | None = None
        self._look_due: asyncio.TimerHandle | None = None
        self._said_all = False  # the client has shut its side, and may still listen
        self._idle_since = time.monotonic()
        self._answered = False  # at least once, and not by being told that there are too many
        self._taken = False  # a request, by the app
        self._leaving = False  # the server is about to end
        self._unread_since, self._unread_then = 0.0, 0  # since when we wait for the client to read, and how much there was

    @property
    def _under_way(self) -> bool:
        """Whether there is a request without its whole answer."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _idle(self) -> bool:
        return not self._under_way or self.cycle.more_body

    @property
    def _unread(self) -> int:
        """Bytes of answers that wait for the client to read them."""
        return self.transport.get_write_buffer_size()

    @property
    def _pace(self) -> float:
        """Bytes that the client reads in a second."""
        seconds = time.monotonic() - self._unread_since
        return (self._unread_then - self._unread) / seconds if seconds > 1 else math.inf

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self._taken = True
        await self._whole_app(scope, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_due = self.loop.call_later(HEAD_SECONDS, transport.abort)
        self._make_room()

    def _make_room(self) -> None:
        """Whoever arrives is let in, as long as any other is idle."""
        while self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            idle = [each for each in self.connections if isinstance(each, Connection) and each is not self and each._idle]
            if not idle:
                return  # then the request is answered with 503
            longest = min(idle, key=lambda each: (each._answered and not each._unread, each._idle_since))
            self.connections.discard(longest)
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._under_way:
            super().data_received(data)
        else:  # no more at once than headers may have, so that none are longer
            for begin in range(0, len(data), MOST_HEAD):
                if not self.transport.is_closing():
                    super().data_received(data[begin : begin + MOST_HEAD])
        if self._under_way or self.transport.is_closing():
            _cancel(self._head_due)
            self._head_due = None
        elif self._head_due is None:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # its answer began, or is over, before it had come whole: there is no second one
        else:
            super().send_400_response(CRUMBS if self.reader.crumbs else msg)
            if self._under_way:
                self.cycle.disconnected = True  # that was its answer, and nothing more of it comes
                self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        self._idle_since, self._answered = time.monotonic(), self._answered or self._taken
        super().on_response_complete()  # which may begin with a next request that came already
        if self._unread:
            self._wait_for_reader()
        if self._said_all and not self._under_way:
            self.transport.close()

    # A client that shuts its side has either gone away or still wants its answer, as `nc -N` does: both look the same from here. Only what
    # is sent to it tells, since one that has gone refuses it. Before the answer begins that is a 100, which clients must pass over.

    def eof_received(self) -> bool | None:  # type: ignore[override]
        if not self._under_way or self.cycle.more_body:
            return None  # nothing more can become of it
        if not self._said_all:
            self._said_all = True
            self._look_due = self.loop.call_later(ASKED_AFTER, self._ask)
        return True

    def _ask(self) -> None:
        if self._under_way and not self.cycle.response_started and self.conn.their_http_version != b"1.0":
            self.transport.write(self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue")) or b"")
        self._look(ASKED_AFTER / 4)

    def _look(self, pause: float) -> None:
        """Whether it refused: nobody reads from this connection any more, who would be told."""
        if self.transport.is_closing():
            return
        own: socket.socket | None = self.transport.get_extra_info("socket")
        if own is not None and own.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._look_due = self.loop.call_later(pause, self._look, min(2 * pause, MOST_PAUSE))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_reader()
        self._drop_the_slowest()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._under_way:  # more is to come, and it is read
            _cancel(self._read_due)

    def _wait_for_reader(self) -> None:
        _cancel(self._read_due)
        self._unread_since, self._unread_then = time.monotonic(), self._unread
        self._read_due = self.loop.call_later(LAST_SECONDS if self._leaving else UNREAD_SECONDS, self._check_reader)

    def _check_reader(self) -> None:
        if self._unread > max(0, self._unread_then - UNREAD_BYTES):
            self.transport.abort()
        elif self._unread:
            self._wait_for_reader()

    def _drop_the_slowest(self) -> None:
        """Until what waits to be read is no more than there is room for; of any size, where it is one answer alone."""
        unread = [each for each in self.connections if isinstance(each, Connection) and each is not self and each._unread]
        total = self._unread + sum(each._unread for each in unread)
        for each in sorted(unread, key=lambda each: (each._pace, each._unread_since)):
            if total <= MOST_UNREAD:
                return
            total -= each._unread
            each.transport.abort()

    def shutdown(self) -> None:
        """Told by the server that it is about to end. What was not asked to its end was not taken."""
        self._leaving = True
        if self._under_way and self.cycle.more_body:
            self.transport.abort()
            return
        super().shutdown()
        if self._unread:
            self._wait_for_reader()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._head_due, self._read_due, self._look_due)


def _cancel(*timers: asyncio.TimerHandle | None) -> None:
    for timer in timers:
        if timer is not None:
            timer.cancel()
