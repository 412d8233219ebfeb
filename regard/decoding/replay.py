"""On a GPU a whole position, model and search, is recorded once as a graph and replayed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, wraps
from threading import Lock
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch

from regard.models import Network
from regard.models.state import StackState
from regard.nn import using
from regard.nn.cache import Cache
from regard.nn.instead import give_up
from regard.nn.tap import hooked

RECORDING = Lock()

M = TypeVar("M", bound=Network)
Given = ParamSpec("Given")
Result = TypeVar("Result")


def on(model: Network) -> AbstractContextManager[Any]:
    """Kernels and graphs go to the model's GPU, where there are several. Kernels that pass by modules step aside where hooks listen."""
    device = model.device
    if device.type != "cuda":
        return nullcontext()
    both = ExitStack()
    both.enter_context(torch.cuda.device(device))
    if hooked(model):
        both.enter_context(using("sdpa"))
    return both


def on_its_device(work: Callable[Concatenate[M, Given], Result]) -> Callable[Concatenate[M, Given], Result]:
    """Whatever a function does with the model that it is given first."""

    @wraps(work)
    def there(model: M, /, *given: Given.args, **options: Given.kwargs) -> Result:
        with on(model):
            return work(model, *given, **options)

    return there


class Graph(Protocol):
    """Work that was recorded."""

    def replay(self) -> None: ...


class Graphs(Protocol):
    """What records work on the device: everything that is done there, and nothing that Python does."""

    def record(self, work: Callable[[], None]) -> Graph: ...


def graphs_on(device: torch.device) -> Graphs | None:
    """What records on this device, for one batch; nothing where calling is as fast."""
    return CudaGraphs() if device.type == "cuda" else None


class Replayed:
    """A position recorded as a graph, one for each size that attention reads, and replayed: no launch waits for Python."""

    def __init__(self, recorder: Graphs) -> None:
        self.graphs: dict[int, Graph] = {}
        self.recorder = recorder
        self.warm = self.gave_up = False

    def __call__(self, state: StackState, step: Callable[[], None]) -> None:
        cache, new = state.cache, state.visible.shape[1]
        if not self.warm:  # libraries set themselves up at the first call, which can't be recorded
            step()
            self.warm = True
            return
        reach = cache.span_with(new)
        if reach in self.graphs:
            cache.used += new
        elif not self._record(reach, step, cache):
            step()
            return
        self.graphs[reach].replay()

    def _record(self, reach: int, step: Callable[[], None], cache: Cache) -> bool:
        """Whether it could be recorded. Where something in it waits for the device, the batch goes on being called, from where it stood."""
        used = cache.used
        if self.gave_up:
            return False
        try:
            self.graphs[reach] = self.recorder.record(step)
        except RuntimeError as error:
            cache.used, self.gave_up = used, True
            give_up("a position of decoding", error)
        return not self.gave_up


class CudaGraphs:
    """CUDA's."""

    def __init__(self) -> None:
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Graph:
        """One at a time, and other threads may go on meanwhile. Nothing outlives a replay, so all graphs may use the same memory."""
        graph = torch.cuda.CUDAGraph()
        with RECORDING:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # what is recorded can't wait for memory to be found
            with torch.cuda.stream(_stream(torch.cuda.current_device())):
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    work()
                finally:
                    graph.capture_end()
        return graph


@cache
def _stream(device: int) -> torch.cuda.Stream:
    """To record on."""
    return torch.cuda.Stream(device)
