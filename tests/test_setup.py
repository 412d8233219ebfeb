"""The two commands work on any machine: what they install, and when. `make resolve` asks the public index; here nothing is asked of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from regard.errors import installing
from tests.resolve import CONSTRAINTS, EXTRAS, PROJECT, PYTHONS, ROOT, requirements
from tests.skips import how, summary
from tests.without_gpu import needs_kernels

PINS = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_pins_are_versions_that_a_public_index_has() -> None:
    """It has none with a local part, such as 2.13.0+cpu."""
    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) == len(PINS)  # each one exactly
    assert {name for name, version in PINS.items() if version.local or version.is_prerelease} == set()


def test_what_is_asked_for_is_pinned_within_its_range() -> None:
    for line in requirements(*EXTRAS):
        wanted = Requirement(line)
        assert canonicalize_name(wanted.name) in PINS, f"{wanted.name} has no line in constraints.txt"
        assert PINS[canonicalize_name(wanted.name)] in wanted.specifier, line


def test_what_pins_of_each_other_want_fits() -> None:
    """Among those that are installed, as far as they are."""
    from importlib import metadata

    for name in PINS:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        if Version(metadata.version(name)).public != PINS[name].public:
            continue
        for needed in map(Requirement, needs):
            applies = needed.marker is None or needed.marker.evaluate({"extra": ""})
            pin = PINS.get(canonicalize_name(needed.name))
            assert not applies or pin is None or needed.specifier.contains(pin, prereleases=True), f"{name} wants {needed}, not {pin}"


def test_pythons_are_those_promised() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def would(clone: Path, *targets: str, **environment: str) -> str:
    """The commands that make would run."""
    around = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name not in ("MFLAGS", "PYTHON")}
    asked = ["make", "--dry-run", *targets]
    return subprocess.run(asked, cwd=clone, env=around | environment, capture_output=True, text=True, check=True).stdout


def made(clone: Path, *stamps: str) -> None:
    (clone / ".venv").mkdir(exist_ok=True)
    later = max(path.stat().st_mtime for path in clone.iterdir()) + 1
    for stamp in stamps:
        (clone / ".venv" / stamp).touch()
        os.utime(clone / ".venv" / stamp, (later, later))


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make, and this machine has none")
def test_each_command_installs_what_it_needs_once(clone: Path) -> None:
    demo, tests, both = would(clone, "demo"), would(clone, "test"), would(clone, "demo", "test")
    assert "--constraint constraints.txt --editable .\n" in demo
    assert "dev" not in demo
    assert (demo.count("pip install"), tests.count("pip install"), both.count("pip install")) == (1, 1, 2)
    assert '--editable ".[dev]"\n' in tests
    made(clone, ".core")
    assert "pip install" not in would(clone, "demo")
    assert '--editable ".[dev]"' in would(clone, "test")
    made(clone, ".core", ".ready")
    assert "pip install" not in would(clone, "demo", "test")
    for name in ("constraints.txt", "pyproject.toml"):
        made(clone, ".core", ".ready")
        later = (clone / ".venv" / ".ready").stat().st_mtime + 1
        os.utime(clone / name, (later, later))
        assert "pip install" in would(clone, "demo")
        assert "pip install" in would(clone, "test")


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make, and this machine has none")
def test_another_python_takes_the_place_of_the_first(clone: Path) -> None:
    made(clone, ".core", ".ready")
    for folder, version in (("first", "3.11.9"), ("second", "3.13.1")):
        python = clone / folder / "python"
        python.parent.mkdir()
        python.write_text(f"#!/bin/sh\necho Python {version}\n")
        python.chmod(0o755)
    (clone / ".venv" / "bin").mkdir()
    shutil.copy(clone / "first" / "python", clone / ".venv" / "bin")
    assert "pip install" not in would(clone, "test", PYTHON="first/python")
    assert "second/python -m venv --clear .venv" in would(clone, "test", PYTHON="second/python")
    assert "pip install" not in would(clone, "test", PYTHON="nowhere/python")


def test_nobody_is_told_to_install_by_a_name_that_no_index_has() -> None:
    """Whoever claimed it could have anything installed. `errors.installing` says what to type; in docs it is of the code's folder."""
    shown = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md"), ROOT / "pyproject.toml"]
    for path in [*shown, *(path for room in ("regard", "benchmarks", "recipes", "docs") for path in (ROOT / room).rglob("*.py"))]:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"pip install[^#]*[\s'\"]regard\b", line), f"{path}: {line}"
    assert installing("serve") == f"pip install -e {shlex.quote(f'{ROOT}[serve]')}"


def test_where_the_code_is_not_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.errors.__file__", str(tmp_path / "regard" / "errors.py"))
    assert installing("view") == "pip install '.[view]' in the folder of its code"


def test_the_end_says_what_was_skipped_and_how_to_run_it() -> None:
    skipped = [("tests/nn/test_a.py", "Skipped: needs a CUDA device")] * 3 + [("/x/tests/test_b.py", "Skipped: there is one")]
    assert list(summary(skipped)) == [
        "    3 needs a CUDA device (nn)",
        f"      to run: {how('needs a CUDA device')}",
        "    1 there is one (tests)",
    ]
    assert "CUDA_VISIBLE_DEVICES= " in str(how(needs_kernels.kwargs["reason"]))
    assert how("could not import 'schemathesis': No module named 'schemathesis'") == "make setup"
