"""Recipes: strict, layered, and saved as they were meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.errors import ConfigError
from regard.recipe import Recipe, load_recipe, merged, parse_change, parse_recipe


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"training": {"stpes": 3}}, r"unknown key 'training\.stpes'; did you mean 'steps'\?"),
        ({"traning": {"steps": 3}}, r"unknown key 'traning'; did you mean 'training'\?"),
        ({"task": "lmm"}, "'task' = 'lmm': Input should be 'translate', 'lm', 'mlm' or 'classify'"),
        ({"data": {}}, "data.train names the files to learn from"),
        ({"data": {"train": [{"pth": "a"}]}}, r"unknown key 'data\.train\.0\.pth'; did you mean 'path'\?"),
        ({"data": {"train": [{"path": "a", "source": "b"}]}}, r"'data\.train\.0': a data file is either path"),
        ({"data": {"train": [{"source": "b"}]}}, r"'data\.train\.0': a data file is either path"),
        ({"training": {"lr": -1}}, r"'training\.lr' = -1: Input should be greater than 0"),
        ({"data": {"train": "a", "balance": 1.5}}, r"'data\.balance' = 1\.5: Input should be less than or equal to 1"),
        ({"data": {"train": "a", "filter": {"longst": 5}}}, r"unknown key 'data\.filter\.longst'; did you mean 'longest'\?"),
        ({"data": {"train": "a", "filter": {"ratio": 0.5}}}, r"ratio = 0\.5 is of the longer side to the shorter: 1 or more"),
        ({"data": {"train": "a", "filter": {"ratio": 3.0}}}, r"data\.filter\.ratio is about pairs, and task lm has none"),
        ({"data": {"train": [{"path": "a", "script": "Latin"}]}}, r"data\.train\.script is about pairs, and task lm has none"),
        ({"data": {"train": "a", "unit": "file", "filter": {"shortest": 3}}}, r"data\.filter looks at rows, but with data\.unit = 'file'"),
        ({"training": {"bpe_dropout": 0.1}}, r"training\.bpe_dropout is for tokenizer\.kind = 'bpe' and the tasks translate and classify"),
    ],
)
def test_a_wrong_key_is_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_recipe({"task": "lm", "data": {"train": "a.txt"}} | settings)


def test_files_may_be_named_by_their_path_alone() -> None:
    short = parse_recipe({"task": "lm", "data": {"train": "a.txt", "dev": ["b.txt", {"path": "c.txt", "weight": 2.0}]}})
    assert [file.path for file in short.data.train] == ["a.txt"]
    assert [file.path for file in short.data.dev] == ["b.txt", "c.txt"]


def test_labels_of_classes_are_smoothed_only_where_that_is_asked_for() -> None:
    def smoothing(task: str, **training: Any) -> float:
        return parse_recipe({"task": task, "data": {"train": "a.tsv"}, "training": training}).training.label_smoothing

    assert smoothing("translate") == 0.1
    assert smoothing("classify") == 0.0
    assert smoothing("classify", label_smoothing=0.2) == 0.2
    assert parse_recipe({"task": "classify", "data": {"train": "a.tsv"}}).training.label_smoothing == 0.0


def test_layers(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('task = "lm"\n[data]\ntrain = "a.txt"\n[training]\nsteps = 7\nlr = 0.1\n')
    (tmp_path / "own.toml").write_text('base = "base.toml"\n[training]\nlr = 0.2\n')
    recipe = load_recipe(tmp_path / "own.toml", ["training.warmup=3", "model.positions=rotary", 'data.dev=["d.txt"]'])
    assert (recipe.training.steps, recipe.training.lr, recipe.training.warmup) == (7, 0.2, 3)
    assert recipe.model == {"preset": "fitting", "positions": "rotary"}  # the model that fits the data, with one key changed
    assert recipe.data.dev[0].path == "d.txt"
    (tmp_path / "base.toml").write_text('base = "own.toml"\n')
    with pytest.raises(ConfigError, match="base leads back to it"):
        load_recipe(tmp_path / "own.toml")


@pytest.mark.parametrize(("change", "says"), [("training.lr", "section.key=value"), ("=3", "section.key=value")])
def test_a_change_that_is_none(change: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_change(change)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read the recipe .*no\.toml: No such file"):
        load_recipe(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("task = \n")
    with pytest.raises(ConfigError, match=r"bad\.toml: not TOML: .*line 1"):
        load_recipe(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'task = "l\xe4"')
    with pytest.raises(ConfigError, match=r"latin\.toml is not UTF-8 text \(byte 9\)"):
        load_recipe(tmp_path / "latin.toml")


def test_later_layers_win_table_by_table() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": 4}) == {"a": {"b": 3, "c": 2}, "d": 4}


def test_the_model_of_a_recipe() -> None:
    recipe = parse_recipe({"task": "translate", "data": {"train": "a.tsv"}, "model": {"preset": "transformer-tiny", "layers": 2}})
    assert isinstance(recipe, Recipe)
    config = recipe.model_config_for(vocabulary=77)
    assert (config.kind, config.vocabulary, config.layers, config.width) == ("seq2seq", 77, 2, 128)
    with pytest.raises(ConfigError, match=r"model\.preset = 'transformer-tin' is unknown; did you mean 'transformer-tiny'"):
        parse_recipe({"task": "lm", "data": {"train": "a"}, "model": {"preset": "transformer-tin"}}).model_config_for(vocabulary=5)
    with pytest.raises(ConfigError, match=r"\[model\]: unknown key 'layer'; did you mean 'layers'"):
        parse_recipe({"task": "lm", "data": {"train": "a"}, "model": {"layer": 3}}).model_config_for(vocabulary=5)
