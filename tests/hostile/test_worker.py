"""The process in which others' work is done: it may die, and nobody else; it ends with whoever asks, however they end."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from regard.errors import RegardError
from regard.worker import StoppedError, Worker
from tests.serve.live import together, until
from tests.signals import heard

ROOT = Path(__file__).parents[2]
MUCH = 64 << 20
WORK = "tests.hostile.work"


def asked(worker: Worker, *what: Any) -> Any:
    return worker.ask(json.dumps(what))


def gone(pid: int) -> bool:
    """Whether a process has ended, be it that nobody has asked how."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems limit no memory")


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (["abort"], r"ended the process that it ran in \(SIGABRT\)"),
        (["crash"], r"ended the process that it ran in \(SIGSEGV\)"),
        (["leave", 0], r"ended the process that it ran in \(with code 0\)"),
        (["hold"], r"took more than 1 s"),
        (["compute"], r"took more than (0.2|2) s"),
        pytest.param(["take", 2 * MUCH], r"took more than 64 MB of memory", marks=LINUX),
        (["panic"], r"failed \(Panic: at the disco\)"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_ends_it_is_said_and_the_next_is_answered(what: list[Any], why: str) -> None:
    worker = Worker(WORK, {"hold": 0.1, "compute": 0.2}.get(what[0], 30), MUCH)
    assert asked(worker, "first") == ["first"]
    first = worker.pid
    assert first is not None
    with pytest.raises(StoppedError, match=f"^{why}$"):
        asked(worker, *what)
    assert gone(first)
    worker.seconds = 30
    assert asked(worker, "next") == ["next"]


def test_only_what_it_answers_is_an_answer() -> None:
    worker = Worker(WORK, 30, MUCH)
    assert asked(worker, "print") == ["print"]
    assert asked(worker, "lone \ud800", "\ufdd0") == ["lone \ud800", "\ufdd0"]
    assert asked(worker, "x" * 300_000) == ["x" * 300_000]  # more than a pipe holds


def test_it_knows_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_API_KEY", "secret")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    told = asked(Worker(WORK, 30, MUCH), "environment")
    assert "secret" not in str(told)
    assert told["TZ"] == "Asia/Kolkata"


def test_only_whoever_asks_ends_it() -> None:
    worker = Worker(WORK, 30, MUCH)
    assert asked(worker, "signals") == ["signals"]
    assert worker.pid is not None
    assert os.getpgid(worker.pid) != os.getpgid(0)  # where Ctrl-C in a terminal would reach it


def test_any_thread_may_ask() -> None:
    worker = Worker(WORK, 30, MUCH)
    assert together([lambda number=number: asked(worker, number) for number in range(40)]) == [[number] for number in range(40)]


def test_it_is_not_kept_for_ever() -> None:
    worker = Worker(WORK, 30, MUCH, idle=0.1)
    asked(worker, "first")
    until(lambda: worker.pid is None)
    assert asked(worker, "next") == ["next"]


def test_it_goes_with_whoever_could_ask() -> None:
    worker = Worker(WORK, 30, MUCH)
    asked(worker, "first")
    pid = worker.pid
    assert pid is not None
    del worker
    gc.collect()
    until(lambda: gone(pid))


def test_where_no_python_is_found_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: "/nowhere/python")
    with pytest.raises(RegardError, match=r"no process could be started .*/nowhere/python: No such file"):
        asked(Worker(WORK, 30, MUCH), "first")
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: "/bin/true")
    with pytest.raises(RegardError, match=r"no process that could do its work was started by /bin/true; .*set_executable"):
        asked(Worker(WORK, 30, MUCH), "first")


def script(code: str) -> list[str]:
    """A process that asks a worker, whose process id it prints first."""
    begin = f"import json, os, signal, sys, threading, time\nfrom regard.worker import Worker\nworker = Worker({WORK!r}, 60, {MUCH})\n"
    return heard([sys.executable, "-c", begin + "worker.ask('1')\nprint(worker.pid, flush=True)\n" + code])


ENDS = {
    "by itself": "",
    "by an error": "raise RuntimeError",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "told to": "os.kill(os.getpid(), signal.SIGTERM)",
    "at once": "os._exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_with_whoever_asks(end: str) -> None:
    done = subprocess.run(script(ENDS[end]), capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    until(lambda: gone(int(done.stdout)))


def test_it_ends_though_whoever_asked_was_killed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, once its time is over."""
    code = "from regard import worker as its\nits.SLACK_SECONDS = its.PATIENCE = 1\n"
    code += "short = Worker('tests.hostile.work', 1, 1 << 26)\nshort.ask('1')\nprint(short.pid, flush=True)\n"
    code += "threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGKILL]).start()\nshort.ask('[\"hold\"]')"
    done = subprocess.run(script(code), capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    until(lambda: all(gone(int(pid)) for pid in done.stdout.split()))


def test_ctrl_c_breaks_off_what_it_does_and_nothing_else() -> None:
    code = (
        "threading.Timer(0.3, os.killpg, [0, signal.SIGINT]).start()\ntry:\n    worker.ask('[\"hold\"]')\n"
        "except KeyboardInterrupt:\n    print(worker.ask('2'), flush=True)"
    )
    done = subprocess.run(script(code), capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, start_new_session=True)
    pid, said = done.stdout.split()
    assert (done.returncode, said, done.stderr) == (0, "2", "")
    until(lambda: gone(int(pid)))


def test_a_fork_has_one_of_its_own() -> None:
    """As where a server of several processes loads its models before it forks."""
    code = (
        "if child := os.fork():\n    same = [worker.ask(str(n)) for n in range(50)] == list(range(50))\n"
        "    print(os.waitpid(child, 0)[1], same, worker.ask('3'), flush=True)\n"
        "else:\n    sys.exit([worker.ask(str(-n)) for n in range(50)] != [-n for n in range(50)])"
    )
    done = subprocess.run(script(code), capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert done.stdout.split()[1:] == ["0", "True", "3"], done.stderr


def test_it_is_quick() -> None:
    """Once it is there: nobody notices that a conversation is written out elsewhere."""
    worker = Worker(WORK, 30, MUCH)
    asked(worker, "first")
    seconds = []
    for number in range(200):
        begun = time.perf_counter()
        asked(worker, number)
        seconds.append(time.perf_counter() - begun)
    assert min(seconds) < 0.002
