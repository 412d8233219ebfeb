"""docs/notes.md tells the truth: its code can be imported, its tests exist, and no test of the notes is left out."""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = (ROOT / "docs" / "notes.md").read_text(encoding="utf-8")


def rows() -> list[list[str]]:
    """The cells of every table row, without headings and rules."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "idea" and not set(row[0]) <= {"-", " "}]


def spans(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def resolve(path: str) -> Any:
    """What a dotted path names: the longest part that is a module, then its attributes."""
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for name in parts[end:]:
            found = getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


@cache
def names_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def test_every_row_has_an_idea_code_and_a_test() -> None:
    assert len(rows()) > 100
    for row in rows():
        assert len(row) == 3, row
        idea, code, test = row
        assert idea
        if code.startswith("planned"):
            assert test == "planned", row
            continue
        assert spans(code), row
        assert all(span.startswith("regard.") for span in spans(code)), row
        assert spans(test), row
        assert all(re.fullmatch(r"tests/[\w/]+\.py::test_\w+", span) for span in spans(test)), row


@pytest.mark.parametrize("path", sorted({span for span in spans(PAGE) if span.startswith("regard.")}))
def test_code_can_be_imported(path: str) -> None:
    assert resolve(path) is not None


@pytest.mark.parametrize("path", sorted({span for span in spans(PAGE) if span.startswith("tests/")}))
def test_named_tests_exist(path: str) -> None:
    file, name = path.split("::")
    assert name in names_in(ROOT / file)


def test_planned_code_is_still_to_come() -> None:
    for _, code, _ in rows():
        if code.startswith("planned"):
            assert all(not (ROOT / span).exists() for span in spans(code)), f"{code} exists now: give the row its code and test"


def test_no_test_of_the_notes_is_left_out() -> None:
    told = {span for row in rows() for span in spans(row[2])}
    for file in sorted(HERE.glob("test_*.py")):
        if file != Path(__file__):
            missing = {f"tests/notes/{file.name}::{name}" for name in names_in(file)} - told
            assert not missing
