"""`--help`: what is wanted first stands first, and its examples are those of the verb."""

from __future__ import annotations

import re
import shlex

import pytest

from regard.cli.groups import GROUPS
from tests.cli.running import run

EXAMPLES = [(verb, examples) for verbs in GROUPS.values() for verb, examples in verbs.items() if examples]


def test_verbs_come_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = run("--help").out
    assert re.findall(r"^╭─ ([A-Z][\w ]*?) ─", shown, re.MULTILINE) == ["Options", *GROUPS]
    verbs = [verb for verbs in GROUPS.values() for verb in verbs]
    assert sorted(re.findall(r"^│ ([a-z]+)  ", shown, re.MULTILINE)) == sorted(verbs)
    assert verbs[:2] == ["translate", "generate"]
    assert shown.index("│ train ") < shown.index("│ pianoroll ")


@pytest.mark.parametrize(("verb", "examples"), EXAMPLES, ids=[verb for verb, _ in EXAMPLES])
def test_examples_are_of_the_verb(verb: str, examples: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    shown = run(verb, "--help").out
    assert "<bool>" not in shown
    for example in examples:
        assert example in shown
        words = shlex.split(example)
        assert words[:2] == ["regard", verb]
        assert all(re.search(rf"{word}\b", shown) for word in words if word.startswith("--"))


def test_switches_take_nothing() -> None:
    assert "<bool>" not in run("--help").out
