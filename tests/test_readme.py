"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_python_runs_as_written(tmp_path: Path) -> None:
    code = "\n".join(blocks("python"))
    assert "load_bundle" in code
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-model" / "model.safetensors").is_file()


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
    assert verbs == {"train", "data", "info", "import", "demo"}
    options = {word for words in lines for word in words if word.startswith("--")}
    helps = "".join(
        subprocess.run([sys.executable, "-m", "regard", *verb.split(), "--help"], check=True, capture_output=True, text=True).stdout
        for verb in (*verbs, "data check")
    )
    assert all(option in helps for option in options)
