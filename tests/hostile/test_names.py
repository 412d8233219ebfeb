"""Names that are not UTF-8, as old disks and archives have them: what can be done there is done, the rest is refused before any work."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from regard.bundle import load_bundle, save_bundle
from regard.config import parse_model
from regard.errors import RegardError
from regard.interop.export import export
from regard.interop.original import Original
from regard.models import build
from regard.recipe import TokenizerSettings
from regard.text.tokenizer import Tokenizer
from tests.cli.running import run

ODD = os.fsdecode(b"caf\xe9")
SMALL = ("training.steps=2", "training.batch_tokens=64", "tokenizer.kind=char", "data.max_length=16", "model.width=16", "model.heads=2",
         "model.layers=1", "model.feedforward=16")  # fmt: skip
TRAIN = ("train", "--task", "lm", *(word for each in SMALL for word in ("--set", each)))


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of such a name in the current one, with a text in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    try:
        Path(ODD).mkdir()
    except OSError:
        pytest.skip("this disk takes no names that are not UTF-8")
    for folder in (Path(), Path(ODD)):
        (folder / "lines.txt").write_text("a line of text\n" * 60)
    return Path(ODD)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.train(["a b c d e f g"] * 10, TokenizerSettings(kind="char", size=40))
    tokenizer.save(tmp_path / "tokenizer.json")
    shape = {"kind": "lm", "vocabulary": len(tokenizer), "width": 16, "heads": 2, "layers": 1, "feedforward": 16, "context": 32}
    return save_bundle(build(parse_model(shape)), tmp_path / "bundle", tokenizer=tmp_path / "tokenizer.json")


def test_a_bundle_is_the_same_there(odd: Path, bundle: Path) -> None:
    shutil.copytree(bundle, odd / "bundle")
    there, here = load_bundle(odd / "bundle"), load_bundle(bundle)
    for name, tensor in here.model.state_dict().items():
        assert torch.equal(there.model.state_dict()[name], tensor), name
    there.save(odd / "again")
    assert (odd / "again" / "model.safetensors").read_bytes() == (bundle / "model.safetensors").read_bytes()
    answers = [run("generate", "-m", folder, "a b", "--max-length", "4").out for folder in (odd / "bundle", odd / "again", bundle)]
    assert answers[0] == answers[1] == answers[2] != ""
    weights = odd / "again" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(RegardError, match="is damaged or cut short"):
        load_bundle(odd / "again")


def test_a_training_writes_there(odd: Path) -> None:
    done = run(*TRAIN, "--train", "lines.txt", "--out", odd)  # whose name the card would have
    assert done.code == 0, done.err
    assert load_bundle(odd / "bundle").config.kind == "lm"


def test_a_training_reads_nothing_there(odd: Path) -> None:
    done = run(*TRAIN, "--train", odd / "lines.txt", "--out", "run")
    assert done.code == 1
    assert done.err.endswith("which is not UTF-8 and could not be read back; rename it\n")
    assert not Path("run").exists()


@pytest.mark.parametrize("to", ["ctranslate2", "onnx", "huggingface"])
def test_nothing_is_exported_to_there(odd: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(Original, "__init__", never)
    before = sorted(Path(ODD).iterdir())
    with pytest.raises(RegardError, match="its name is not UTF-8; rename it or choose another"):
        export(bundle, to, odd / "out")
    assert sorted(Path(ODD).iterdir()) == before


def test_where_names_are_read_as_ascii(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python does in the C locale, if it is told not to do better; then the name itself is not at fault."""
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    done = run(*TRAIN, "--train", odd / "lines.txt", "--out", "run")
    assert done.code == 1
    assert done.err.endswith("names are read as ascii here, so set PYTHONUTF8=1, or LC_ALL=C.UTF-8\n")
