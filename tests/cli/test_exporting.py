"""`regard export`: what it says, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.errors import installing
from regard.interop.original import SENTENCES
from tests.cli.running import run
from tests.interop.exported import FEW, bundle, let_words_differ

PRE: dict[str, Any] = {"norm_place": "before"}


@pytest.fixture
def translator(tmp_path: Path) -> Path:
    return bundle(tmp_path, "seq2seq", tags=("it", "de"), **PRE)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("\n".join((FEW[0], "", *FEW[1:])) + "\n", encoding="utf-8")
    return path


def test_it_says_how_close_it_is(translator: Path, lines: Path, tmp_path: Path) -> None:
    done = run("export", translator, tmp_path / "out", "--to", "ctranslate2", "--check", lines)
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith(f"{tmp_path / 'out'}: a CTranslate2 Translator in float32; on 6 texts log-probabilities differ by at most ")
    assert done.err.endswith("(1e-03 is allowed), and 6 of 6 answers are the same\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "README.md", "config.json", "model.bin", "regard.json", "shared_vocabulary.json", "tokenizer.json", "translate.py",
    }  # fmt: skip


def test_for_machines(translator: Path, lines: Path, tmp_path: Path) -> None:
    done = run("export", translator, tmp_path / "out", "--to", "huggingface", "--check", lines, "--limit", "2", "--format", "json")
    told = json.loads(done.out)
    assert (done.code, done.err) == (0, "")
    assert (told["model"], told["to"], told["out"]) == (str(translator), "huggingface", str(tmp_path / "out"))
    assert (told["made"], told["texts"], told["same"], told["others"]) == ("PegasusForConditionalGeneration", 2, 2, [])
    assert told["difference"] < told["allowed"] == 1e-5


def test_without_a_file_our_own_sentences_are_tried(translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_words_differ(monkeypatch)
    done = run("export", translator, tmp_path / "out", "--to", "ctranslate2", "--precision", "int8")
    assert done.code == 0
    assert f"a CTranslate2 Translator in int8; on {len(SENTENCES)} texts" in done.err


def test_differences_are_shown(translator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In 8 bits, rounding leads some words elsewhere; here it is made to."""
    from regard.interop import export_ctranslate2

    found = export_ctranslate2._tried_translator

    def other(*arguments: Any) -> Any:
        difference, outputs = found(*arguments)
        return difference, [[250], [251], *outputs[2:]]

    monkeypatch.setattr(export_ctranslate2, "_tried_translator", other)
    let_words_differ(monkeypatch)
    done = run("export", translator, tmp_path / "out", "--to", "ctranslate2", "--precision", "int8")
    assert done.code == 0
    assert f"\n  {SENTENCES[0]}\n    here:  " in done.err
    refused = run("export", translator, tmp_path / "other", "--to", "ctranslate2")  # in float32, two of twenty are too many
    assert (refused.code, refused.out) == (1, "")
    assert "does not answer as the model does, so nothing was written: on 20 texts" in refused.err
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "onnx", "--precision", "int8"], "precision int8 is for ctranslate2; onnx is written in float32, so leave it out"),
        (["--to", "onnx", "--head", "labels"], "a head is chosen for huggingface; onnx has all of them, so leave it out"),
        (["--to", "huggingface", "--head", "labels"], "heads are an encoder's, and this model is none; leave the head out"),
        (["--to", "ctranslate2", "--check", "nowhere.txt"], "nowhere.txt"),
    ],
)
def test_what_can_not_be_is_said(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = run("export", "translator", tmp_path / "out", *arguments)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_in_it_is_left_alone(translator: Path, tmp_path: Path) -> None:
    done = run("export", translator, translator, "--to", "ctranslate2")
    assert done.code == 1
    assert f"{translator} exists already; choose a new or empty folder" in done.err
    assert (translator / "config.json").is_file()


@pytest.mark.parametrize(("to", "package"), [("ctranslate2", "ctranslate2"), ("onnx", "onnxruntime"), ("huggingface", "transformers")])
def test_a_missing_library_is_named(to: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    done = run("export", "translator", tmp_path / "out", "--to", to)
    assert done.code == 1
    assert done.err == f"regard: this export needs {package}; install it with: {installing('interop')}\n"
    assert not (tmp_path / "out").exists()


def test_wrong_usage(tmp_path: Path) -> None:
    assert run("export", "translator", tmp_path / "out").code == 2
    done = run("export", "translator", tmp_path / "out", "--to", "tensorflow")
    assert done.code == 2
    assert "huggingface" in done.err
    assert run("export", tmp_path / "nowhere", tmp_path / "out", "--to", "onnx").code == 1
