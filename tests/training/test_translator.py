"""Whoever trains from nothing what the translator knows is told before the first step; where that is not sure, nothing is said."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.training import translator
from regard.training.run import run_recipe
from regard.training.translator import FIRST_LOOK, advice
from tests.cli.running import run
from tests.training.test_ending import GERMAN, made
from tests.training.test_run import _own_cache  # noqa: F401

SAYS = "the translator that comes with regard knows these languages, and to go on from it is often better: stop this, "
AFRIKAANS = [
    "Goeie môre.", "Ek is baie lief vir jou.", "Waar is die stasie?", "My broer woon in Berlyn.", "Sy lees 'n boek.",
    "Ons het nie tyd nie.", "Die kat slaap op die bed.", "Praat jy Engels?", "Dit reën vandag.", "Ek wil graag 'n koppie koffie hê.",
]  # fmt: skip


def advised(tmp_path: Path, rows: dict[str, str], **training: Any) -> str | None:
    return advice(made(tmp_path, rows, **training), tmp_path / "a run")


def test_languages_that_it_knows(tmp_path: Path) -> None:
    assert advised(tmp_path, GERMAN) == f"{SAYS}and add to the command --from translator --to de --out '{tmp_path}/a run-from-translator'"


def test_where_it_is_not_sure_it_says_nothing(tmp_path: Path) -> None:
    """A neighbour of what it knows, what is nobody's translation, the other direction, and copies."""
    sources, targets = list(GERMAN), list(GERMAN.values())
    for others in (AFRIKAANS, random.Random(1).sample(targets, len(targets)), [source.replace("the", "that") for source in sources]):
        assert advised(tmp_path, dict(zip(sources, others, strict=True))) is None
    assert advised(tmp_path, dict(zip(targets, sources, strict=True))) is None


def test_no_model_is_loaded_for_what_is_no_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits, few rows, a training that is over as soon as the look is, and one that begins with a model already."""
    looked: list[int] = []
    monkeypatch.setattr(translator, "_first_look", lambda pairs: looked.append(len(pairs)))
    digits = {" ".join(f"{number:05}"): " ".join(f"{number:05}"[::-1]) for number in range(0, 99_999, 999)}
    advised(tmp_path, digits)
    advised(tmp_path, dict(list(GERMAN.items())[: FIRST_LOOK - 1]))
    advised(tmp_path, GERMAN, steps=299)
    assert advice(made(tmp_path, GERMAN).model_copy(update={"model": {"from": "translator"}}), tmp_path) is None
    assert looked == []
    advised(tmp_path, GERMAN)
    assert looked == [FIRST_LOOK]


def test_trouble_with_it_is_no_trouble_of_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(translator, "load_bundle", broken)
    assert advised(tmp_path, GERMAN) is None


def test_it_is_said_once_before_the_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where a person wrote the recipe, and not to whoever goes on with what was begun."""
    monkeypatch.setattr(translator, "WORTH_THE_WORK", 1)

    def told(**how: Any) -> list[str]:
        console = Console(file=io.StringIO(), width=200)
        run_recipe(made(tmp_path, GERMAN, steps=how.pop("steps", 1)), tmp_path / how.pop("out"), console=console, **how)
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined]

    said = told(out="one", unguided=True)
    places = [place for place, line in enumerate(said) if line.startswith(SAYS)]
    assert len(places) == 1
    assert places[0] < next(place for place, line in enumerate(said) if line.startswith("step 1"))
    assert not any(SAYS in line for line in told(out="one", steps=2, unguided=True, resume=True))
    assert not any(SAYS in line for line in told(out="two"))


def test_the_command_says_it_for_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translator, "WORTH_THE_WORK", 1)
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in GERMAN.items()), encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(
        f'task = "translate"\n[data]\ntrain = ["{tmp_path}/pairs.tsv"]\ndev = ["{tmp_path}/pairs.tsv"]\nkeep_apart = false\n'
        "[tokenizer]\nsize = 300\n"
    )
    files = [word for option in ("--train", "--dev") for word in (option, tmp_path / "pairs.tsv")]
    small = [word for change in ("training.steps=1", "model.width=16", "model.heads=2") for word in ("--set", change)]
    own = run("train", "--task", "translate", *files, "--set", "data.keep_apart=false", "--out", tmp_path / "own", *small)
    assert (own.code, own.err.count(f"{SAYS}and add to the command --from translator --to de --out ")) == (0, 1), own.err
    written = run("train", tmp_path / "recipe.toml", "--out", tmp_path / "written", *small)
    assert (written.code, SAYS in written.err) == (0, False), written.err
