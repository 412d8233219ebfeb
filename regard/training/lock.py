"""One training in a folder at a time: its process owns the folder, and another is told whose it is before it writes anything."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.errors import TrainingError

LOCK = ".running"  # in the run's folder while it is trained
TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)

if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        """Far behind the end: on Windows no one may read what is locked."""
        os.lseek(file, 1 << 30, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def owned(folder: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Makes the folder this process's own until the end. The system keeps the lock: it is gone with the process, however that ends."""
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _open_locked(folder, say)
    except OSError as error:
        raise TrainingError(f"can't write to {folder}: {error.strerror}; choose another --out") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(file)
        if made:
            with suppress(OSError):  # only where nothing came of it
                folder.rmdir()


def refuse_others(place: Path) -> None:
    """For whoever writes without training: an error, where that place is a run that someone trains in, or lies in one."""
    whole = place.resolve()
    for folder in (whole, *whole.parents):
        if _is_owned(folder):
            raise TrainingError(f"{_whose(folder)}, or choose a folder that does not lie in it")


def _is_owned(folder: Path) -> bool:
    """The file alone says nothing, since a killed training leaves it behind; that it can't be locked does."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        _lock(file)
    except OSError as error:
        return error.errno in TAKEN
    finally:
        os.close(file)
    return False


def _open_locked(folder: Path, say: Callable[[str], None]) -> int:
    path = folder / LOCK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            try:
                _lock(file)
            except OSError as error:
                if error.errno in TAKEN:
                    raise TrainingError(f"{_whose(folder)}, or choose another --out") from None
                if error.errno not in UNSUPPORTED:
                    raise
                say(f"{folder} is on a file system without locks; see that nothing else is trained there")
            if not _is_still(path, file):  # its last owner took it away in between
                os.close(file)
                continue
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
            os.ftruncate(file, 0)
            os.lseek(file, 0, os.SEEK_SET)
            os.write(file, json.dumps(owner).encode())
        except BaseException:
            with suppress(OSError):
                os.close(file)
            raise
        return file


def _is_still(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _whose(folder: Path) -> str:
    """Who trains there, as far as the owner has written it down."""
    try:
        owner = json.loads((folder / LOCK).read_text(encoding="utf-8"))
        who = f"by process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        who = "by another process"
    return f"{folder} is being trained in {who}; wait for its end or stop it"
