"""`--precision` of the verbs that write, and what `regard doctor` says of int8."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from regard.cli.doctor import findings, show
from regard.decoding.products import Int8Product, available
from regard.decoding.ready import uses_int8
from regard.door import Model, load
from tests.cli.running import run

Bundles = Callable[[str], Path]
needs_int8 = pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")
PRECISIONS = ["auto", "float32", "bfloat16", pytest.param("int8", marks=needs_int8)]


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """The models that were opened."""
    models: list[Model] = []

    def kept(*given: Any, **more: Any) -> Model:
        models.append(load(*given, **more))
        return models[-1]

    monkeypatch.setattr("regard.door.load", kept)
    return models


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_translates(bundle: Bundles, precision: str, loaded: list[Model]) -> None:
    wanted = [answer.text for answer in load(bundle("translator"), precision=precision).translate(["1 2 3", "4 5"], "back")]  # type: ignore[arg-type]
    done = run("translate", "-m", bundle("translator"), "--to", "back", "--precision", precision, "1 2 3", "4 5")
    assert (done.code, done.lines, done.err) == (0, wanted, "")
    assert uses_int8(loaded[0].writer) == (precision == "int8")
    assert str(loaded[0].network.dtype) == ("torch.bfloat16" if precision == "bfloat16" else "torch.float32")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_generates_and_is_evaluated(bundle: Bundles, precision: str, tmp_path: Path, loaded: list[Model]) -> None:
    done = run("generate", "-m", bundle("writer"), "--beam-size", "2", "--max-length", "4", "--precision", precision, "the cat")
    assert done.code == 0, done.err
    assert done.out.startswith("the cat")
    data = tmp_path / "data.tsv"
    data.write_text("1 2 3\t3 2 1\n4 5\t5 4\n")
    told = run("evaluate", "-m", bundle("translator"), "--to", "back", "--data", data, "--precision", precision, "--format", "json")
    assert told.code == 0, told.err
    assert json.loads(told.out)
    assert [uses_int8(model.writer) for model in loaded] == [precision == "int8"] * 2


@pytest.mark.parametrize("verb", ["translate", "generate", "evaluate"])
def test_other_precisions_are_refused(bundle: Bundles, verb: str) -> None:
    done = run(verb, "-m", bundle("translator"), "--precision", "int4", *(["--data", "x"] if verb == "evaluate" else ["1 2"]))
    assert (done.code, done.out) == (2, "")
    assert "int4" in done.err
    assert "int8" in done.err


@pytest.mark.parametrize(
    ("kernels", "sums", "said"),
    [(True, True, "fast"), (True, False, "only where it is asked for: this CPU has no VNNI"), (False, False, "no kernels for this CPU")],
)
def test_doctor_says_what_int8_is_good_for(kernels: bool, sums: bool, said: str) -> None:
    shown = io.StringIO()
    show(findings() | {"int8": {"kernels": kernels, "sums_in_32_bits": sums}}, Console(file=shown, width=200))
    assert next(line for line in shown.getvalue().splitlines() if line.startswith("int8")).split(maxsplit=1)[1].strip() == said
