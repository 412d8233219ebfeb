"""Tiny trainings on a machine that misbehaves: each system call that writes is counted, refused, or the last that a process does.

A program of its own, which reads trials as JSON and answers what came of each: it forks, and must have no threads for that. Linux's
seccomp hands the calls of a child over to it, those of PyTorch's and safetensors' own code too.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import platform
import random
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALLS = {  # by machine: its number in audits, that of seccomp, and those of the calls that write
    "x86_64": (0xC000003E, 317, {
        "write": 1, "open": 2, "pwrite64": 18, "writev": 20, "fsync": 74, "fdatasync": 75, "ftruncate": 77, "rename": 82, "mkdir": 83,
        "rmdir": 84, "creat": 85, "link": 86, "unlink": 87, "symlink": 88, "chmod": 90, "fchmod": 91, "openat": 257, "mkdirat": 258,
        "unlinkat": 263, "renameat": 264, "linkat": 265, "symlinkat": 266, "fchmodat": 268, "fallocate": 285, "renameat2": 316,
    }),
    "aarch64": (0xC00000B7, 277, {
        "mkdirat": 34, "unlinkat": 35, "symlinkat": 36, "linkat": 37, "renameat": 38, "ftruncate": 46, "fallocate": 47, "fchmod": 52,
        "fchmodat": 53, "openat": 56, "write": 64, "writev": 66, "pwrite64": 68, "fsync": 82, "fdatasync": 83, "renameat2": 276,
    }),
}  # fmt: skip
ON_FILES = ("write", "pwrite64", "writev", "fsync", "fdatasync", "ftruncate", "fchmod", "fallocate")  # the first argument is a descriptor
AT_TWO = ("renameat", "renameat2", "linkat")  # two folders and two names
AT_ONE = ("openat", "mkdirat", "unlinkat", "fchmodat")  # a folder and a name
NEEDS_ROOM = ("write", "pwrite64", "writev", "open", "openat", "creat", "mkdir", "mkdirat", "link", "linkat", "symlink", "symlinkat",
              "fallocate")  # fmt: skip
HERE = -100  # AT_FDCWD
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
STEPS = 6


def available() -> str | None:
    """Why calls can't be watched here; None: they can."""
    if sys.platform != "linux" or platform.machine() not in CALLS:
        return "calls are watched on Linux alone, on x86-64 and ARM64"
    with suppress(OSError):
        if "user_notif" in Path("/proc/sys/kernel/seccomp/actions_avail").read_text():
            return None
    return "this kernel hands no calls over (seccomp's user_notif)"


def watched_by() -> int:
    """From now on this process's calls that write wait for whoever reads the descriptor that is given back."""
    audit, seccomp, calls = CALLS[platform.machine()]
    allow, ask = 0x7FFF0000, 0x7FC00000
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, audit), (0x06, 0, 0, allow), (0x20, 0, 0, 0)]  # another machine's calls are let through
    for name, number in calls.items():
        if name in ("open", "openat"):  # to read alone is no matter
            flags = 16 + 8 * (1 if name == "open" else 2)
            code += [(0x15, 0, 4, number), (0x20, 0, 0, flags), (0x45, 0, 1, WRITES), (0x06, 0, 0, ask), (0x06, 0, 0, allow)]
        else:
            code += [(0x15, 0, 1, number), (0x06, 0, 0, ask)]
    code.append((0x06, 0, 0, allow))
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(instructions)))
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(38, 1, 0, 0, 0)  # no new privileges, or else only root may
    library.syscall.restype = ctypes.c_long
    listener = int(library.syscall(ctypes.c_long(seccomp), ctypes.c_long(1), ctypes.c_long(8), program))
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


@dataclass
class Watch:
    """What a process does, and what is done to it: at its call number `at` it is killed, or from then on refused."""

    roots: tuple[Path, ...]  # where it may write
    kind: str = "none"
    at: int = -1
    seen: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)

    def follow(self, child: int, listener: int) -> int:
        """To its end, which is given back."""
        waiting = select.poll()
        waiting.register(listener, select.POLLIN)
        while not any(event & select.POLLHUP for _, event in waiting.poll()):
            notice = bytearray(80)
            try:
                fcntl.ioctl(listener, 0xC0502100, notice)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):  # it has died meanwhile
                    continue
                raise
            id, task, _, number, _, _, *given = struct.unpack("=QIIiIQ6Q", notice)
            refused = self._judge(child, task, number, given)
            with suppress(OSError):
                fcntl.ioctl(listener, 0xC0182101, struct.pack("=QqiI", id, 0, -refused, 0 if refused else 1))
        os.close(listener)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _judge(self, child: int, task: int, number: int, given: list[int]) -> int:
        """The error that a call ends with; 0: it goes on."""
        name = next(name for name, known in CALLS[platform.machine()][2].items() if known == number)
        try:
            places = _places(name, task, given)
        except OSError:  # it has died meanwhile, or the descriptor is none
            return 0
        ours = [place for place in places if any(place.is_relative_to(root) for root in self.roots)]
        others = [place for place in places if place not in ours and not str(place).startswith(("/dev/", "/proc/", tempfile.gettempdir()))]
        self.outside += [f"{name} {place}" for place in others]
        if not ours:
            return 0
        if "tensorboard" not in ours[0].parts:  # whose thread writes when it likes
            self.seen.append(f"{name} {ours[0]}")
        if len(self.seen) <= self.at:
            return 0
        if self.kind == "kill":
            os.kill(child, signal.SIGKILL)
        if self.kind == "full" and name in NEEDS_ROOM:
            return errno.ENOSPC
        if self.kind == "read-only" and name not in ("fsync", "fdatasync"):
            return errno.EROFS
        return 0


def _places(name: str, task: int, given: list[int]) -> list[Path]:
    """The files that a call is about; none where it is about a pipe or what was there at the start."""

    def named(folder: int, pointer: int) -> Path:
        with open(f"/proc/{task}/mem", "rb", buffering=0) as memory:
            memory.seek(pointer)
            text = os.fsdecode(memory.read(4096).partition(b"\0")[0])
        if not text:
            raise ProcessLookupError(errno.ESRCH, "it has died meanwhile, and its memory is gone")
        folder = ctypes.c_int(folder & 0xFFFFFFFF).value
        return Path(os.readlink(f"/proc/{task}/cwd" if folder == HERE else f"/proc/{task}/fd/{folder}")) / text

    if name in ON_FILES:
        place = os.readlink(f"/proc/{task}/fd/{given[0]}")
        return [Path(place)] if given[0] > 2 and place.startswith("/") else []
    if name in AT_TWO:
        return [named(given[0], given[1]), named(given[2], given[3])]
    if name in AT_ONE:
        return [named(given[0], given[1])]
    if name == "symlinkat":
        return [named(given[1], given[2])]
    if name in ("rename", "link"):
        return [named(HERE, given[0]), named(HERE, given[1])]
    return [named(HERE, given[1] if name == "symlink" else given[0])]


class Machine:
    """Tiny trainings in folders of their own, each beside its cache and something that is none of its business."""

    def __init__(self, folder: Path) -> None:
        from tests.training.test_run import recipe

        self.folder = folder
        settings = {"steps": STEPS, "validate_every": 3, "checkpoint_every": 2, "keep": 2}
        self.recipe = recipe(folder, "lm", training=settings, data={"dev_share": 0.3})
        self.place = folder / "place"
        self.place.mkdir()
        (self.place / "mine").write_text("nobody touches this\n")
        self.whole = self.watched(Watch(self._roots()))[1].seen
        self.bundle = self.result()
        assert self.bundle, (self.place / "said").read_text()
        self.stopped = folder / "stopped"
        self.clear()
        assert self.watched(Watch(self._roots()), stop=4)[0] == 1
        self.place.rename(self.stopped)

    def _roots(self) -> tuple[Path, ...]:
        return (self.place / "run", self.place / "cache")

    def clear(self) -> None:
        """Nothing was trained yet."""
        for name in ("run", "cache", "said"):
            shutil.rmtree(self.place / name, ignore_errors=True)
            (self.place / name).unlink(missing_ok=True)

    def watched(self, watch: Watch, *, resume: bool = False, stop: int = -1) -> tuple[int, Watch]:
        """A training in a process of its own: how it ended, and what it did."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                os._exit(self._train(theirs, resume, stop))
            finally:
                os._exit(70)
        theirs.close()
        _, (listener, *_), _, _ = socket.recv_fds(ours, 1, 1)
        ours.close()
        return watch.follow(child, listener), watch

    def _train(self, theirs: socket.socket, resume: bool, stop: int) -> int:
        from rich.console import Console

        from regard.errors import RegardError
        from regard.training.run import recipe_of, run_recipe
        from regard.training.trainer import Trainer

        os.environ["REGARD_CACHE"] = str(self.place / "cache")
        os.chdir(self.place)
        said = os.open(self.place / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        listener = watched_by()
        socket.send_fds(theirs, [b"x"], [listener])
        os.close(listener)
        if stop >= 0:
            Trainer._anyone = lambda trainer, asked: trainer.progress.step == stop  # type: ignore[method-assign]
        try:
            recipe = recipe_of(self.place / "run") if resume else self.recipe
            run_recipe(recipe, self.place / "run", resume=resume, console=Console(file=sys.stderr, width=1000))
        except RegardError as error:
            print(f"regard: {error}", file=sys.stderr, flush=True)
            return 1
        except BaseException:
            traceback.print_exc()
            return 70
        return 0

    def result(self) -> dict[str, str]:
        """The bundle, file by file."""
        files = sorted((self.place / "run" / "bundle").glob("*"))
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def trial(self, kind: str, at: int, seed: int = 0) -> dict[str, Any]:
        """What came of it: the same bits, at once or when it was resumed, or a sentence; all else is a finding."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.stopped, self.place, symlinks=True)
        (self.place / "said").unlink()
        done: dict[str, Any] = {"kind": kind, "at": at, "seed": seed}
        if kind.startswith("flip "):
            done["what"] = self._flip(kind.removeprefix("flip "), random.Random(seed))
            ends = [self.watched(watch := Watch(self._roots()), resume=True)[0]]
        else:
            self.clear()
            ends = [self.watched(watch := Watch(self._roots(), kind, at))[0]]
            done["what"] = watch.seen[at] if at < len(watch.seen) else "the end"
        if ends[-1] and not kind.startswith("flip "):
            again = Watch(self._roots())
            begun = (self.place / "run" / "recipe.toml").is_file()
            ends.append(self.watched(again, resume=begun)[0])
            watch.outside += again.outside
        said = (self.place / "said").read_text(errors="replace")
        done |= {"ends": ends, "outside": watch.outside, "said": said.splitlines()[-12:], "outcome": self._outcome(ends, said)}
        if (self.place / "mine").read_text() != "nobody touches this\n" or {*os.listdir(self.place)} - {"mine", "run", "cache", "said"}:
            done["outside"].append("the folder beside it")
        return done

    def _outcome(self, ends: list[int], said: str) -> str:
        if "Traceback" in said or any(end not in (0, 1, -signal.SIGKILL) for end in ends):
            return "raw"
        if ends[-1] == 0 and self.result() == self.bundle:
            return "same bits"
        if ends[-1] == 1 and said.splitlines()[-1].startswith("regard: "):
            return "a sentence"
        return "other bits, said" if ends[-1] == 0 and ", and was " in said else "other bits"

    def _flip(self, where: str, chance: random.Random) -> str:
        folder = self.place / {"cache": "cache", "checkpoint": "run/checkpoints"}.get(where, "run")
        names = {"recipe": "recipe.toml", "metrics": "metrics.jsonl"}
        path = chance.choice(sorted(path for path in folder.rglob(names.get(where, "*")) if path.is_file() and path.stat().st_size))
        content = bytearray(path.read_bytes())
        bit = chance.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        return f"bit {bit} of {path.relative_to(self.place)}"


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "scratch").mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "scratch")  # where PyTorch may write
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = tempfile.tempdir  # and not where our caller's does
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no threads, or a child would wait for them
    with suppress(ImportError):
        import torch.utils.tensorboard  # noqa: F401  (once, and not in every child)
    machine = Machine(folder)
    print(json.dumps(machine.whole), flush=True)
    for line in sys.stdin:
        print(json.dumps(machine.trial(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
