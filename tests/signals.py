"""Signals for the processes that tests start."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# By way of a program, which becomes the one that is meant: what Popen could do itself, it must not where threads are running.
HEARS = "import os, sys; from signal import *; signal(SIGINT, SIG_DFL); signal(SIGTERM, SIG_DFL); os.execvp(sys.argv[1], sys.argv[1:])"


def heard(command: Sequence[str]) -> list[str]:
    """The same command, and it hears Ctrl-C and SIGTERM, also where the tests themselves were told to ignore them.

    What is ignored is inherited, and nohup, background jobs of scripts and some machines that run tests ignore Ctrl-C.
    """
    return [sys.executable, "-I", "-S", "-c", HEARS, *command]
