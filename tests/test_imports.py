"""A first answer comes soon: what a verb does not need is not imported, and a model is filled without having been made up first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from regard.bundle import outline
from tests.families import FAMILIES, small

# Extras, what only training or evaluation needs, and PyTorch's compiler with the algebra it computes shapes by.
NOT_NEEDED = [
    *("transformers", "pandas", "matplotlib", "fastapi", "uvicorn", "sklearn", "scipy", "ctranslate2", "onnx", "onnxruntime", "gguf"),
    *("miditok", "symusic", "tensorboard", "sacrebleu", "rich", "jinja2", "torchao", "sentencepiece"),
    *("torch._dynamo", "torch._inductor", "sympy", "torch.distributed.tensor", "torch.utils.tensorboard"),
    *("regard.training", "regard.interop", "regard.view", "regard.serve"),
]


def imported_by(code: str) -> set[str]:
    """The modules of `NOT_NEEDED` that a new process has after it has run some code."""
    report = f"import sys\nprint('imported', *[name for name in {NOT_NEEDED} if name in sys.modules])"
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # tests run side by side
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, env=one_thread)
    return set(done.stdout.splitlines()[-1].split()[1:])


def as_command(arguments: list[str]) -> str:
    """Code that does what `regard` does with such arguments."""
    command = ["regard", *arguments]
    return f"import sys, regard.cli\nsys.argv = {command}\ntry:\n    regard.cli.main()\nexcept SystemExit as end:\n    assert not end.code"


@pytest.mark.parametrize(
    ("arguments", "model"),
    [(["translate", "I love you.", "--to", "de"], "translator"), (["generate", "I love", "--max-length", "4"], "everyday")],
    ids=["translate", "generate"],
)
def test_a_verb_imports_nothing_that_it_does_not_need(arguments: list[str], model: str) -> None:
    assert imported_by(as_command([*arguments, "--model", model, "--device", "cpu"])) == set()


def test_looking_into_a_model_needs_no_compiler(tmp_path: Path) -> None:
    """Nor does counting its parameters: to draw random numbers that nobody needs, PyTorch would load it."""
    for arguments in (
        ["view", "I love you.", "--to", "de", "--model", "translator", "--out", str(tmp_path / "page.html")],
        ["info", "gpt2"],
    ):
        assert not {"torch._dynamo", "sympy", "transformers", "matplotlib"} & imported_by(as_command(arguments)), arguments


def test_what_is_looked_for_would_be_found() -> None:
    assert imported_by("import sympy, regard.view.summary") >= {"sympy", "regard.view"}


@pytest.mark.parametrize("name", FAMILIES)
def test_an_outline_is_the_model_without_its_numbers(name: str) -> None:
    model = small(name).float()
    found = outline(model.config).state_dict()
    assert all(tensor.is_meta for tensor in found.values())
    assert {key: (tensor.shape, tensor.dtype) for key, tensor in found.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in model.state_dict().items()
    }
    assert nn.init.normal_(torch.zeros(9)).abs().sum() > 0  # after it, numbers are drawn as ever
    assert Tensor.uniform_(torch.zeros(9)).sum() > 0


def test_an_outline_of_any_family_needs_no_compiler() -> None:
    code = (
        "from regard.bundle import outline\nfrom tests.families import FAMILIES, small\nfor name in FAMILIES: outline(small(name).config)"
    )
    assert not {"torch._dynamo", "sympy"} & imported_by(code)
