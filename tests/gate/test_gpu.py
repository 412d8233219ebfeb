"""What `make gpu` does about things that fail, and things that hang: seen without a GPU, with made-up work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from tests.gate import gpu
from tests.gate.recipes import ROOT, GateError, child


def test_a_child_that_hangs_is_ended_and_what_it_said_is_told(tmp_path: Path) -> None:
    hangs = "import time; print('so far so good', flush=True); time.sleep(600)"
    with pytest.raises(GateError, match=r"did not end in 10 s(.|\n)*so far so good"):
        child(["-c", hangs], tmp_path, "cpu", seconds=10.0)
    with pytest.raises(GateError, match="no time left"):
        child(["-c", hangs], tmp_path, "cpu", until=time.monotonic())


def run(monkeypatch: pytest.MonkeyPatch, out: Path, works: bool) -> None:
    """The gate, of one recipe that takes hold or does not, one command, one file of tests and one benchmark."""

    def recipe() -> str:
        assert works, "it ran away"
        return "loss 3.00 → 2.00"

    def begun(what: str, work: object) -> object:
        return lambda gate: [gate.begin(what, work)]

    monkeypatch.setattr(gpu, "begin_recipes", begun("recipe multi30k", recipe))
    monkeypatch.setattr(gpu, "begin_commands", begun("translate", lambda: "Ciao."))
    monkeypatch.setattr(gpu, "begin_tests", lambda gate: [gate.begin(name, lambda: "2 passed, 1 skipped") for name in ("a", "b")])
    monkeypatch.setattr(gpu, "BENCHMARKS", {"training": lambda gate: {"trained tokens/s": 12345.6}})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(out)])
    gpu.main()


def test_all_that_passed_is_stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("triton")
    run(monkeypatch, tmp_path / "gpu.json", works=True)
    stamp = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert (stamp["gpu"], stamp["tests"], stamp["recipes"], stamp["commands"]) == ("a GPU", "4 passed, 2 skipped", 1, 1)
    assert stamp["speeds"] == {"trained tokens/s": 12346}
    assert "training: 12,346 (trained tokens/s)" in capsys.readouterr().out


def test_where_something_failed_nothing_is_measured_or_stamped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="1 of 4 failed: recipe multi30k"):
        run(monkeypatch, tmp_path / "gpu.json", works=False)
    said = capsys.readouterr().out
    assert "recipe multi30k: FAILED it ran away" in said
    assert "training" not in said
    assert not (tmp_path / "gpu.json").exists()


def test_every_file_with_tests_of_a_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []

    class Gate:
        def begin(self, what: str, work: object) -> Future[gpu.Row]:
            found.append(what)
            return Future()

    gpu.begin_tests(Gate())  # type: ignore[arg-type]
    assert {"tests/decoding/test_gpu.py 1/6", "tests/decoding/test_fused.py 2/2", "tests/nn/test_varlen.py 1/1"} <= set(found)
    assert {name for name in gpu.SHARES if (ROOT / "tests" / name).is_file()} == set(gpu.SHARES)
    for path in (ROOT / "tests").rglob("conftest.py"):
        assert "mark.gpu" not in path.read_text(encoding="utf-8")  # it would mark files that don't say so


def test_shares_are_all_of_a_file_and_nothing_twice(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.parametrize('n', range(7))\ndef test_it(n): pass\n", encoding="utf-8")
    found: list[str] = []
    for share in ("1/3", "2/3", "3/3"):
        asked = ["-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-p", "tests.gate.share", "--share", share]
        done = child([*asked, "--rootdir", str(tmp_path), str(tmp_path)], ROOT, "cpu")
        found += [line for line in done.stdout.splitlines() if "::" in line]
    assert sorted(found) == [f"test_it.py::test_it[{number}]" for number in range(7)]


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum, and this machine has none")
def test_code_is_what_the_shell_says() -> None:
    command = "find regard -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == gpu.code()
