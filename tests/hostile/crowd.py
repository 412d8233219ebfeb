"""A crowd of clients that mean no good: python -m tests.hostile.crowd PORT COUNT

A third says nothing, a third says it a byte at a time (of the headers, or of the body), a third asks for a large answer and does not read
it. Whoever is let go comes again a second later. It says a line once all have come, and stays until it is ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
from contextlib import suppress

PAUSE = 5.0  # seconds between two bytes
AGAIN = 1.0
TEXT = "I love you very much, and so does my old teacher of music. "
ASKED = json.dumps({"text": TEXT, "to": "it", "candidates": 100}).encode()
HEAD = b"POST /api/trace HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


async def stay(port: int, number: int, came: asyncio.Semaphore) -> None:
    loop, first = asyncio.get_running_loop(), True
    while True:
        with suppress(OSError), socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.setblocking(False)
            await loop.sock_connect(own, ("127.0.0.1", port))
            if first:
                came.release()
                first = False
            await misbehave(loop, own, number)
        await asyncio.sleep(AGAIN)


async def misbehave(loop: asyncio.AbstractEventLoop, own: socket.socket, number: int) -> None:
    """Until the connection is closed by the server."""
    if number % 3 == 0:
        await loop.sock_recv(own, 1)
    elif number % 3 == 1:
        slowly = HEAD % 1000 if number % 2 else b"G"
        await loop.sock_sendall(own, slowly)
        while True:
            await asyncio.sleep(PAUSE)
            await loop.sock_sendall(own, b"x")
    else:
        await loop.sock_sendall(own, HEAD % len(ASKED) + ASKED)
        await loop.sock_recv(own, 1)
        while True:  # one that was dropped has an error, which a byte would show
            await asyncio.sleep(PAUSE)
            await loop.sock_sendall(own, b"\r\n")


async def main(port: int, count: int) -> None:
    came = asyncio.Semaphore(0)
    tasks = [asyncio.create_task(stay(port, number, came)) for number in range(count)]
    for _ in range(count):
        await came.acquire()
    print("all have come", flush=True)
    await asyncio.gather(*tasks)


if __name__ == "__main__":
    os.nice(19)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
