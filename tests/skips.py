"""What was not tested here, and how it could be: the end of `make test`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

# What the reason of a skip has in it, and what lets those tests run. The first that fits is said.
HOW = (
    ("CUDA device", "on a machine with an NVIDIA GPU: make gpu"),
    ("REGARD_DATA|the data", "REGARD_DATA=FOLDER make test, with that data in the folder"),
    ("browser", "apt-get install chromium, or .venv/bin/playwright install chromium; or CHROMIUM=PATH make test"),
    ("Triton", "on Linux, make setup; where there is a GPU, CUDA_VISIBLE_DEVICES= make test"),
    ("--no-deps", "install what is named"),
    ("could not import|extra|library|pip install", "make setup"),
    ("small disk", "as root, where disks may be mounted"),
    ("PyTorch has no|this CPU", "on another CPU"),
    ("needs node", "install Node.js"),
)


def how(reason: str) -> str | None:
    """What to do so that a test that was skipped for this reason runs; None where nothing is missing."""
    return next((remedy for part, remedy in HOW if re.search(part, reason)), None)


def summary(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Lines that say how many tests were skipped and why, most first; each comes as its file and the reason."""
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    for file, reason in skipped:
        groups[reason.removeprefix("Skipped: ")][re.sub(r".*?tests/|/?[\w]+\.py$", "", file) or "tests"] += 1
    for reason, rooms in sorted(groups.items(), key=lambda group: (-group[1].total(), group[0])):
        yield f"{rooms.total():5} {reason} ({', '.join(sorted(rooms))})"
        if (remedy := how(reason)) is not None:
            yield f"      to run: {remedy}"
