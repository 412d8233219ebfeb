"""What a person should know, on standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

MOST_WARNINGS = 20  # of a kind; the rest are counted

Warned = tuple[str, str]  # a message and its kind

_kept: ContextVar[list[Warned] | None] = ContextVar("kept", default=None)


class Messages:
    """What a person should know, on standard error: warnings, and a progress bar where that is a terminal."""

    def __init__(self) -> None:
        self.bar_wanted = True
        self._warned: Counter[str] = Counter()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self.done, self._begun = 0, 0.0

    def __enter__(self) -> Messages:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()
        for kind, count in self._warned.items():
            if count > MOST_WARNINGS:
                self.say(f"… and {count - MOST_WARNINGS:,} more {kind}")

    def say(self, message: str) -> None:
        if self._bar is not None:
            self._bar.console.print(f"regard: {message}", markup=False, highlight=False, soft_wrap=True)
        elif sys.stderr is not None:  # print(file=None) would write it among the results
            print(f"regard: {message}", file=sys.stderr, flush=True)

    def warn(self, message: str, kind: str = "warnings") -> None:
        """Says it, unless there were many of its kind already: then it is counted, and the count is said at the end."""
        if (kept := _kept.get()) is not None:
            kept.append((message, kind))
            return
        self._warned[kind] += 1
        if self._warned[kind] <= MOST_WARNINGS:
            self.say(message)

    @contextmanager
    def kept(self, warnings: list[Warned]) -> Iterator[None]:
        """What this thread warns of meanwhile is put there, for `warn_of` to say when its turn comes."""
        token = _kept.set(warnings)
        try:
            yield
        finally:
            _kept.reset(token)

    def warn_of(self, kept: Sequence[Warned]) -> None:
        for message, kind in kept:
            self.warn(message, kind)

    def start(self, total: int | None) -> None:
        """Shows a bar, where there is a terminal to show it on. The total is of whatever `advance` is told as position."""
        self.done, self._begun = 0, time.monotonic()
        if not self.bar_wanted or sys.stderr is None or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        left = (TimeRemainingColumn(), TextColumn("left")) if total is not None else ()
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), *left)
        # Standard output is for results, and must not be caught by the bar.
        self._bar = Progress(*columns, console=Console(stderr=True), redirect_stdout=False, refresh_per_second=4)
        self._task = self._bar.add_task("", total=total)
        self._bar.start()

    def advance(self, count: int, position: int) -> None:
        """So many lines more are done, and all up to a position."""
        self.done += count
        if self._bar is not None and self._task is not None:
            rate = self.done / max(1e-9, time.monotonic() - self._begun)
            text = f"{self.done:,} lines · {rate:,.0f}/s" if rate >= 10 else f"{self.done:,} lines · {rate:.1f}/s"
            self._bar.update(self._task, completed=position, description=text)

    def progress(self, done: int, total: int) -> None:
        """The same, told from time to time how many of all are done; none begins it."""
        if done:
            self.advance(done - self.done, done)
        else:
            self.start(total)

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
