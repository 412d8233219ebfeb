"""A crowd of clients that keep their connections: no request without an answer, none with another's, no error, and /health in time.

CROWD_SECONDS=180 says for how long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CROWD = Path(__file__).parents[2] / "benchmarks" / "serve_crowd.py"


@pytest.mark.slow
def test_every_client_of_a_crowd_has_its_answers(tmp_path: Path) -> None:
    wishes = ["--clients", "240", "--seconds", os.environ.get("CROWD_SECONDS", "180"), "--json", str(tmp_path / "found.json")]
    done = subprocess.run([sys.executable, str(CROWD), *wishes], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found["statuses"]) <= {"200", "429", "503"}
    assert found["asked"] == sum(found["statuses"].values())
    assert found["statuses"]["200"] >= 240
