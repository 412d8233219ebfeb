"""The verbs that show something about a machine or a bundle."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import torch

from regard import __version__
from regard.decoding.products import Int8Product, available, sums_in_32_bits
from regard.door.check import Law
from regard.errors import installing
from tests.cli.running import run

Bundles = Callable[[str], Path]


def test_doctor(tmp_path: Path) -> None:
    told = json.loads(run("doctor", "--format", "json").out)
    assert told["regard"] == __version__
    assert told["python"] == platform.python_version()
    assert told["packages"]["torch"] == metadata.version("torch")
    assert told["cache"] == {"folder": str(tmp_path / "cache"), "writable": True}
    assert told["threads"] == torch.get_num_threads()
    assert told["devices"][-1] == "cpu"
    assert "transformers" in told["extras"]["interop"]
    assert told["int8"] == {"kernels": available(Int8Product), "sums_in_32_bits": sums_in_32_bits()}
    assert told["problems"] == []
    shown = run("doctor")
    assert (shown.code, shown.err) == (0, "")
    for part in (__version__, metadata.version("torch"), "int8", "extra interop", str(tmp_path / "cache")):
        assert part in shown.out


def test_doctor_finds_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_transformers(name: str) -> str:
        if name == "transformers":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_transformers)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    shown = run("doctor")
    assert shown.code == 1
    assert f"transformers missing ({installing('interop')})" in shown.out
    assert f"the cache {tmp_path / 'file'} can't be written to; set REGARD_CACHE to a folder that can" in shown.out
    assert json.loads(run("doctor", "--format", "json").out)["extras"]["interop"]["transformers"] is None


def test_check(bundle: Bundles) -> None:
    shown = run("check", bundle("translator"))
    assert (shown.code, shown.err) == (0, "")
    for law in ("cached = uncached", "batch-invariant", "beam 1 = greedy", "score = rescoring", "saved = loaded", "tokenizer"):
        assert law in shown.out
    assert "broken" not in shown.out
    told = json.loads(run("check", bundle("critic").parent, "--format", "json").out)
    assert told["holds"]
    assert all(law["difference"] <= law["allowed"] for law in told["laws"])


def test_check_says_what_is_broken(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.door.check._saved_is_loaded", lambda folder: Law("saved = loaded: bit for bit", float("inf"), 0.0))
    shown = run("check", bundle("critic"))
    assert shown.code == 1
    assert "broken" in shown.out
    assert f"regard: {bundle('critic')} breaks saved = loaded; if you did not change it, please report this" in shown.err
    told = run("check", bundle("critic"), "--format", "json")
    assert told.code == 1
    assert json.loads(told.out)["holds"] is False


def test_check_of_what_is_no_model(tmp_path: Path) -> None:
    done = run("check", tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "is no bundle: it has no config.json" in done.err
