"""Tests of Ctrl-C don't go by who started them."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.signals import heard

SENDS = re.compile(r"send_signal\((?:signal\.SIGINT|sign)\)")


def test_a_child_hears_what_its_parent_ignores() -> None:
    plain = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        deaf, hears = (
            subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() for command in (plain, heard(plain))
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert (deaf, hears) == ("False", "True")


@pytest.mark.usefixtures("ctrl_c")
def test_this_process_hears_too() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_whoever_sends_a_child_ctrl_c_lets_it_hear() -> None:
    for path in Path(__file__).parent.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not SENDS.search(text) or "heard(" in text, f"{path}: start the child as heard(command)"
