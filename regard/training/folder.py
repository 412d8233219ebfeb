"""The folder of a run: what must be so before its first step, for at the last it would be too late."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

from regard.bundle import refuse_place
from regard.errors import ConfigError, TrainingError
from regard.files import write_file
from regard.recipe import Recipe, load_recipe, parse_recipe, read_toml_text, to_toml
from regard.storage import readable_name
from regard.training.figures import METRICS

RECIPE = "recipe.toml"
TEST = "test.tsv"  # the rows that data.test_share kept apart, for `regard evaluate`
BUNDLE, CHECKPOINTS, TENSORBOARD = "bundle", "checkpoints", "tensorboard"


def check_folder(out: Path) -> None:
    """An error, where a run could not write what it will write, or would write elsewhere."""
    files, folders = [out / name for name in (RECIPE, METRICS, TEST)], [out / name for name in (BUNDLE, CHECKPOINTS, TENSORBOARD)]
    for path in (*files, *folders, *(out / CHECKPOINTS).glob("step-*")):
        # A folder may have come from someone else, and with it links to what is not theirs.
        if path.is_symlink():
            raise TrainingError(
                f"{path} is a link to {os.readlink(path)}, and a training writes nothing outside its folder; "
                "put what it leads to in its place, or choose another --out"
            )
        if path in files and path.exists() and not path.is_file():
            raise TrainingError(f"{path} is no file, and a training writes one there; move it away, or choose another --out")
    for folder in (out, out / CHECKPOINTS):
        if folder.exists() and not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise TrainingError(f"{folder} may not be written to; change its permissions, or choose another --out")
    refuse_place(out / BUNDLE)


def check_recipe(recipe: Recipe) -> None:
    """An error, where a recipe could not be read back, and so its training not be resumed."""
    text = to_toml(recipe)
    try:
        text.encode("utf-8")
        same = to_toml(parse_recipe(read_toml_text(text, RECIPE))) == text
    except UnicodeEncodeError as error:
        name = error.object[max(0, error.start - 30) : error.end + 10]
        raise TrainingError(f"the recipe names {name!r}, which is not UTF-8 and could not be read back; {readable_name()}") from error
    except (ConfigError, tomllib.TOMLDecodeError) as error:
        raise TrainingError(f"this recipe could not be read back, and so its training not be resumed: {error}; change that") from error
    if not same:
        raise TrainingError(f"this recipe would be read back as another ({_difference(text)}), and so its training not be resumed")


def write_recipe(recipe: Recipe, out: Path) -> None:
    """Writes it whole or not at all, and sees that it is read back as it was."""
    text = to_toml(recipe)
    write_file(out / RECIPE, text.encode("utf-8"))
    if to_toml(load_recipe(out / RECIPE)) != text:
        raise TrainingError(f"{out / RECIPE} is read back as another recipe than was written; is the disk in order?")


def write_rows(rows: Iterable[str], out: Path) -> None:
    write_file(out / TEST, "".join(f"{row}\n" for row in rows).encode("utf-8", errors="replace"))


def _difference(text: str) -> str:
    again = to_toml(parse_recipe(read_toml_text(text, RECIPE)))
    return next((line for line, other in zip(text.splitlines(), again.splitlines(), strict=False) if line != other), "it is shorter")
