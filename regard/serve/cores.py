"""The cores of the machine, shared by those who compute at the same time.

Threads that work on one product wait for each other at its end. Where another batch, or the server itself, takes one of their cores, all of
them wait for it; so batches at the same time have cores of their own, and a batch alone has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
Result = TypeVar("Result")
MOST_WORKERS = 4  # batches at once, each with cores of its own: with more of them each would have less company


class Cores:
    """Who has how many. All of it happens in the event loop."""

    def __init__(self, total: int | None = None) -> None:
        self.total = total or torch.get_num_threads()
        self._busy = 0

    def take(self, among: int = 1) -> int:
        """How many threads someone who begins may have. `among`: how many are about to compute, as far as is known."""
        self._busy += 1
        return self.share(among)

    def share(self, among: int = 1) -> int:
        """How many someone who computes already may have now."""
        return max(1, self.total // max(self._busy, among, 1))

    def give_back(self) -> None:
        self._busy -= 1


def on_threads(threads: int, work: Callable[P, Result], *given: P.args, **named: P.kwargs) -> Result:
    """Does some work with so many threads. The number is that of the calling thread; one that is new has that which was set last."""
    use_threads(threads)
    return work(*given, **named)


def use_threads(threads: int) -> None:
    """From now on, in the calling thread."""
    torch.set_num_threads(threads)
