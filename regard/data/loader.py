"""Batches made ready while the model is busy with the one before, from a cursor that a checkpoint can hold."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from regard.data.collate import Batch, Form
from regard.data.plan import Plan
from regard.data.store import Store
from regard.data.visits import Indices

AHEAD = 4  # steps that are made ready in advance


@dataclass(frozen=True)
class Cursor:
    """Where in the data a run stands: the next batch is this one of that epoch's plan."""

    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class Share:
    """Which parts of each batch are this process's: it takes `accumulate` of `processes` × `accumulate`."""

    rank: int = 0
    processes: int = 1
    accumulate: int = 1

    def split(self, batch: Indices, lengths: npt.NDArray[np.int64]) -> list[Indices]:
        """This process's parts of a batch. No part has more tokens than an even share and one example."""
        parts = self.processes * self.accumulate
        ends = np.cumsum(lengths[batch])
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
        mine = slice(self.rank * self.accumulate, (self.rank + 1) * self.accumulate)
        return np.split(batch, cuts)[mine]


@dataclass(frozen=True)
class Step:
    """What this process works through for one update, and where the data goes on after it."""

    parts: tuple[Batch, ...]
    after: Cursor


def steps(store: Store, plan_of: Callable[[int], Plan], form: Form, share: Share, cursor: Cursor, device: torch.device) -> Iterator[Step]:
    """The steps from a cursor on, without end, epoch after epoch; made in a thread of its own."""
    ready: queue.Queue[Step | BaseException] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: Step | BaseException) -> bool:
        """Waits for a place, but not longer than anyone is there to take it."""
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        try:
            for step in _steps(store, plan_of, form, share, cursor, pin=device.type == "cuda"):
                if not put(step):
                    return
        except BaseException as error:  # the consumer must hear of it, or it would wait for ever
            put(error)

    thread = threading.Thread(target=produce, daemon=True, name="loader")
    thread.start()
    try:
        while True:
            step = ready.get()
            if isinstance(step, BaseException):
                raise step
            yield replace(step, parts=tuple(part.map(lambda x: x.to(device, non_blocking=True)) for part in step.parts))
    finally:
        stop.set()
        thread.join()


def _steps(store: Store, plan_of: Callable[[int], Plan], form: Form, share: Share, cursor: Cursor, pin: bool) -> Iterator[Step]:
    lengths = store.lengths
    while True:
        plan = plan_of(cursor.epoch)
        for number in range(cursor.batch, len(plan)):
            batch = plan.batches[number]
            parts = []
            for indices in share.split(batch, lengths):
                made = form.collate(store, indices if len(indices) else batch[:1], cursor.epoch)
                if not len(indices):  # every process must take part in every step: this one with something that counts for nothing
                    made = replace(made, counted=torch.zeros_like(made.counted), count=0, tokens=0)
                parts.append(made.map(torch.Tensor.pin_memory) if pin else made)
            last = number + 1 == len(plan)
            yield Step(tuple(parts), Cursor(cursor.epoch + 1, 0) if last else Cursor(cursor.epoch, number + 1))
        cursor = Cursor(cursor.epoch + 1, 0)
