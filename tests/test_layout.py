"""Data flows one way: text → tokens → batches → model → loss or decoding → outputs → page. Imports point only that way."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "regard"

# Each room may import from those before it, never from one on its own line or after. Files within a room may import one another.
ROOMS = [
    ["errors"],
    ["limits"],
    ["config", "storage", "files", "worker"],
    ["presets"],
    ["recipe"],
    ["text"],
    ["data"],
    ["nn"],
    ["models"],
    ["bundle", "decoding", "evaluation"],
    ["shipped"],
    ["training", "interop"],
    ["door"],
    ["view"],
    ["serve"],
    ["console"],
    ["cli"],
]
RANK = {room: rank for rank, rooms in enumerate(ROOMS) for room in rooms}
# Within nn, the same: each file from those before it.
NN = [
    ["tap", "masks", "positions", "embedding", "plans", "instead"],
    ["short", "residual"],
    ["backends"],
    ["few", "joined"],
    ["cache"],
    ["one_query"],
    ["attention", "recurrent"],
    ["layers", "memory"],
    ["initial"],
]
NN_RANK = {file: rank for rank, files in enumerate(NN) for file in files}


def imports(path: Path) -> set[str]:
    """Every regard module that a file imports, at its top or within a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides where it points"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("regard.")}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(path for path in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    if room(path) in ("__init__", "__main__"):  # the door may lead anywhere
        return
    for name in imports(path):
        other = name.split(".")[1]
        if not (PACKAGE / other).is_dir() and not (PACKAGE / f"{other}.py").is_file():
            continue  # a name of the package itself, such as __version__
        assert other == room(path) or RANK[other] < RANK[room(path)], f"{path.name} imports {name}, against the flow"


@pytest.mark.parametrize("path", sorted((PACKAGE / "nn").glob("[a-z]*.py")), ids=lambda path: path.name)
def test_imports_within_nn_point_one_way(path: Path) -> None:
    for name in imports(path):
        parts = name.split(".")
        if parts[1] == "nn" and len(parts) > 2 and parts[2] in NN_RANK:
            assert NN_RANK[parts[2]] < NN_RANK[path.stem], f"{path.name} imports {name}, against the flow"


def test_every_room_has_its_place() -> None:
    assert {room(path) for path in FILES} - {"__init__", "__main__"} <= set(RANK)
    assert {path.stem for path in (PACKAGE / "nn").glob("[a-z]*.py")} == set(NN_RANK)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_fits_in_the_head(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 420


def test_the_core_imports_without_extras() -> None:
    """Neither transformers nor anything else of an extra is needed to build, save and look at a model."""
    extras = [
        "transformers",
        "sklearn",
        "matplotlib",
        "fastapi",
        "tensorboard",
        "miditok",
        "symusic",
        "ctranslate2",
        "onnx",
        "onnxruntime",
        "gguf",
    ]
    modules = ["regard.cli", "regard.bundle", "regard.interop.huggingface", "regard.training.run", "regard.view.walkthrough"]
    code = f"import sys; sys.modules.update(dict.fromkeys({extras})); import {', '.join(modules)}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, regard.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
