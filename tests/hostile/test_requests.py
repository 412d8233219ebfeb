"""Requests by chance, from the description and from good ones that were spoilt: no error of ours, none without end, and it lives on.

HOSTILE=10000 says how many, HOSTILE_SEED=1 which.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.hostile.process import Process, models
from tests.hostile.requests import GOOD, SECONDS, answered, spoilt
from tests.serve.live import Live, until
from tests.serve.test_description import narrowed

MANY, SEED = int(os.environ.get("HOSTILE", "10000")), int(os.environ.get("HOSTILE_SEED", "1"))
AT_ONCE = 4
MOST_MEMORY = 3 << 30
LIMITS = (429, 503)  # what a server says that has enough to do


def complaint(number: int, raw: bytes, status: int, seconds: float) -> str | None:
    if seconds > SECONDS or (status >= 500 and status not in LIMITS):
        return f"request {number} of seed {SEED}: {status} after {seconds:.1f} s, {raw[:300]!r}"
    return None


def test_good_requests_are_answered(live: Live) -> None:
    """Otherwise nothing would be learned from spoilt ones."""
    statuses = {f"{good.method} {good.path} {index}": answered(live.port, good.raw)[0] for index, good in enumerate(GOOD)}
    elsewhere = {name for name in statuses if name.startswith(("GET /api/runs/", "POST /detect"))}  # no run, and nothing tells languages
    assert {name: status for name, status in statuses.items() if status != 200 and name not in elsewhere} == {}


def test_no_spoilt_request_makes_it_fail(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    statuses: Counter[int] = Counter()
    for number in range(300):
        raw = spoilt(SEED, number)
        status, seconds = answered(live.port, raw)
        statuses[status] += 1
        assert complaint(number, raw, status, seconds) is None
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert live.get("/health").status == 200
    assert statuses[200] > 20  # some were good enough
    assert statuses[400] > 60


@pytest.fixture
def process(bundle: Callable[[str], Path], tmp_path: Path) -> Iterator[Process]:
    run = tmp_path / "runs" / "reverse"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"step": 50, "time": 1.5, "kind": "train", "loss": 3.0}\n')
    bundles = {name: bundle(name) for name in ("translator", "writer", "critic", "guesser")}
    started = Process(tmp_path / "log", "--runs", str(run.parent), *models(bundles))
    yield started
    started.kill()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_nothing_that_can_be_sent_makes_it_fail(process: Process, capsys: pytest.CaptureFixture[str]) -> None:
    statuses: Counter[int] = Counter()
    complaints: list[str] = []

    def ask(number: int) -> None:
        raw = spoilt(SEED, number)
        status, seconds = answered(process.port, raw)
        statuses[status] += 1
        complaints.extend(filter(None, [complaint(number, raw, status, seconds)]))

    described = Counter[int]()
    by_description(process, MANY // 2, described, complaints)  # fewer, where there is little that can be asked
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(ask, range(MANY - described.total())))
    until(lambda: process.get("/health")[0] == 200, SECONDS)
    with capsys.disabled():
        print(f"\nseed {SEED}: {statuses.total()} spoilt {dict(sorted(statuses.items()))}, {described.total()} by the description", end=" ")
        print(f"{dict(sorted(described.items()))}, {process.memory('VmHWM') >> 20} MB at most")
    assert complaints == []
    assert process.traces() == []
    assert process.memory("VmHWM") < MOST_MEMORY
    assert statuses.total() + described.total() >= MANY
    assert process.end() == 0


def by_description(process: Process, count: int, statuses: Counter[int], complaints: list[str]) -> None:
    """As many as said, as schemathesis thinks of them: half of them as described, half not."""
    schemathesis = pytest.importorskip("schemathesis")
    described = schemathesis.openapi.from_dict(narrowed(json.loads(process.get("/openapi.json")[1])))
    operations = [found.ok() for found in described.get_all_operations()]
    each = -(-count // (2 * len(operations)))
    modes = list(schemathesis.GenerationMode)

    def ask(case: Any) -> None:
        begun = case.call(base_url=f"http://127.0.0.1:{process.port}", timeout=SECONDS)
        statuses[begun.status_code] += 1
        told = json.dumps(str(case.body))[:300].encode()
        complaints.extend(filter(None, [complaint(statuses.total(), told, begun.status_code, begun.elapsed)]))

    for operation in operations:
        for mode in modes:
            wishes = partial(settings, max_examples=each, deadline=None, database=None, phases=[Phase.generate])
            cases: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)
            with suppress(Unsatisfiable):  # what takes nothing can't be given something wrong
                seed(SEED)(wishes(suppress_health_check=list(HealthCheck))(given(cases)(ask)))()
