"""metrics.jsonl: the figures of a run, a line each. They show how it went; what happens to them stops no training."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from regard.errors import RegardError
from regard.files import write_file

METRICS = "metrics.jsonl"


class Figures:
    """The file of one run. Each error is an OSError or one that can be explained, for the caller to tell and to go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.torn = False  # whether a line may have been cut short

    def add(self, step: int, figures: dict[str, Any]) -> None:
        record = {"step": step, "time": round(time.time(), 3), **figures}
        finite = {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in record.items()}
        line = ("\n" if self.torn else "") + json.dumps(finite) + "\n"
        self.torn = True
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(line)
        self.torn = False

    def forget_after(self, step: int) -> list[int]:
        """Takes out the figures of later steps, and what is none; gives the numbers of the lines that were none."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        *lines, _ = content.split(b"\n")  # after the last end of line there is nothing, or what a kill cut short
        found = [_record(line) for line in lines]
        kept = b"".join(line + b"\n" for line, record in zip(lines, found, strict=True) if record is not None and record["step"] <= step)
        if kept != content:
            write_file(self.path, kept)
        return [number for number, (line, record) in enumerate(zip(lines, found, strict=True), 1) if record is None and line.strip()]

    def read(self) -> list[dict[str, Any]]:
        """All that can be read."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError:
            return []
        return [record for line in lines if (record := _record(line)) is not None]


def reason_of(error: BaseException | None) -> str:
    """Why figures were not written, in a few words."""
    if isinstance(error, RegardError):
        return str(error)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _record(line: bytes) -> dict[str, Any] | None:
    """None: no figures of a step."""
    try:
        record = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and type(record.get("step")) is int else None
