"""Several batches under way at the same time, each in a thread of its own, and their results in order.

Where a GPU does most of the work, one batch is put into tokens or into words while another is decoded.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from threading import Thread, current_thread
from typing import Generic, TypeVar

from regard.console import until

Batch = TypeVar("Batch")
Result = TypeVar("Result")

# Seconds for which a thread may keep Python to itself while another wants it. Whoever feeds a GPU wants it again after every call: with
# Python's own 5 ms it would stand still for as long as another thread has words to put together.
SHARE = 1e-4
PATIENCE = 0.1  # seconds for a thread to end


def ahead(
    work: Callable[[Batch], Result], batches: Iterable[Batch | None], at_once: int = 2
) -> Generator[tuple[Batch, Future[Result]], None, None]:
    """Each batch with what became of it, a result or an error, in order. No more than so many are read but not yet given out.

    A None among the batches: it may be long until the next, so all that are under way are given out before it is asked for. What goes wrong
    in reading is raised after all that was read. Whoever leaves early closes it (`contextlib.closing`), which ends what is under way.
    """
    if at_once == 1:
        for batch in batches:
            if batch is not None:
                yield batch, _settled(Future(), work, batch)
        return
    under_way: deque[Task[Batch, Result]] = deque()
    trouble: list[Exception] = []
    with _shared():
        try:
            for batch in until(trouble, batches):
                if batch is not None:
                    under_way.append(Task(work, batch))
                    under_way[-1].start()
                while under_way and (batch is None or len(under_way) == at_once):
                    yield _given_out(under_way)
            while under_way:
                yield _given_out(under_way)
        finally:
            _stop(list(under_way))
    for error in trouble:
        raise error


class Stopped(SystemExit):
    """Ends a task, wherever it is; what of it nobody catches is not shown."""

    def __init__(self) -> None:
        super().__init__()
        task = current_thread()
        if isinstance(task, Task):
            task.stopping = True


class Task(Thread, Generic[Batch, Result]):
    """Work on one batch."""

    def __init__(self, work: Callable[[Batch], Result], batch: Batch) -> None:
        super().__init__(name="regard-ahead")
        self.work, self.batch, self.future = work, batch, Future[Result]()
        self.stopping = False  # it has heard, and puts its things away

    def run(self) -> None:
        try:
            _settled(self.future, self.work, self.batch)
        except BaseException as error:
            if not self.future.done():
                self.future.set_exception(error)  # or else it would be waited for in vain

    def waited_for(self, seconds: float | None = None) -> bool:
        """Whether it is done by then. Not by `join`, after whose interruption Python takes a thread at work for one that has ended."""
        wait([self.future], seconds)
        if self.future.done():
            self.join()
        return not self.is_alive()

    def tell(self) -> None:
        """That it should end, as Ctrl-C tells the main thread: it goes through with what it calls first."""
        if self.ident is not None and not self.stopping and not self.future.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Stopped))


def _stop(tasks: Sequence[Task[Batch, Result]]) -> None:
    """Until all have ended. Some may have to be told again: Python forgets whom it was to interrupt when it interrupts another."""
    while tasks:
        with suppress(KeyboardInterrupt):  # they have been told, and are told again
            for task in tasks:
                task.tell()
            tasks = [task for task in tasks if not task.waited_for(PATIENCE)]


def _given_out(under_way: deque[Task[Batch, Result]]) -> tuple[Batch, Future[Result]]:
    """The oldest, once it is done."""
    under_way[0].waited_for()
    task = under_way.popleft()
    return task.batch, task.future


def _settled(future: Future[Result], work: Callable[[Batch], Result], batch: Batch) -> Future[Result]:
    try:
        future.set_result(work(batch))
    except Exception as error:
        future.set_exception(error)
    return future


@contextmanager
def _shared() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SHARE)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
