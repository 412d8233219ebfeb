"""SECURITY.md: what holds each promise is there, and two of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
PROMISED = TEXT.partition("## What is promised")[2].partition("\n## ")[0]
PROMISES = [part for part in PROMISED.split("\n\n") if part.strip()]

RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS_HOME = {"urllib.request", "http.client", "requests", "httpx", "aiohttp", "ftplib", "smtplib", "huggingface_hub"}
TREES = [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted((ROOT / "regard").rglob("*.py"))]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.strip()[:40])
def test_a_promise_names_what_holds_it(promise: str) -> None:
    named = re.findall(r"\]\((tests/[\w/]+\.py)\)", promise)
    assert named
    for name in named:
        assert (ROOT / name).is_file(), f"{name} is not there"


def test_links_lead_somewhere() -> None:
    for path, _, heading in re.findall(r"\]\(([\w/.]+)(#([\w-]+))?\)", TEXT):
        assert (ROOT / path).is_file(), path
        assert not heading or heading in re.sub(r"[^\w\n-]", "", (ROOT / path).read_text(encoding="utf-8").lower().replace(" ", "-"))
    for page in ("README.md", "docs/serving.md"):
        assert re.search(r"\]\((\.\./)?SECURITY\.md\)", (ROOT / page).read_text(encoding="utf-8"))


def test_limits_are_those_of_the_command_line() -> None:
    serving = (ROOT / "regard/cli/serving.py").read_text(encoding="utf-8")
    for option in set(re.findall(r"`(?:regard serve )?--([\w-]+)`", TEXT)):
        assert option.replace("-", "_") in serving, option


def imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_no_file_runs_code_and_nothing_calls_home() -> None:
    for path, tree in TREES:
        assert not imported(tree) & (RUNS_CODE | CALLS_HOME), path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("eval", "exec", "torch.load", "os.system"), f"{path}, line {node.lineno}"
                risky = {keyword.arg for keyword in node.keywords if ast.unparse(keyword.value) == "True"}
                assert not risky & {"allow_pickle", "trust_remote_code", "shell"}, f"{path}, line {node.lineno}"
