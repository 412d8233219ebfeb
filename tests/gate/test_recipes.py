"""Every recipe that ships trains, validates, saves, is killed, resumes and answers: on a CPU, small, and on data that stands in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli import main
from tests.gate.recipes import ROOT, environment, in_order, train_kill_resume_ask
from tests.gate.stand_ins import recipes_for
from tests.gate.verbs import ask, commands, serve_and_ask
from tests.interop.test_sentences import MEAN, NORMALIZE, POOLING, TRANSFORMER, sentence_encoder

pytestmark = pytest.mark.slow
SHIPPED = ROOT / "recipes"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gate")
    recipes_for(SHIPPED, None, made)
    return made


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny sentence encoder in the place of all-MiniLM-L6-v2."""
    said = {"max_seq_length": 96}
    return sentence_encoder(tmp_path_factory.mktemp("minilm") / "model", MEAN, TRANSFORMER, POOLING, NORMALIZE, said=said)


def test_every_recipe_trains_is_killed_resumes_and_answers(place: Path, minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["regard", "import", str(minilm), str(place / "runs" / "minilm")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    (place / "runs" / "film").mkdir(parents=True)
    rows = (f"{'negative' if number % 2 else 'positive'}\tkalo mi {number}\n" for number in range(90))
    (place / "runs" / "film" / "sentences.tsv").write_text("".join(rows), encoding="utf-8")
    for name in in_order(SHIPPED):
        trained = train_kill_resume_ask(name, place, device="cpu", small=True)
        print(trained)
        assert trained.last < trained.first + 1.0  # it learns, or at least does not run away


def test_the_chain_of_sst2_runs_whole(place: Path, minilm: Path, tmp_path: Path) -> None:
    """recipes/sst2.sh from its first line to its last, with a few steps each."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, command in (("regard", f'exec "{sys.executable}" -m regard "$@"'), ("python", f'exec "{sys.executable}" "$@"')):
        (commands / name).write_text(f"#!/bin/sh\n{command}\n")
        (commands / name).chmod(0o755)
    few = "--set training.steps=2 --set training.validate_every=2 --set training.checkpoint_every=2 --set training.batch_tokens=512"
    env = environment("cpu") | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "SETTINGS": f"{few} --set data.max_length=64"}
    sh = shutil.which("sh")
    assert sh is not None
    done = subprocess.run(
        [sh, str(place / "recipes" / "sst2.sh"), str(minilm), str(place / "data")],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "accuracy" in done.stdout.lower()
    assert (tmp_path / "runs" / "sst2-taught" / "bundle").is_dir()


def test_all_verbs_and_the_server_answer(place: Path) -> None:
    """As `make gpu` asks them, of the bundles that the recipes made."""
    if not (place / "runs" / "multi30k-en-de").is_dir():
        pytest.skip("the recipes above made no bundles to ask")
    for arguments in commands(place, "cpu").values():
        ask(arguments, place, "cpu")
    assert all(size > 2 for size in serve_and_ask(place, "cpu").values())
