"""`regard serve` in a process of its own, so that what it takes and says can be seen."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.signals import heard

ROOT = Path(__file__).parents[2]


class Process:
    def __init__(self, log: Path, *options: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "regard", "serve", "--port", "0", "--device", "cpu", *options]
        with log.open("w") as said:
            self.process = subprocess.Popen(heard(command), stdout=subprocess.PIPE, stderr=said, text=True, cwd=ROOT)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def memory(self, what: str = "VmRSS") -> int:
        """Bytes now, or with VmHWM at most so far."""
        found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) << 10

    def get(self, path: str, seconds: float = 30.0) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def traces(self) -> list[str]:
        """Lines of its log that no person should read."""
        return [line for line in self.log.read_text().splitlines() if "Traceback" in line or re.match(r"\w+(\.\w+)*Error\b", line)]

    def end(self, seconds: float = 90.0) -> int:
        """Its exit status, once it was told to end."""
        self.process.terminate()
        return self.process.wait(seconds)

    def kill(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


def models(bundles: dict[str, Path]) -> Sequence[str]:
    return [word for name, bundle in bundles.items() for word in ("--model", f"{name}={bundle}")]
