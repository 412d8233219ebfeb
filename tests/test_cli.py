"""The command line as a person uses it: real processes, exit codes, standard output and error kept apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from regard import __version__
from regard.bundle import load_bundle, save_bundle
from tests.families import small
from tests.interop.test_huggingface import saved


def regard(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "regard", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_version() -> None:
    assert regard("--version").stdout == f"regard {__version__}\n"


@pytest.mark.parametrize("name", ["gpt2", "transformer-base", "rnn-attention"])
def test_info_of_a_preset(name: str) -> None:
    shown = regard("info", name)
    assert shown.returncode == 0
    counted = json.loads(regard("info", name, "--format", "json").stdout)
    assert f"{counted['parameters']:,}" in shown.stdout
    assert counted["parameters"] == sum(row["parameters"] for row in counted["rows"])
    assert counted["memory"]["float32"] == 4 * counted["parameters"]
    assert "…" not in shown.stdout  # nothing is cut off at 80 columns


def test_info_of_a_bundle(tmp_path: Path) -> None:
    model = small("t5-small")
    save_bundle(model, tmp_path / "b")
    assert json.loads(regard("info", tmp_path / "b", "--format", "json").stdout)["parameters"] == sum(p.numel() for p in model.parameters())
    save_bundle(model, tmp_path / "run" / "bundle")
    assert regard("info", tmp_path / "run", "--format", "json").stdout.count("parameters")


def test_import(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "theirs")
    done = regard("import", tmp_path / "theirs", tmp_path / "ours")
    assert (done.returncode, done.stdout) == (0, "")
    assert "decoder-only: 2 layers" in done.stderr
    assert load_bundle(tmp_path / "ours").config.vocabulary == 61


def test_columns_in_another_order_are_named_and_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "".join(f"row {number}\t{'ab'[number % 2]}\n" for number in range(20)))
    asked: list[str | Path] = ["--task", "classify", "--train", tmp_path / "a.tsv", "--set", "training.steps=2"]
    as_they_stand = regard("train", *asked, "--out", tmp_path / "no")
    assert as_they_stand.returncode == 1
    assert "say --columns 1,0, or columns = [1, 0] in a recipe" in as_they_stand.stderr
    assert regard("train", *asked, "--columns", "1,0", "--out", tmp_path / "run").returncode == 0
    assert json.loads((tmp_path / "run" / "bundle" / "config.json").read_text())["labels"] == ["a", "b"]
    checked = regard("data", "check", tmp_path / "a.tsv", "--task", "classify", "--columns", "1,0", "--format", "json")
    assert json.loads(checked.stdout)["labels"] == {"a": 10, "b": 10}


def test_data_check(tmp_path: Path) -> None:
    (tmp_path / "good.tsv").write_text("a cat\tun gatto\na dog\tun cane\n")
    (tmp_path / "bad.tsv").write_bytes(b"a cat\tun gatto\nno tab here\nbroken \xff\tx\n\tempty side\na cat\tun gatto\n")
    good = regard("data", "check", tmp_path / "good.tsv")
    assert good.returncode == 0
    bad = regard("data", "check", tmp_path / "bad.tsv", "--against", tmp_path / "good.tsv", "--format", "json")
    assert bad.returncode == 1
    assert "Traceback" not in bad.stderr
    found = json.dumps(json.loads(bad.stdout))
    assert "bad.tsv:2" in found
    assert "bad.tsv:3" in found


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["info", "gtp2"], 1, "regard: 'gtp2' is neither a preset nor a folder; did you mean 'gpt2'?"),
        (["info", "/"], 1, "is no bundle"),
        (["import", "nowhere", "out"], 1, "nowhere is no folder"),
        (["train", "nowhere.toml"], 1, "can't read the recipe nowhere.toml: No such file or directory"),
        (["train", "--task", "lm", "--train", "nowhere.txt"], 1, "nowhere.txt"),
        (["train", "r.toml", "--task", "lm"], 2, "a recipe says what to learn from"),
        (["train"], 2, "give a recipe, or --task and --train"),
        (["train", "--resume", "--out", "nowhere"], 1, "nowhere holds no training to resume"),
        (["info"], 2, "Missing argument"),
        (["translete"], 2, "No such command"),
        (["info", "gpt2", "--format", "xml"], 2, "'xml' is not one of"),
    ],
)
def test_what_goes_wrong_is_said(arguments: list[str], code: int, says: str) -> None:
    done = regard(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_demo_prints_in_any_encoding() -> None:
    for encoding in ("utf-8", "latin-1", "ascii"):
        environment = os.environ | {"PYTHONIOENCODING": encoding, "COLUMNS": "80"}
        done = subprocess.run([sys.executable, "-m", "regard", "demo"], capture_output=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        assert b"LOVELY" in done.stdout
