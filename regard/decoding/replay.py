"""On a GPU a whole position, model and search, is recorded once as a CUDA graph and replayed."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch

from regard.models.state import StackState

RECORDING = Lock()


class Replayed:
    """A position recorded as a CUDA graph, one for each size that attention reads, and replayed: no launch waits for Python."""

    def __init__(self) -> None:
        self.graphs: dict[int, Any] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.warm = False

    def __call__(self, state: StackState, step: Callable[[], None]) -> None:
        cache, new = state.cache, state.visible.shape[1]
        if not self.warm:  # libraries set themselves up at the first call, which can't be recorded
            step()
            self.warm = True
            return
        reach = cache.span_with(new)
        if reach in self.graphs:
            cache.used += new
        else:
            self.graphs[reach] = graph = torch.cuda.CUDAGraph()
            # One at a time, and other threads may go on meanwhile. Nothing outlives a replay, so all graphs may use the same memory.
            with RECORDING, torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                step()
        self.graphs[reach].replay()
