"""What all tests share."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.skips import summary

torch.set_num_threads(1)  # tests are small and run side by side
if not torch.cuda.is_available() and find_spec("triton") is not None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before any kernel is defined: without a GPU they are interpreted


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """This process hears Ctrl-C, also where whoever started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB, to fill up."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk to fill up")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"can't mount a small disk here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped, by its reason, and how to run it."""
    skipped = [
        (str(report.longrepr[0]), str(report.longrepr[2])) for report in terminalreporter.stats.get("skipped", []) if report.longrepr
    ]
    if skipped:
        terminalreporter.section("skipped, and how to run it")
        for line in summary(skipped):
            terminalreporter.write_line(line)


os.environ.setdefault("HF_HUB_OFFLINE", "1")
