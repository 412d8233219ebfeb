"""Continuations word by word: a thread each, few at once, that stops when nobody listens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy

from regard.door import Model, Options
from regard.door.writing import Prompt, stream_ids, text_of
from regard.serve.cores import Cores, on_threads
from regard.serve.metrics import Metrics
from regard.serve.queue import ClosingError, FullError
from regard.serve.settings import Limits


class Stream:
    """One continuation: iterate over its pieces. What it knows beside them is right when it is over."""

    def __init__(self, model: Model, prompt: Prompt, options: Options, seconds: float) -> None:
        self.prompt_tokens, self.written, self.ended = 0, 0, True
        self._model, self._prompt, self._options = model, prompt, options
        self._until = time.monotonic() + seconds
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[str | Exception | None] = asyncio.Queue()  # as long as one output at most
        self._stop = threading.Event()

    def write(self) -> None:
        """Runs in a thread."""
        try:
            ids, words = stream_ids(self._model, self._prompt, self._options)
            self.prompt_tokens = len(ids)
            for piece in text_of(self._model.tokenizer, ids, self._counted(words)):
                self._say(piece)
            self._say(None)
        except Exception as error:
            self._say(error)

    def _counted(self, words: Iterator[int]) -> Iterator[int]:
        most = min(int(self._options.get("max_length") or 256), self._model.config.context - self.prompt_tokens)
        for word in words:
            self.written += 1
            self.ended = self.written < most
            yield word
            if self._stop.is_set() or time.monotonic() > self._until:
                self.ended = False
                return
        self.written += self.ended  # the end token, which is no word

    def _say(self, piece: str | Exception | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: the server was ended by force
            self._loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

    def stop(self) -> None:
        self._stop.set()

    async def __aiter__(self) -> AsyncIterator[str]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece


class Streams:
    """The threads for them."""

    def __init__(self, limits: Limits, metrics: Metrics, cores: Cores | None = None) -> None:
        self.limits, self.metrics, self.cores = limits, metrics, cores or Cores()
        self.closing = False
        self._open = 0
        self._pool = ThreadPoolExecutor(limits.streams, thread_name_prefix="regard-stream")

    def open(self, model: Model, prompt: Prompt, options: Options) -> Stream:
        """A continuation that is being written from now on. Whoever opens it stops it."""
        if self.closing:
            raise ClosingError("the server is about to stop and takes no more requests; ask another, or again later")
        if self._open >= self.limits.streams:
            self.metrics.refused.labels("full").inc()
            raise FullError(f"{self._open} continuations are being streamed already; ask again in a while, or without stream", 2)
        stream = Stream(copy(model), prompt, options, self.limits.seconds)
        self._count(1)
        written = asyncio.get_running_loop().run_in_executor(self._pool, on_threads, self.cores.take(), stream.write)
        written.add_done_callback(lambda _: self._over())
        return stream

    def _over(self) -> None:
        self._count(-1)
        self.cores.give_back()

    def _count(self, change: int) -> None:
        self._open += change
        self.metrics.streams.set(self._open)

    def close(self) -> None:
        self._pool.shutdown()
