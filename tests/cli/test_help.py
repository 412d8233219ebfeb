"""`--help`: what is wanted first stands first, and its examples are those of the verb."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from regard.cli import app
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
    for example in examples:
        assert example in shown
        words = shlex.split(example)
        assert words[:2] == ["regard", verb]
        assert all(re.search(rf"{word}\b", shown) for word in words if word.startswith("--"))


def names(command: typer.core.TyperGroup | typer.core.TyperCommand) -> list[tuple[str, ...]]:
    """All commands, those in groups too: what is typed for each after `regard`."""
    inner = command.commands.items() if isinstance(command, typer.core.TyperGroup) else ()
    return [(), *((name, *rest) for name, other in inner for rest in names(other))]  # type: ignore[arg-type]


ALL = names(typer.main.get_command(app))  # type: ignore[arg-type]


def test_all_commands_are_walked() -> None:
    assert {(), ("data",), ("data", "check"), ("translate",)} <= set(ALL)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_switches_take_nothing(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    shown = run(*words, "--help").out
    assert "--help" in shown
    assert "<bool>" not in shown
