"""Signals for the processes that tests start."""

from __future__ import annotations

import signal


def heard() -> None:
    """As `preexec_fn` of a child that is sent signals: it hears them, also where the tests themselves were told to ignore them.

    What is ignored is inherited, and nohup, background jobs of scripts and some machines that run tests ignore Ctrl-C.
    """
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_DFL)
