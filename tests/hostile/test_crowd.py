"""Honest clients beside a crowd of others that idle, crawl and don't read: they hardly notice.

HOSTILE_SECONDS=120 says for how long, HOSTILE_CLIENTS=1000 how many others.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.hostile.process import ROOT, Process

SECONDS, OTHERS = float(os.environ.get("HOSTILE_SECONDS", "120")), int(os.environ.get("HOSTILE_CLIENTS", "1000"))
HONEST = 16
SENTENCES = ["Good morning.", "Where is the station?", "I love you very much.", "The train is late.", "We are going to the beach."]
TIMES_AS_LONG = 3.0
MORE_MEMORY = 300 << 20
END_SECONDS = 10.0

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path / "log", "--model", "translator")
    yield started
    started.kill()


def honest(port: int, seconds: float) -> tuple[dict[str, list[float]], list[object]]:
    """How long each sentence took, of clients that keep their connection and ask one after the other; and what went wrong."""
    times: dict[str, list[float]] = defaultdict(list)
    wrong: list[object] = []
    until = time.monotonic() + seconds

    def ask(number: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < until:
            number += 1
            text, begun = SENTENCES[number % len(SENTENCES)], time.monotonic()
            try:
                connection.request("POST", "/api/translate", json.dumps({"texts": text, "to": "it"}), {"content-type": "application/json"})
                answer = connection.getresponse()
                said = answer.read()
            except OSError as error:
                wrong.append(error)
                return
            times[text].append(time.monotonic() - begun)
            if answer.status != 200:
                wrong.append((answer.status, said))
        connection.close()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(HONEST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, wrong


@pytest.mark.slow
def test_honest_clients_hardly_notice_a_crowd(process: Process, capsys: pytest.CaptureFixture[str]) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit[1] != resource.RLIM_INFINITY and limit[1] < OTHERS + 100:
        pytest.skip(f"{OTHERS} connections need as many descriptors: ulimit -n {OTHERS + 100}")
    honest(process.port, min(5.0, SECONDS))  # what is made at first is made
    before, wrong = honest(process.port, min(30.0, SECONDS))
    assert not wrong
    memory = process.memory()
    command = [sys.executable, "-m", "tests.hostile.crowd", str(process.port), str(OTHERS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as crowd:
        try:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "all have come\n"
            beside, wrong = honest(process.port, SECONDS)
            more = process.memory() - memory
            begun = time.monotonic()
            code = process.end()
            ended = time.monotonic() - begun
        finally:
            crowd.kill()
    longest = {text: max(beside[text]) / max(before[text]) for text in SENTENCES}
    with capsys.disabled():
        print(
            f"\n{sum(map(len, before.values()))} requests alone, {sum(map(len, beside.values()))} beside {OTHERS} others for {SECONDS:g} s;"
        )
        print(f"times as long {max(longest.values()):.2f}, {more >> 20} MB more, ended after {ended:.1f} s", end=" ")
    assert not wrong
    assert max(longest.values()) <= TIMES_AS_LONG, longest
    assert more <= MORE_MEMORY
    assert code == 0
    assert ended <= END_SECONDS
    assert process.traces() == []
