"""Work on a CPU in several threads with a part of the cores each, instead of one after the other with all of them.

Many rows keep a core busy by themselves. Then parts that run beside each other are faster than one whole whose threads wait for each other
after every operation, and much faster where something else now and then takes a core.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

import torch

from regard.nn import backends
from regard.nn.tap import recording

ENOUGH = 64  # rows for one of them

Part = TypeVar("Part")
Result = TypeVar("Result")


def crew_for(rows: int) -> int:
    """How many parts to make of so many rows: one, where this thread has one core, or something holds for this thread alone."""
    return 1 if watched("cpu") else max(1, min(torch.get_num_threads(), rows // ENOUGH))


def watched(device: str) -> bool:
    """Whether something holds for this thread alone."""
    return recording() or backends.overridden() or torch.is_autocast_enabled(device)


def beside(work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    """What the work makes of each part, in order."""
    all_of_them = torch.get_num_threads()
    threads = max(1, all_of_them // len(parts))

    def alone(part: Part) -> Result:
        torch.set_num_threads(threads)  # of this thread
        return work(part)

    under_way = [_crew().submit(alone, part) for part in parts]
    try:
        wait(under_way)  # all of them, though one may have failed: nobody is left behind at work
        return [each.result() for each in under_way]
    finally:
        torch.set_num_threads(all_of_them)  # a thread that is new has the number that was set last


@cache
def _crew() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="regard-decoding")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.cache_clear)  # threads stay behind in the parent
