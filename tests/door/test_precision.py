"""A model loaded in each precision: what writes, what judges, and what is said of those that there are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from regard.bundle import read_config, save_bundle
from regard.decoding.products import FloatProduct, Int8Product, available, sums_in_32_bits
from regard.decoding.ready import WrittenIn, uses_int8
from regard.door import Model, load
from regard.errors import ConfigError
from regard.models import build
from regard.nn import record

Bundles = Callable[[str], Path]
needs_int8 = pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")
needs_gain = pytest.mark.skipif(not sums_in_32_bits() or not available(Int8Product), reason="int8 gains nothing on this CPU")
TEXTS = ["1 2 3", "4 5", "9 8 7 6 5"]


@pytest.fixture
def wide(bundle: Bundles, tmp_path: Path) -> Bundles:
    """The bundle with a model of width 256 in place of its own, random and stored in bfloat16."""

    def made(name: str) -> Path:
        folder = Path(shutil.copytree(bundle(name), tmp_path / name))
        config = read_config(folder).model_copy(update={"width": 256, "heads": 4, "feedforward": 512})
        torch.manual_seed(1)
        save_bundle(build(config), tmp_path / "wide", precision="bfloat16")
        shutil.copy(tmp_path / "wide" / "model.safetensors", folder)
        shutil.copy(tmp_path / "wide" / "config.json", folder)
        return folder

    return made


def written(model: Model) -> list[str]:
    if "translate" in model.verbs:
        return [answer.text for answer in model.translate(TEXTS, "back", max_length=6)]
    return [answer.text for answer in model.generate(TEXTS, beam_size=2, max_length=6)]


@needs_int8
@pytest.mark.parametrize("name", ["translator", "writer"])
@pytest.mark.parametrize("precision", ["int8", pytest.param("auto", marks=needs_gain)])
def test_int8_writes_and_float32_judges(wide: Bundles, name: str, precision: WrittenIn) -> None:
    model = load(wide(name), precision=precision)
    assert uses_int8(model.writer)
    assert not uses_int8(model.network)
    assert model.generator is model.network is not model.writer
    assert model.network.dtype == torch.float32
    model.network.state_dict()  # which the packed one refuses
    exact = load(model.name, precision="float32")
    given = ("back",) if name == "translator" else ()
    with record(model.network) as inside:
        scores = model.score(TEXTS, TEXTS, to="back") if given else model.score(TEXTS)
    assert "decoder.layers.0.attention.query" in inside
    wanted = exact.score(TEXTS, TEXTS, to="back") if given else exact.score(TEXTS)
    assert [one.log_probability for one in scores] == pytest.approx([one.log_probability for one in wanted], abs=1e-4)
    assert len(written(model)) == len(TEXTS)


@pytest.mark.parametrize("name", ["translator", "writer"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_others_write_and_judge_with_one_network(wide: Bundles, name: str, precision: WrittenIn) -> None:
    model = load(wide(name), precision=precision)
    assert model.writer is model.generator
    assert model.network.dtype == getattr(torch, precision)
    packed = any(isinstance(getattr(module, "product", None), FloatProduct) for module in model.writer.modules())
    assert packed == (precision == "float32" and available(FloatProduct))
    assert (model.network is model.writer) == (not packed)
    assert {name for name, _ in model.network.named_parameters()} == build(model.config).state_dict().keys()
    assert len(written(model)) == len(TEXTS)


def test_auto_is_float32_for_what_is_narrow_or_only_reads(bundle: Bundles, wide: Bundles) -> None:
    for folder in (bundle("translator"), bundle("writer"), bundle("recurrent"), wide("critic")):
        model = load(folder)
        assert not uses_int8(model._followed.writer())
        assert model.network.dtype == torch.float32


@needs_int8
def test_a_trained_model_answers_the_same_in_int8(bundle: Bundles) -> None:
    """What it has learned is far from any tie."""
    folder = bundle("translator")
    exact, rounded = load(folder, precision="float32"), load(folder, precision="int8")
    texts = ["1 2 3", "4 5 6 7", "9", "8 8 1 0"]
    answers = rounded.translate(texts, "back")
    assert [answer.text for answer in answers] == [answer.text for answer in exact.translate(texts, "back")]
    again = rounded.score(texts, [answer.text for answer in answers], to="back")
    assert [one.log_probability for one in again] == pytest.approx([one.log_probability for one in answers], abs=0.2)


def test_precisions_that_there_are_not(bundle: Bundles) -> None:
    with pytest.raises(ConfigError, match=r"precision = 'int9' is unknown; did you mean 'int8'\?"):
        load(bundle("translator"), precision="int9")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="precision = 'fast' is unknown; known: auto, bfloat16, float16, float32, int8"):
        load(bundle("translator"), precision="fast")  # type: ignore[arg-type]
