"""Conversations, written out by the template of their model in a thread of its own: where one is slow, no other model waits for it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from regard.serve.metrics import Metrics
from regard.serve.queue import FullError, LateError
from regard.serve.settings import Limits

T = TypeVar("T")


class Conversations:
    """A thread for each model, and how many wait for it. But for the work itself, all of it happens in the event loop."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self.limits, self.metrics = limits, metrics
        self._waiting: Counter[str] = Counter()
        self._threads = defaultdict[str, ThreadPoolExecutor](partial(ThreadPoolExecutor, 1, thread_name_prefix="regard-conversation"))

    async def written(self, name: str, write: Callable[[], T]) -> T:
        """What comes of one, of the model of that name. Being cancelled, it is not begun any more."""
        if self._waiting[name] >= self.limits.waiting:
            self.metrics.refused.labels("full").inc()
            raise FullError(f"{self._waiting[name]} conversations wait to be read by {name} already; ask again in a while", 2)
        self._waiting[name] += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await asyncio.get_running_loop().run_in_executor(self._threads[name], write)
        except TimeoutError:
            self.metrics.refused.labels("late").inc()
            raise LateError(f"the conversation was not read within {self.limits.seconds:g} s; ask again later") from None
        finally:
            self._waiting[name] -= 1

    def close(self) -> None:
        """Nobody waits any more; what was begun comes to an end by its own limits."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
