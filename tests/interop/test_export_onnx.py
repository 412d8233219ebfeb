"""Exported to ONNX: the oracle is ONNX Runtime, which runs the graphs with batches and lengths that they were not written down with."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from regard.bundle import load_bundle, save_bundle
from regard.data.batch import Tokens
from regard.interop.export import export
from regard.interop.export_onnx import spelled_out
from regard.interop.graphs import ReaderGraph, SourceGraph, TargetGraph, WriterGraph
from regard.interop.original import ExportError, Original
from regard.models import build
from regard.presets import preset
from regard.shipped import shipped
from tests.closeness import assert_close
from tests.interop.exported import FEW, bundle

CLOSE = {"rtol": 1e-4, "atol": 1e-4}
SMALL: dict[str, Any] = {"layers": 1, "width": 16, "feedforward": 24}
BERT: dict[str, Any] = {"positions": "learned", "embedding_norm": True, "embedding_scale": False, "activation": "gelu"}
LLAMA: dict[str, Any] = {
    "norm": "rms", "norm_place": "before", "positions": "rotary", "position_layout": "halves", "activation": "swiglu", "bias": "none",
    "embedding_scale": False, "kv_heads": 2,
}  # fmt: skip
T5: dict[str, Any] = {
    "norm": "rms", "norm_place": "before", "positions": "relative", "attention_scale": 1.0, "bias": "none", "embedding_scale": False,
    "logit_scale": 0.25,
}  # fmt: skip
BLOCKED = "import sys; sys.modules.update(torch=None, regard=None); import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


def padded(*lengths: int, seed: int = 0) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    return Tokens.pad([torch.randint(5, 300, (length,), generator=generator).tolist() for length in lengths])


def graph(folder: Path, name: str) -> Any:
    onnx.checker.check_model(str(folder / name), full_check=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])


def alone(program: Path, *arguments: str) -> str:
    """Runs a program without regard or PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=program.parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def encoder_is_the_same(tmp_path: Path, **settings: Any) -> Path:
    folder = bundle(tmp_path, "encoder", **settings)
    report = export(folder, "onnx", tmp_path / "out", sentences=FEW)
    assert (report.made, report.same, report.texts) == ("an ONNX graph", len(FEW), len(FEW))
    assert report.difference < 1e-4
    model, session = load_bundle(folder).model, graph(tmp_path / "out", "model.onnx")
    for tokens in (padded(1), padded(50), padded(17, 3, 1, 9, 25)):
        found = dict(zip([output.name for output in session.get_outputs()],
                         session.run(None, {"ids": tokens.ids.numpy(), "mask": tokens.real.long().numpy()}), strict=True))  # fmt: skip
        with torch.no_grad():
            states = model(tokens)
            want = {"states": states[tokens.real], "vector": model.vectors(states, tokens)}
            if model.config.labels:
                want["labels"] = model.classify(states, tokens)
            if model.config.masked_words:
                want["words"] = model.fill(states)[tokens.real]
        assert found.keys() == want.keys()
        for name, tensor in want.items():
            got = torch.from_numpy(found[name])
            torch.testing.assert_close(got[tokens.real] if got.dim() == 3 else got, tensor, **CLOSE)
    return tmp_path / "out"


def test_encoder(tmp_path: Path) -> None:
    out = encoder_is_the_same(tmp_path, **BERT, **SMALL, labels=["no", "yes"], masked_words=True, token_types=2)
    told = json.loads(alone(out / "read.py", "What a lovely film!"))
    original = Original(tmp_path / "bundle", ["What a lovely film!"])
    tokens = original.padded(original.rows)
    with torch.no_grad():
        want = original.encoder.classify(original.encoder(tokens), tokens).softmax(-1)[0]
    assert list(told) == ["no", "yes"]
    assert_close(torch.tensor(list(told.values())), want, original.encoder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        BERT | {"pooler": True, "pooling": "first", "labels": ["no", "yes", "maybe"]},
        {"window": 3, "positions": "alibi"},
        {"positions": "rotary", "norm": "rms", "norm_place": "before", "masked_words": True, "tied": False},
        {"positions": "relative", "activation": "geglu"},
    ],
)
def test_encoders_of_other_kinds(settings: dict[str, Any], tmp_path: Path) -> None:
    encoder_is_the_same(tmp_path, **settings)


def pair_is_the_same(tmp_path: Path, **settings: Any) -> Path:
    folder = bundle(tmp_path, "seq2seq", **settings)
    report = export(folder, "onnx", tmp_path / "out", sentences=FEW)
    assert (report.same, report.texts) == (len(FEW), len(FEW))
    assert report.difference < 1e-4
    model = load_bundle(folder).model
    config, encoder, decoder = model.config, graph(tmp_path / "out", "encoder.onnx"), graph(tmp_path / "out", "decoder-with-cache.onnx")
    for source, target in ((padded(40, 9, 1), padded(30, 12, 5, seed=1)), (padded(7), padded(21, seed=2))):
        mask = source.real.long().numpy()
        keys, values = encoder.run(None, {"ids": source.ids.numpy(), "mask": mask})
        key = value = np.zeros((*keys.shape[:3], 0, config.key_width), np.float32)
        steps, start = [], 0
        for end in (1, 2, 9, target.ids.shape[1]):  # words one at a time and several together
            given = {"ids": target.ids[:, start:end].numpy(), "key": key, "value": value}
            logits, key, value = decoder.run(None, {**given, "source_key": keys, "source_value": values, "source_mask": mask})
            steps, start = [*steps, torch.from_numpy(logits)], end
        with torch.no_grad():
            want = model(source, target)
        torch.testing.assert_close(torch.cat(steps, 1)[target.real], want[target.real], **CLOSE)
    return tmp_path / "out"


def test_encoder_decoder(tmp_path: Path) -> None:
    out = pair_is_the_same(tmp_path, **SMALL, norm_place="before", tags=("it", "de"))
    original = Original(tmp_path / "bundle", FEW)
    told = alone(out / "translate.py", FEW[0], FEW[2], FEW[4], "--to", "it")
    assert told.splitlines() == [line for number in (0, 2, 4) for line in original.text(original.written[number]).splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [T5, {"positions": "rotary", "kv_heads": 1}, {"positions": "alibi"}, {"source_vocabulary": 320, "tied": False}]
)
def test_encoder_decoders_of_other_kinds(settings: dict[str, Any], tmp_path: Path) -> None:
    pair_is_the_same(tmp_path, **settings)


def writer_is_the_same(tmp_path: Path, **settings: Any) -> Path:
    folder = bundle(tmp_path, "lm", **settings)
    report = export(folder, "onnx", tmp_path / "out", sentences=FEW)
    assert (report.same, report.texts) == (len(FEW), len(FEW))
    assert report.difference < 1e-4
    model, session = load_bundle(folder).model, graph(tmp_path / "out", "decoder-with-cache.onnx")
    config, prefixed = model.config, settings.get("mask") == "prefix"
    ids = padded(20, 20, 20, seed=3).ids
    real = torch.arange(20)[None] >= torch.tensor([0, 6, 13])[:, None]  # prompts of other lengths, padded on the left
    tokens = Tokens(ids, real)
    key = value = np.zeros((config.layers, 3, config.kv_heads or config.heads, 0, config.key_width), np.float32)
    steps, start, more = [], 0, {"prefix": np.array([15])} if prefixed else {}
    for end in (15, 16, 20):
        given = {"ids": ids[:, start:end].numpy(), "mask": real[:, :end].long().numpy(), "key": key, "value": value}
        logits, key, value = session.run(None, given | more)
        steps, start = [*steps, torch.from_numpy(logits)], end
    with torch.no_grad():
        want = model(tokens, torch.tensor([15, 9, 2])) if prefixed else model(tokens)
    torch.testing.assert_close(torch.cat(steps, 1)[real], want[real], **CLOSE)
    return tmp_path / "out"


@pytest.mark.slow  # the graph as a function is tried below, for every kind
def test_language_model(tmp_path: Path) -> None:
    out = writer_is_the_same(tmp_path, **(LLAMA | SMALL))
    original = Original(tmp_path / "bundle", FEW[:1])
    told = alone(out / "generate.py", FEW[0], "--length", "24")
    assert told.rstrip("\n") == original.text([*original.rows[0], *original.written[0]]).rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"mask": "prefix", "positions": "learned"}, {"window": 4}, {"positions": "alibi", "norm_place": "before"}, T5]
)
def test_language_models_of_other_kinds(settings: dict[str, Any], tmp_path: Path) -> None:
    writer_is_the_same(tmp_path, **settings)


STYLES: dict[str, dict[str, Any]] = {
    "learned": {"positions": "learned"},
    "llama": LLAMA,
    "t5": T5,
    "alibi": {"positions": "alibi", "norm_place": "before"},
}
GRAPHS = [(kind, settings) for kind in ("encoder", "seq2seq", "lm") for settings in STYLES.values()]


@pytest.mark.parametrize(("kind", "settings"), [*GRAPHS, ("encoder", {"window": 4}), ("lm", {"window": 4}), ("lm", {"mask": "prefix"})])
@torch.no_grad()
def test_graphs_are_the_model(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """The functions that are written down, run as they are: quick, and so for every kind."""
    model = spelled_out(load_bundle(bundle(tmp_path, kind, **settings)).model)
    source, target = padded(9, 4), padded(7, 7, seed=1)
    mask = source.real.long()
    if kind == "encoder":
        torch.testing.assert_close(ReaderGraph(model)(source.ids, mask)[0][source.real], model(source)[source.real], **CLOSE)
        return
    config = model.config
    empty = torch.zeros(2, 2, config.kv_heads or config.heads, 0, config.key_width)
    if kind == "lm":
        prefix = torch.tensor([3]) if config.mask == "prefix" else None
        real = torch.ones_like(target.ids)
        begun, *cache = WriterGraph(model)(target.ids[:, :4], real[:, :4], empty, empty, prefix)
        more, *_ = WriterGraph(model)(target.ids[:, 4:], real, *cache, prefix)
        want = model(target) if prefix is None else model(target, torch.tensor([3, 3]))
    else:
        memory = SourceGraph(model)(source.ids, mask)
        begun, *cache = TargetGraph(model)(target.ids[:, :4], empty, empty, *memory, mask)
        more, *_ = TargetGraph(model)(target.ids[:, 4:], *cache, *memory, mask)
        want = model(source, target)
    torch.testing.assert_close(torch.cat((begun, more), 1), want, **CLOSE)


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    folder = save_bundle(build(preset("rnn-attention", vocabulary=40, width=8)), tmp_path / "bundle")
    with pytest.raises(ExportError, match=re.escape("a recurrent model is not exported to onnx")):
        export(folder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_translator_that_ships(tmp_path: Path) -> None:
    report = export(shipped()["translator"], "onnx", tmp_path / "out")
    assert report.same == report.texts
    assert report.difference < 1e-4
    assert alone(tmp_path / "out" / "translate.py", "I love you very much.", "--to", "it") == "Ti amo molto.\n"
