"""Files that someone asked for: whole or not at all, and only in the place of a file."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from regard.errors import RegardError

FULL = (errno.ENOSPC, errno.EDQUOT)


class OutputError(RegardError):
    """Results can't be written where they should go."""


class Making:
    """A file in the making: `stream` takes its content, which stands at `path` when all went well, or not at all.

    A pipe or a device is written into as it is. Of a link the target is replaced. A file that stood there keeps its mode and its owner.
    """

    def __init__(self, path: Path) -> None:
        refuse(path)
        self.path = path
        self._made: Path | None = None  # the file to be, under a name for the meantime
        with explained(path):
            if path.exists() and not path.is_file():
                self.stream: IO[bytes] = path.open("wb")  # no file to be replaced
                return
            self.path = Path(os.path.realpath(path))  # a link goes on pointing where it points
            made = self.path.with_name(f".regard-{secrets.token_hex(4)}.part")
            self.stream = made.open("xb")
            self._made = made

    def put_in_place(self) -> None:
        """All is written."""
        with explained(self.path):
            self.stream.flush()
            if self._made is None:
                return
            os.fsync(self.stream.fileno())  # so that a power cut after the rename finds all of it
            self.stream.close()
            if self.path.exists():
                _take_after(self._made, self.path)
            self._made.replace(self.path)
            self._made = None

    def drop(self) -> None:
        """Leaves nothing of what was not put in place."""
        with suppress(OSError):
            self.stream.close()
        if self._made is not None:
            with suppress(OSError):
                self._made.unlink()


def write_file(path: Path, content: bytes) -> None:
    """Writes a file in one go, whole or not at all."""
    making = Making(path)
    try:
        with explained(path):
            making.stream.write(content)
        making.put_in_place()
    finally:
        making.drop()


def refuse(path: Path) -> None:
    """An error, where a file can't be written; for whoever would otherwise work first and find out after."""
    if os.path.isdir(path):  # which, unlike Path's, has no trouble with a name that is too long
        raise OutputError(f"{path} is a folder; name a file in it")
    folder = Path(os.path.realpath(path)).parent
    for place in (path.parent, folder):
        if not os.path.isdir(place):
            raise OutputError(f"can't write {path}: there is no folder {place}; make it first, or choose another")
    with explained(path):
        try:
            there = path.stat()
        except FileNotFoundError:
            there = None
    if there is not None and not os.access(path, os.W_OK):
        raise OutputError(f"{path} may not be written to; choose another file, or change its permissions")
    if (there is None or stat.S_ISREG(there.st_mode)) and not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"can't write {path}: the folder {folder} may not be written to; choose another, or change its permissions")


@contextmanager
def explained(name: Path | str) -> Iterator[None]:
    """A trouble with the disk in words. That the reader of a pipe has seen enough is no trouble, and goes on to the command line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        remedy = "free some space" if error.errno in FULL else "see that you may write there"
        raise OutputError(f"could not write {name}: {error.strerror or error}; {remedy}, or choose another place") from error


def drop_output() -> None:
    """Lets what is left for standard output go nowhere, so that Python does not try again at its end and complain."""
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def output_to_its_end() -> Iterator[None]:
    """All that was printed has gone out when this ends, or an error says that it could not: what is printed waits to be written."""
    try:
        yield
    except OSError as error:
        if error.filename is None:  # not of a file that was opened; if it is of the output, a line more fails as well
            _flush_output("\n")
        raise
    except SystemExit:
        _flush_output()
        raise
    except RegardError:
        with suppress(OutputError, BrokenPipeError):  # one sentence is enough
            _flush_output()
        raise
    _flush_output()


def _flush_output(more: str = "") -> None:
    if sys.stdout is None or sys.stdout.closed:
        return
    try:
        with explained("to standard output"):
            if more:
                sys.stdout.write(more)
            sys.stdout.flush()
    except (OutputError, BrokenPipeError):
        drop_output()
        raise


def _take_after(made: Path, old: Path) -> None:
    """Gives a file the owner, where we may, and the mode of the one whose place it takes."""
    was, own = old.stat(), made.stat()
    if hasattr(os, "chown") and (own.st_uid, own.st_gid) != (was.st_uid, was.st_gid):
        with suppress(OSError):
            os.chown(made, was.st_uid, was.st_gid)
    shutil.copymode(old, made)
