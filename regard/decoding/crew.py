"""Work on a CPU in several threads with a part of the cores each, instead of one after the other with all of them.

Many rows keep a core busy by themselves. Then parts that run beside each other are faster than one whole whose threads wait for each other
after every operation, and much faster where something else now and then takes a core.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

from regard.nn import backends
from regard.nn.tap import recording

ENOUGH = 64  # rows for one of them

Part = TypeVar("Part")
Result = TypeVar("Result")


def crew_for(rows: int) -> int:
    """How many parts to make of so many rows: one, where this thread has one core, or someone is watching it."""
    return 1 if recording() or backends.overridden() else max(1, min(torch.get_num_threads(), rows // ENOUGH))


def beside(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """What the work makes of each part, in order."""
    threads = max(1, torch.get_num_threads() // len(parts))

    def alone(part: Part) -> Result:
        torch.set_num_threads(threads)  # of this thread
        return work(part)

    return list(_crew().map(alone, parts))


@cache
def _crew() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="regard-decoding")
