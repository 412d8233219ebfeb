"""The kernels compile for a GPU, and become what they became when the table was made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, to compile its kernels")
LAUNCHES = re.compile(r"^ +.*?\b(_\w+)\[.*\]\(", re.MULTILINE)
ANOTHER_BLOCK = """
import json
from tests.without_gpu import ptx
ptx.one_query.BLOCK = 32
case = "one query, 64, no mask"
ptx.CASES = {case: ptx.CASES[case]}
print(json.dumps(ptx.hashes()))
"""


def compiled(tmp_path: Path, *arguments: str) -> Any:
    """In a process where nothing is interpreted, and nothing was compiled before."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def known() -> Any:
    return json.loads(Path(__file__).with_name("ptx.json").read_text(encoding="utf-8"))


def test_every_kernel_compiles_to_what_is_in_the_table(tmp_path: Path) -> None:
    """Where Triton is of another version than the table's, only that all of them compile. A kernel that no case launches is missed."""
    found, table = compiled(tmp_path, "-m", "tests.without_gpu.ptx"), known()
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "regard").rglob("*.py"))
    assert set(found["launched"]) == {name for source in sources for name in LAUNCHES.findall(source)}
    assert found["kernels"].keys() == table["kernels"].keys()
    if found["triton"] == table["triton"]:
        changed = [name for name, value in table["kernels"].items() if found["kernels"][name] != value]
        assert not changed, f"other instructions for {changed}; if that is meant: python -m tests.without_gpu.ptx --write"


def test_another_block_is_another_kernel(tmp_path: Path) -> None:
    found, table = compiled(tmp_path, "-c", ANOTHER_BLOCK), known()
    if version("triton") == table["triton"]:
        for name, value in found.items():
            assert table["kernels"][name] != value
