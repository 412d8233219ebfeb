"""The verbs, each a few lines over the library. What a verb needs is imported when it runs, so that `--help` is instant."""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import signal
import sys
import warnings
from contextlib import suppress
from functools import partial
from typing import Any

from regard.cli import asking, exchange, exporting, lengths, looking, making, music, serving, viewing  # noqa: F401  (each adds its verbs)
from regard.cli.app import app
from regard.cli.groups import arrange
from regard.errors import RegardError, RegardWarning, out_of_memory
from regard.files import output_to_its_end

__all__ = ["app", "main"]

SIZE = re.compile(r"[1-9][0-9]{0,3}")  # of a terminal, as the environment says it
# After how many new objects Python looks for those that only hold on to each other. Importing PyTorch makes 160,000 that stay, and to look
# through them again and again was a tenth of the time it took.
SELDOM = (50_000, 20, 20)

arrange(app)


def main() -> None:
    """The command line. A stated error ends it with 1, wrong usage with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show a √ shows a ? instead of an error
    with suppress(ValueError):  # not the main thread of a process: then signals are someone else's
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what is half-written is removed
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):
        if not SIZE.fullmatch(os.environ.get(name, "1")):
            del os.environ[name]  # no size of a terminal; what there is is asked instead
    gc.set_threshold(*SELDOM)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(_show, warnings.showwarning)
            warnings.simplefilter("always", RegardWarning)
            with output_to_its_end():
                app()
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        sys.exit(1)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        print("regard: out of memory; ask for less at once, or let nothing else run beside it", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:  # the system's own, which nobody has put into words nearer by
        print(f"regard: {_of_the_system(error)}", file=sys.stderr)
        sys.exit(1)
    finally:
        gc.freeze()  # the process ends: what is left needs no looking through, which would take a fifth of a second


def _of_the_system(error: OSError) -> str:
    remedies = {
        errno.ENAMETOOLONG: "is it a text where the name of a file or a model belongs?",
        errno.EACCES: "change its permissions, or choose another",
        errno.ENOSPC: "free some space",
        errno.EMFILE: "allow more open files with ulimit -n",
    }
    name = "" if error.filename is None else f"{os.fsdecode(error.filename)[:80]!r}: "
    return f"{name}{error.strerror or error}; {remedies.get(error.errno or 0, 'see that it is there and that you may use it')}"


def _show(others: Any, message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """A warning of ours is a message; where in the code it was given says nothing to who types a command."""
    if issubclass(category, RegardWarning):
        print(f"regard: {message}", file=sys.stderr)
    else:
        others(message, category, *where, **more)
