"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.bundle import save_bundle
from regard.models import build
from regard.presets import preset
from regard.recipe import TokenizerSettings
from regard.text.tokenizer import Tokenizer

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [content for name, content in found if name == language]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the README's commands are run: with bundles and files of the names that it uses. The bundles know nothing, but they answer."""
    root = tmp_path_factory.mktemp("readme")
    (root / "lines.txt").write_text("1 2 3\n\n4 5 6 7\n")
    (root / "test.tsv").write_text("1 2 3\t3 2 1\n4 5\t5 4\n")
    texts = ["1 2 3 4 5 6 7 8 9 0", "ROMEO: what a lovely film", "an awful film"]
    tokenizer = Tokenizer.train(texts, TokenizerSettings(kind="char", size=60))
    tokenizer.save(root / "tokenizer.json")
    shape = {"vocabulary": len(tokenizer), "width": 16, "heads": 2, "layers": 1, "feedforward": 32, "context": 64}
    words = {"masked_words": True}
    wanted: dict[str, tuple[str, dict[str, Any]]] = {
        "reverse": ("transformer-tiny", {}),
        "other": ("transformer-tiny", {"width": 8}),
        "shakespeare": ("gpt-small", {}),
        "reviews": ("bert-small", {"labels": ["bad", "good"]}),
        "words": ("bert-small", words),
    }
    for name, (preset_name, more) in wanted.items():
        torch.manual_seed(0)
        save_bundle(build(preset(preset_name, **(shape | more))), root / "runs" / name / "bundle", tokenizer=root / "tokenizer.json")
    return root


def test_the_python_runs_as_written(folder: Path) -> None:
    code = "\n".join(blocks("python"))
    assert "load_bundle" in code
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "my-model" / "model.safetensors").is_file()


def test_the_commands_run_as_written(folder: Path) -> None:
    commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert {command.split("regard ")[1].split()[0] for command in commands} == {
        "translate", "generate", "classify", "fill", "embed", "score", "evaluate",
    }  # fmt: skip
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert "Traceback" not in done.stderr
    assert len((folder / "out.txt").read_text().split("\n")) == 4
    assert len((folder / "out.jsonl").read_text().splitlines()) == 3
    assert np.load(folder / "vectors.npy").shape == (2, 16)


def test_the_first_commands_answer_what_is_shown(folder: Path) -> None:
    """With nothing but what comes with regard."""
    shown = re.search(r"^```sh\nregard (.*)\nregard (.*)\n```\n\n\*(.*?)\* And: \*(.*?)\*", README, re.MULTILINE)
    assert shown is not None
    for command, answer in zip(shown.groups()[:2], shown.groups()[2:], strict=True):
        asked = [sys.executable, "-m", "regard", *shlex.split(command)]
        printed = subprocess.run(
            asked, cwd=folder, capture_output=True, text=True, check=True, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        )
        assert printed.stdout == answer + "\n"


def test_the_demo_prints_what_is_shown() -> None:
    table = next(block for block in blocks("") if "LOVELY" in block)
    environment = os.environ | {"COLUMNS": "100"}
    printed = subprocess.run([sys.executable, "-m", "regard", "demo"], capture_output=True, text=True, check=True, env=environment).stdout
    lines = [line.rstrip() for line in printed.splitlines()]
    for line in table.splitlines():
        assert line in lines


def test_the_error_is_the_one_shown() -> None:
    command, message = re.search(r"\$ regard (.*)\n(regard: .*)\n", README).groups()  # type: ignore[union-attr]
    done = subprocess.run([sys.executable, "-m", "regard", *command.split()], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, message + "\n")


def test_every_link_leads_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (Path(__file__).parent.parent / target).exists(), target


def test_every_verb_shown_exists() -> None:
    lines = [line.split() for block in blocks("") for line in block.splitlines() if line.startswith("regard ")]
    verbs = {words[1] for words in lines}
    assert {verb.rstrip(",") for verb in verbs} == {
        "translate", "models", "train", "data", "info", "import", "export", "generate", "serve", "view", "check", "doctor", "demo",
    }  # fmt: skip
    options = {word for words in lines for word in words if word.startswith("--")}
    helps = "".join(
        subprocess.run(
            [sys.executable, "-m", "regard", *verb.rstrip(",").split(), "--help"], check=True, capture_output=True, text=True
        ).stdout
        for verb in (*verbs, "data check")
    )
    assert all(option in helps for option in options)
