"""The recipes that ship: each is valid, names its data with hashes, and describes a model that can be built."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from regard.models import build
from regard.recipe import DataFile, load_recipe, parse_recipe, to_toml
from regard.text.corpus import read_rows
from regard.training.begin import FREE

FOLDER = Path(__file__).parent.parent / "recipes"
RECIPES = sorted(FOLDER.glob("*.toml"))


def _made(file: DataFile) -> bool:
    """Whether other models make the file, as the recipe's first lines say, so that it has no hash."""
    return file.path is not None and file.path.startswith("runs/")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_whole(path: Path) -> None:
    recipe = load_recipe(path)
    labels = ("no", "yes") if recipe.task == "classify" else ()
    size = {"vocabulary": 100} | ({"labels": labels} if labels else {})
    if recipe.begins_from is None:
        with torch.device("meta"):
            build(recipe.model_config_for(**size))
    else:  # the shape is the bundle's: another recipe's, or one that the first lines say how to import
        others = {f"runs/{other.stem}" for other in RECIPES}
        assert recipe.begins_from in others or "regard import" in path.read_text()
        assert not set(recipe.model) - {"from", *FREE}
    for file in (*recipe.data.train, *recipe.data.dev, *recipe.data.test):
        assert file.sha256 is not None or _made(file)
    assert recipe.data.synthetic or recipe.data.train


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_survives_being_saved(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    (tmp_path / "saved.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "saved.toml") == recipe


RESEARCH_ONLY = ("multi30k/", "classify/", "lm/imdb", "lm/novels")


@pytest.mark.parametrize(("name", "vocabulary", "millions"), [("translator", 16000, 36), ("everyday-lm", 6000, 10)])
def test_what_is_to_ship_may_ship(name: str, vocabulary: int, millions: int) -> None:
    """Only data whose licence lets weights go out, and no more parameters than fit in int8."""
    recipe = load_recipe(FOLDER / f"{name}.toml")
    assert recipe.tokenizer.size == vocabulary
    with torch.device("meta"):
        model = build(recipe.model_config_for(vocabulary=vocabulary))
    assert sum(parameter.numel() for parameter in model.parameters()) <= millions * 1e6
    for file in recipe.data.train:
        assert file.path is not None
        assert not file.path.startswith(RESEARCH_ONLY)
        if "en-hi" in file.path:
            kept, left_out = set(file.only.get("2", ())), set(file.without.get("2", ()))
            assert (kept and not kept & {"iitb_sample", "enindic"}) or left_out >= {"iitb_sample", "enindic"}


def test_values_of_every_kind_survive(tmp_path: Path) -> None:
    file = {"path": 'a "b"\\é.tsv', "only": {"2": ["x", "y"]}, "to": "it", "weight": 0.5, "script": "Latin"}
    recipe = parse_recipe(
        {
            "task": "translate",
            "data": {"train": [file], "filter": {"ratio": 2.5, "drop_same": True}},
            "training": {"freeze": ["embed"], "lr": 1e-12},
            "model": {"layers": 3},
        }
    )
    (tmp_path / "saved.toml").write_text(to_toml(recipe))
    assert load_recipe(tmp_path / "saved.toml") == recipe


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_data_is_what_the_recipe_was_made_for(path: Path) -> None:
    root = os.environ.get("REGARD_DATA")
    if not root:
        pytest.skip("needs the data folder; say where it is with REGARD_DATA")
    recipe = load_recipe(path)
    for file in (*recipe.data.train, *recipe.data.dev, *recipe.data.test):
        if not _made(file):
            assert len(next(iter(read_rows(file, recipe.task, Path(root)))).texts) >= 1  # the hash is checked before the first row
