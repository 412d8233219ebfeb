"""A worker: work on what others made, in a process of its own that has limits of time and memory, and may die of it.

It is a module with a function `answer`, which takes and gives what JSON can say. The process is started when it is first asked, is kept for
the next, and ends when nobody has asked for long, or with whoever did.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard.errors import RegardError

START_SECONDS = 60.0  # until it can be asked
PATIENCE = 10  # times as long as it may compute, it is waited for: others may be computing too
IDLE_SECONDS = 300.0  # that it is kept
SLACK_SECONDS = 5.0  # beyond its time, after which a process ends by itself: whoever should have ended it is gone
# What it is told of the environment: nothing that is a secret. And it computes in one thread, since each takes of the memory it may have.
HEARD = ("TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")
ALONE = {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
BEGIN = "import sys; sys.path[:] = sys.argv[5:]; from regard.worker import serve; serve(sys.argv[1], *map(float, sys.argv[2:5]))"


class StoppedError(RegardError):
    """A worker came to no answer. The message says why, and whoever asked says of what: "took more than 2 s"."""


class Worker:
    """Asked by any thread, it answers one after the other."""

    def __init__(self, module: str, seconds: float, memory: int, idle: float = IDLE_SECONDS) -> None:
        """`seconds`: that an answer may compute; `memory`: in bytes, beyond what the module itself takes; `idle`: seconds till the next."""
        self.module, self.seconds, self.memory, self.idle = module, seconds, memory, idle
        self._process: _Process | None = None
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._end: weakref.finalize[[], Worker] | None = None  # of the process, when nobody can ask any more

    def ask(self, asked: str) -> Any:
        """The answer to what is JSON, or StoppedError; the next is then answered by a new process."""
        if self._owner != os.getpid():  # after a fork: the process is that of another, who may be asking it
            self._process, self._lock, self._owner = None, threading.Lock(), os.getpid()
        with self._lock:
            if self._process is None or not self._process.allow(PATIENCE * self.seconds):
                self._process = _Process(self.module, self.seconds, self.memory)
                if self._end is not None:
                    self._end.detach()
                self._end = weakref.finalize(self, self._process.end)
                self._process.allow(PATIENCE * self.seconds)
            return self._process.ask(asked.encode() + b"\n", self.idle)

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None or self._process.ended else self._process.pid


class _Process:
    """One process, from its start to its end. A thread watches that it takes no longer than it may."""

    def __init__(self, module: str, seconds: float, memory: int) -> None:
        self.ended = False
        self._late = False
        self._seconds, self._memory, self._owner = seconds, memory, os.getpid()
        self._until, self._turn = time.monotonic() + START_SECONDS, threading.Condition()
        self._popen = _started(module, seconds, memory)
        self.pid = self._popen.pid
        threading.Thread(target=self._watch, name="regard-watch", daemon=True).start()
        if self._read() != b"\n":
            self.end()
            raise RegardError(
                f"no process that could do its work was started by {_python()}; name a Python that has what this one has, "
                "with multiprocessing.set_executable"
            )

    def allow(self, seconds: float) -> bool:
        """It has so long from now on; False where it has ended."""
        with self._turn:
            self._until = time.monotonic() + seconds
            self._turn.notify()
            return not self.ended

    def ask(self, line: bytes, idle: float) -> Any:
        try:
            said = self._read(line)
        except BaseException:  # Ctrl-C: it would answer what nobody waits for any more
            self.end()
            raise
        if not said.endswith(b"\n"):
            self.end()
            raise StoppedError(self._why())
        self.allow(idle)
        answer = json.loads(said)
        if "why" in answer:
            self.end()
            raise StoppedError(answer["why"])
        return answer["answer"]

    def _read(self, line: bytes = b"") -> bytes:
        """What it says to a line; less than a line where it has ended."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
            return self._popen.stdout.readline(self._memory)
        except (OSError, ValueError):  # ValueError: closed already
            return b""

    def _why(self) -> str:
        code = self._popen.returncode
        if self._late:
            return f"took more than {PATIENCE * self._seconds:g} s"
        if code == -getattr(signal, "SIGPROF", 0):
            return f"took more than {self._seconds:g} s"
        how = signal.Signals(-code).name if code < 0 else f"with code {code}"
        return f"ended the process that it ran in ({how})"

    def _watch(self) -> None:
        with self._turn:
            while (left := self._until - time.monotonic()) > 0 and not self.ended:
                self._turn.wait(left)
            self._late = not self.ended
        self.end()

    def end(self) -> None:
        if self._owner != os.getpid():
            return  # a fork of whoever started it ends; others still ask
        with self._turn:
            self.ended = True
            self._turn.notify()
            self._popen.kill()
            self._popen.wait()
            for pipe in (self._popen.stdin, self._popen.stdout):
                assert pipe is not None
                with suppress(OSError):  # what it was not told before it ended
                    pipe.close()


def _started(module: str, seconds: float, memory: int) -> subprocess.Popen[bytes]:
    """By the paths of this process, so that it finds the same code, and out of reach of the terminal's Ctrl-C."""
    here = str(Path(__file__).parents[1])
    paths = [*sys.path, *([] if here in sys.path else [here])]
    command = [_python(), "-I", "-S", "-X", "utf8", *(["-B"] if sys.dont_write_bytecode else []), "-c", BEGIN]
    told = [module, str(seconds), str(PATIENCE * seconds + SLACK_SECONDS), str(memory)]
    heard = {name: os.environ[name] for name in HEARD if name in os.environ} | ALONE
    hidden = getattr(subprocess, "CREATE_NO_WINDOW", 0)
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(
            [*command, *told, *paths], stdin=pipe, stdout=pipe, stderr=nowhere, env=heard, start_new_session=True, creationflags=hidden
        )
    except OSError as error:
        raise RegardError(f"no process could be started for what others made ({_python()}: {error.strerror}); see that one can") from error


def _python() -> str:
    from multiprocessing.spawn import get_executable

    return os.fsdecode(get_executable() or sys.executable or "python3")


# What the process itself does


def serve(module: str, seconds: float, most: float, memory: float) -> None:
    """Answers until nobody can ask any more. An answer that computes for `seconds`, or takes `most`, is its end."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)  # whoever asks says when it ends
    timed = hasattr(signal, "setitimer")
    if timed:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
    work = importlib.import_module(module).answer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing that a library prints is an answer
    _limit(int(memory))
    said = b""
    while True:
        answers.write(said + b"\n")
        answers.flush()
        if not (line := sys.stdin.buffer.readline()).endswith(b"\n"):
            return
        faulthandler.dump_traceback_later(most, exit=True)
        if timed:
            signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            said = json.dumps({"answer": work(json.loads(line))}).encode()
        except MemoryError:
            said = json.dumps({"why": f"took more than {int(memory) >> 20} MB of memory"}).encode()
        except BaseException as error:  # a library's panic too
            said = json.dumps({"why": f"failed ({type(error).__name__}: {' '.join(str(error).split())[:200]})"}).encode()
        if timed:
            signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def _limit(memory: int) -> None:
    """Of the memory that may be taken from now on, where the system has such limits. Nor is what it held written down when it dies."""
    try:
        import resource
    except ImportError:
        return
    taken, size = 0, Path("/proc/self/statm")
    if size.is_file():
        taken = int(size.read_text().split()[0]) * resource.getpagesize()
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, taken + memory)):
        _, before = resource.getrlimit(limit)
        most = most if before == resource.RLIM_INFINITY else min(most, before)
        with suppress(OSError, ValueError):  # macOS: it has more than that already
            resource.setrlimit(limit, (most, most))
