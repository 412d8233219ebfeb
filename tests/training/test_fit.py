"""A recipe for data that comes without one: sizes by the tokens that are really there, and a set key changes that key alone."""

from __future__ import annotations

import importlib.util
import random
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from regard.bundle import read_config
from regard.config import ModelConfig
from regard.recipe import Recipe, load_recipe, parse_change
from regard.shipped import find_bundle
from regard.training.fit import describe, fitting_recipe
from regard.training.prepare import prepare
from tests.training.test_run import _own_cache, write_data  # noqa: F401

SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in ("a", "e", "i", "o", "u", "an", "er", "is")]


def fitted(file: Path, *changes: str, task: Any = "translate", **others: Any) -> Recipe:
    return fitting_recipe(task, [str(file)], [], [parse_change(change) for change in changes], None, **others)


def config(recipe: Recipe) -> ModelConfig:
    return prepare(recipe, None, lambda message: None).config


def written(path: Path, targets: list[str]) -> Path:
    path.write_text("".join(f"{number}\t{target}\n" for number, target in enumerate(targets)), encoding="utf-8")
    return path


def drawn(units: list[str], fewest: int, most: int, count: int) -> list[list[str]]:
    """Rows of so many units, frequent and rare ones as in real text."""
    chance = random.Random(0)
    shares = list(accumulate(1 / (rank + 5) for rank in range(len(units))))
    return [chance.choices(units, cum_weights=shares, k=chance.randint(fewest, most)) for _ in range(count)]


def sentences(count: int) -> list[list[str]]:
    chance = random.Random(0)
    return drawn(["".join(chance.choices(SYLLABLES, k=chance.randint(1, 4))) for _ in range(8_000)], 3, 9, count)


def test_text_without_spaces_is_as_much_text(tmp_path: Path) -> None:
    """20,000 rows: counted by the spaces between them, they would be taken for 20,000 words."""
    hanzi = [chr(0x4E00 + number) for number in range(2_500)]
    for rows in (sentences(20_000), drawn(hanzi, 6, 14, 20_000)):
        recipe = fitted(written(tmp_path / "pairs.tsv", ["".join(row) for row in rows]))
        assert recipe.tokenizer.size >= 3_000
        assert recipe.training.steps >= 1_500


def test_tokens_are_counted_as_they_will_be(tmp_path: Path) -> None:
    """40 passes over the tokens that there are: every digit is one, and so is every character where characters are asked for."""
    digits = written(tmp_path / "digits.tsv", ["0123456789"] * 5_000)
    assert _tokens(fitted(digits)) == pytest.approx(50_000, rel=0.05)
    letters = written(tmp_path / "letters.tsv", ["abcdefghij klmnopqrs"] * 5_000)
    assert _tokens(fitted(letters, "tokenizer.kind=char", "tokenizer.size=100")) == pytest.approx(100_000, rel=0.05)
    assert _tokens(fitted(letters, "tokenizer.kind=word", "tokenizer.size=100")) == pytest.approx(10_000, rel=0.05)


def _tokens(recipe: Recipe) -> float:
    return recipe.training.steps * recipe.training.batch_tokens / 40


def test_little_data_is_learned_from_in_small_steps(tmp_path: Path) -> None:
    """As many passes, in more updates; but a batch always has room for the longest example."""
    words = [" ".join(row) for row in sentences(3_000)]
    few, many = (fitted(written(tmp_path / f"{count}.tsv", words[:count])) for count in (300, 3_000))
    assert (few.training.batch_tokens, many.training.batch_tokens) == (1024, 1024)
    assert 300 <= few.training.steps < many.training.steps
    assert fitted(tmp_path / "300.tsv", "data.max_length=1000").training.batch_tokens == 2_000


@pytest.mark.parametrize("task", ["translate", "lm", "mlm", "classify"])
@pytest.mark.parametrize(
    ("change", "key", "value"), [("layers=1", "layers", 1), ("dropout=0.25", "dropout", 0.25), ('kind="KIND"', "", None)]
)
def test_a_set_key_of_the_model_changes_that_key_alone(tmp_path: Path, task: Any, change: str, key: str, value: Any) -> None:
    file = write_data(tmp_path, task)
    plain, changed = fitted(file, task=task), fitted(file, f"model.{change}".replace("KIND", _kind(task)), task=task)
    assert changed.training == plain.training
    assert changed.tokenizer == plain.tokenizer
    assert config(changed).model_dump() == config(plain).model_dump() | ({key: value} if key else {})


def _kind(task: str) -> str:
    return {"translate": "seq2seq", "lm": "lm"}.get(task, "encoder")


def test_a_recipe_without_a_model_is_changed_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(f'task = "translate"\n[data]\ntrain = "{write_data(tmp_path, "translate")}"\n[tokenizer]\nsize = 300\n')
    plain, changed = config(load_recipe(path)), config(load_recipe(path, ["model.layers=2"]))
    assert changed.model_dump() == plain.model_dump() | {"layers": 2}


def test_another_model_is_another_model(tmp_path: Path) -> None:
    """What was fitted is about the model that fits; a preset of one's own or another family is taken as it is."""
    file = write_data(tmp_path, "translate")
    assert fitted(file, "model.preset=transformer-small").model == {"preset": "transformer-small"}
    assert fitted(file, "model.kind=rnn").model == {"kind": "rnn"}


def test_a_model_that_has_learned_is_moved_gently(tmp_path: Path) -> None:
    recipe = fitted(write_data(tmp_path, "translate"), begins_from="translator", of_files={"to": "de"})
    assert (recipe.training.lr, recipe.training.schedule) == (1e-4, "cosine")
    assert recipe.data.max_length <= read_config(find_bundle("translator")).context
    assert [file.to for file in recipe.data.train] == ["de"]
    assert "the vocabulary of translator" in describe(recipe)


@pytest.fixture(scope="module")
def own_data() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_data", Path(__file__).parents[2] / "benchmarks/own_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("task", "source", "target"), [("reverse", "0912", "keto ba garu nul"), ("copy", "abcz", "abcz"), ("sort", "3 0 3 1", "0 1 3 3")]
)
def test_made_up_rows(own_data: ModuleType, task: str, source: str, target: str) -> None:
    """The same for the same seed, and none that is asked for is among those learned from."""
    learned, asked = own_data.pairs(task, 1, rows=200, asked=20)
    assert (learned, asked) == own_data.pairs(task, 1, rows=200, asked=20)
    assert learned != own_data.pairs(task, 2, rows=200, asked=20)[0]
    assert (len(learned), len(asked)) == (200, 20)
    assert not {source for source, _ in learned} & {source for source, _ in asked}
    assert own_data.answer(task, source) == target


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reverse", "copy", "sort"])
def test_own_data_is_learned_without_settings(tmp_path: Path, own_data: ModuleType, task: str) -> None:
    """At least 190 of 200 unseen sources; `benchmarks/own_data.py` does it with three seeds."""
    learned, asked = own_data.pairs(task, 1)
    own_data.trained(own_data.write(tmp_path / "train.tsv", learned), tmp_path / "run", 1, [])
    assert own_data.right(tmp_path / "run" / "bundle", asked) >= 0.95 * len(asked)
