"""What a run tells: a progress bar or plain lines for people, metrics.jsonl and TensorBoard for programs."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from regard.errors import RegardError
from regard.training.ending import Ending
from regard.training.figures import METRICS, Figures, reason_of
from regard.training.folder import TENSORBOARD
from regard.training.validate import Validation


class Writer(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None: ...
    def close(self) -> None: ...


class Report:
    """Of one run, into its folder and to the terminal. Processes other than the first keep silent."""

    def __init__(self, folder: Path | None, total: int, every: int, console: Console | None = None) -> None:
        self.folder, self.total, self.every = folder, total, every
        self.console = console or Console(stderr=True)
        self.figures = None if folder is None else Figures(folder / METRICS)
        self.board: Writer | None = None
        self.before: Callable[[threading.ExceptHookArgs], object] | None = None
        self.missed: set[str] = set()  # what could not be written, and was said
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self.tokens = self.seconds = self.losses = 0.0
        self.since = self.finite = 0

    def __enter__(self) -> Report:
        if self.folder is not None:
            self._open_board(self.folder)
            if self.console.is_terminal:
                columns = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn()]
                self.bar = Progress(*columns, console=self.console)
                self.task = self.bar.add_task("training", total=self.total, figures="")
                self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.bar is not None:
            with suppress(OSError):
                self.bar.stop()
        self._close_board()

    def forget_after(self, step: int) -> None:
        """Takes back what was written of steps that a resumed run will take again."""
        if self.figures is None:
            return
        with self._missing(METRICS):
            if broken := self.figures.forget_after(step):
                more = f", and {len(broken) - 1:,} lines like it" if len(broken) > 1 else ""
                self.say(f"{self.figures.path}, line {broken[0]}: no figures of a step; left out{more}")

    def say(self, message: str) -> None:
        if self.folder is not None:
            with suppress(OSError):  # a terminal that is gone, or a file that is full, is no reason to stop
                self.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def tick(self, step: int) -> None:
        """A step was taken; what it came to is told later."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step)

    def step(self, step: int, total: int, loss: float, norm: float, lr: float, tokens: float, seconds: float) -> None:
        self.tokens, self.seconds, self.since = self.tokens + tokens, self.seconds + seconds, self.since + 1
        if math.isfinite(loss):
            self.losses, self.finite = self.losses + loss, self.finite + 1
        if step % self.every and step != total:
            return
        speed, mean = self.tokens / max(self.seconds, 1e-9), self.losses / self.finite if self.finite else math.nan
        figures = {"loss": mean, "perplexity": _exp(mean), "lr": lr, "gradient_norm": norm, "tokens_per_second": speed}
        line = f"loss {mean:.3f} · perplexity {_exp(mean):.4g} · {speed:,.0f} tokens/s"
        if self.bar is not None:
            self.bar.update(self.task, figures=line)
        else:
            left = (total - step) * self.seconds / self.since
            self.say(f"step {step:,} of {total:,} · {line} · lr {lr:.2e} · {_duration(left)} left")
        self._write(step, {"kind": "train", **figures})
        self.tokens = self.seconds = self.losses = 0.0
        self.since = self.finite = 0

    def validation(self, step: int, measured: Validation, better: bool) -> None:
        figures = measured.figures
        if not figures:
            return
        names = [("loss", ".3f"), ("perplexity", ".4g"), ("accuracy", ".1%"), ("bleu", ".2f"), ("chrf", ".2f"), ("exact", ".1%")]
        line = " · ".join(f"{name} {figures[name]:{shape}}" for name, shape in names if name in figures)
        self.say(f"step {step:,} · dev: {line}{' · best so far' if better else ''}")
        self._write(step, {"kind": "dev", **figures})

    def end(self, step: int, ending: Ending) -> None:
        """How good it is, and what to do next."""
        for line in ending.lines:
            self.say(line)
        if self.folder is not None and TENSORBOARD not in self.missed:
            self._open_board(self.folder)
        try:
            self._write(step, ending.record)
        finally:
            self._close_board()

    def _write(self, step: int, figures: dict[str, Any]) -> None:
        if self.figures is not None:
            with self._missing(METRICS):
                self.figures.add(step, figures)
        if self.board is not None:
            with self._missing(TENSORBOARD):
                for name, value in figures.items():
                    if isinstance(value, int | float):
                        self.board.add_scalar(f"{figures['kind']}/{name}", value, step)

    def _open_board(self, folder: Path) -> None:
        """Until it is closed, what happens to its thread is told as what happens here."""
        self.before, threading.excepthook = threading.excepthook, self._in_a_thread
        with self._missing(TENSORBOARD):
            self.board = _board(folder / TENSORBOARD)

    def _close_board(self) -> None:
        if self.board is not None:
            with self._missing(TENSORBOARD):
                self.board.close()
            self.board = None
        if self.before is not None:
            threading.excepthook, self.before = self.before, None

    @contextmanager
    def _missing(self, name: str) -> Iterator[None]:
        """Figures that can't be written are done without: the training matters more."""
        try:
            yield
        except Exception as error:
            if name == METRICS and not isinstance(error, OSError | RegardError):
                raise  # what TensorBoard raises is its own affair
            self._miss(name, error)

    def _miss(self, name: str, error: BaseException | None) -> None:
        """Says so, once."""
        if name == TENSORBOARD:
            self.board = None  # once in trouble, it takes no more
        if name not in self.missed and self.folder is not None:
            self.missed.add(name)
            self.say(f"figures are missing from {self.folder / name}: {reason_of(error)}; the training goes on without them")

    def _in_a_thread(self, trouble: threading.ExceptHookArgs) -> None:
        """TensorBoard writes in a thread of its own."""
        if type(trouble.thread).__module__.partition(".")[0] == "tensorboard":
            self._miss(TENSORBOARD, trouble.exc_value)
        elif self.before is not None:
            self.before(trouble)


def _board(folder: Path) -> Writer | None:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # TensorBoard is an extra
        return None
    return SummaryWriter(folder)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
