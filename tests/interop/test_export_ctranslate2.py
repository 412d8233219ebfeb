"""Exported to CTranslate2: the oracle is CTranslate2 itself, which loads what was written and answers."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.bundle import load_bundle
from regard.data.batch import Tokens
from regard.interop import loops
from regard.interop.export import export
from regard.interop.original import SENTENCES, ExportError, Original
from regard.shipped import shipped
from tests.interop.exported import FEW, bundle, let_words_differ

ctranslate2 = pytest.importorskip("ctranslate2")
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
PRE: dict[str, Any] = {"norm_place": "before"}
LLAMA: dict[str, Any] = {
    "norm": "rms", "norm_place": "before", "positions": "rotary", "position_layout": "halves", "activation": "swiglu", "bias": "none",
    "embedding_scale": False,
}  # fmt: skip
T5: dict[str, Any] = {
    "norm": "rms", "norm_place": "before", "positions": "relative", "attention_scale": 1.0, "bias": "none", "embedding_scale": False,
    "logit_scale": 24**-0.5, "activation": "geglu-tanh",
}  # fmt: skip
TRANSLATORS: dict[str, dict[str, Any]] = {
    "translator": PRE | {"decoder_layers": 1},
    "paper": {"output_bias": True, "tied": False},
    "learned": {"positions": "learned", "embedding_norm": True, "activation": "gelu", "norm_epsilon": 1e-3},
    "t5": T5,
    "rotary": PRE | {"positions": "rotary", "bias": "qkv", "activation": "silu"},
    "shared keys": PRE | {"kv_heads": 2, "head_width": 8},
    "no positions": PRE | {"positions": "none"},
    "two vocabularies": PRE | {"source_vocabulary": 320},
    "scaled": PRE | {"attention_scale": 0.2, "logit_scale": 0.5, "activation": "gelu-tanh"},
    "halves": PRE | {"position_layout": "halves", "embedding_scale": False},
}
WRITERS: dict[str, dict[str, Any]] = {
    "gpt2": PRE | {"positions": "learned", "activation": "gelu-tanh", "embedding_scale": False},
    "llama": LLAMA | {"kv_heads": 2},
    "llama, wide heads": LLAMA | {"head_width": 8, "bias": "all", "tied": False},
    "llama, longer": LLAMA | {"rotary_scaling": {"kind": "linear", "factor": 2.0}, "rotary_base": 5000.0},
    "interleaved": LLAMA | {"position_layout": "interleaved", "kv_heads": 1},
    "alibi": PRE | {"positions": "alibi"},
    "alibi, norm after": {"positions": "alibi", "heads": 3},
    "sinusoidal": {"output_bias": True},
}


@pytest.mark.parametrize("name", TRANSLATORS)
def test_encoder_decoders_answer_the_same(name: str, tmp_path: Path) -> None:
    folder = bundle(tmp_path, "seq2seq", **TRANSLATORS[name])
    report = export(folder, "ctranslate2", tmp_path / "out", sentences=FEW)
    assert (report.made, report.same, report.texts) == ("a CTranslate2 Translator in float32", len(FEW), len(FEW))
    assert report.difference < 1e-3
    translator = ctranslate2.Translator(str(tmp_path / "out"), intra_threads=1)
    original = Original(folder, FEW)
    for row, target in zip(original.rows, original.begun, strict=True):  # one by one, where the check had a batch
        scored = translator.score_batch([[original.source_names[id] for id in row]], [[original.names[id] for id in target[1:]]])
        with torch.no_grad():
            logits = original.network(Tokens.pad([row]), Tokens.pad([target])).log_softmax(-1)[0]
        want = logits.gather(1, torch.tensor([*target[1:], 2])[:, None])[:, 0]
        np.testing.assert_allclose(scored[0].log_probs, want.numpy(), atol=1e-3)


@pytest.mark.parametrize("name", WRITERS)
def test_language_models_answer_the_same(name: str, tmp_path: Path) -> None:
    folder = bundle(tmp_path, "lm", **WRITERS[name])
    report = export(folder, "ctranslate2", tmp_path / "out", sentences=FEW)
    assert (report.made, report.same) == ("a CTranslate2 Generator in float32", len(FEW))
    assert report.difference < 1e-3
    generator = ctranslate2.Generator(str(tmp_path / "out"), intra_threads=1)
    rows = [[1, *range(5, 45)], [1, 7, 9], [1]]
    got = np.array(generator.forward_batch(rows))
    tokens = Tokens.pad(rows)
    with torch.no_grad():
        want = load_bundle(folder).model(tokens)
    np.testing.assert_allclose(got[tokens.real.numpy()], want[tokens.real].numpy(), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["seq2seq", "lm"])
def test_eight_bits(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_words_differ(monkeypatch)
    folder = bundle(tmp_path, kind, **PRE)
    before = {name: tensor.clone() for name, tensor in load_bundle(folder).model.state_dict().items()}
    report = export(folder, "ctranslate2", tmp_path / "out", precision="int8", sentences=FEW)
    assert report.made.endswith("in int8")
    assert 1e-4 < report.difference < 1.0
    small, large = (tmp_path / "out" / "model.bin").stat().st_size, sum(tensor.numel() * 4 for tensor in before.values())
    assert small < large / 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in load_bundle(folder).model.state_dict().items())


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("encoder", {}, "CTranslate2 runs encoder-decoders and language models, not encoders with heads; export it to onnx"),
        ("rnn", {}, "not recurrent models"),
        ("seq2seq", {"positions": "alibi"}, "its encoder knows no ALiBi"),
        ("lm", {"window": 4}, "positions see no further than a window (model.window)"),
        ("lm", {"mask": "prefix"}, "the prompt sees itself in both directions (model.mask = 'prefix')"),
        ("lm", LLAMA | {"rotary_scaling": {"kind": "llama3", "factor": 8.0}}, "scaled as in Llama 3 (model.rotary_scaling)"),
    ],
)  # fmt: skip
def test_what_it_has_not_is_refused(kind: str, settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    if kind == "rnn":
        from regard.bundle import save_bundle
        from regard.models import build
        from regard.presets import preset

        folder = save_bundle(build(preset("rnn-plain", vocabulary=40, width=8)), tmp_path / "bundle")
    else:
        folder = bundle(tmp_path, kind, **settings)
    with pytest.raises(ExportError, match=re.escape(says)):
        export(folder, "ctranslate2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_program_beside_it(tmp_path: Path) -> None:
    """Runs on its own, without regard or PyTorch, and writes what we write."""
    folder = bundle(tmp_path, "seq2seq", tags=("it", "de"), **PRE)
    export(folder, "ctranslate2", tmp_path / "out", sentences=FEW)
    original = Original(folder, FEW)
    mine = [number for number in range(len(FEW)) if number % 2]  # those that were to be German
    blocked = "import sys; sys.modules.update(torch=None, regard=None); import runpy; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    asked = [sys.executable, "-c", blocked, str(tmp_path / "out" / "translate.py"), *(FEW[number] for number in mine)]
    done = subprocess.run(
        [*asked, "--to", "de", "--beam-size", "1"], capture_output=True, text=True, check=False, cwd=tmp_path, env=ONE_THREAD
    )
    assert done.returncode == 0, done.stderr
    want = [original.text(original.written[number]) for number in mine]
    assert done.stdout.splitlines() == [line for text in want for line in text.splitlines()]
    with pytest.raises(SystemExit, match="say which language to write with --to: it, de"):
        loops.program("ctranslate2", "seq2seq").Translator(tmp_path / "out", threads=1).translate(FEW)
    card = (tmp_path / "out" / "README.md").read_text()
    assert 'python translate.py "I love you very much." --to de' in card
    assert "6 of 6 answers are the same" in card


def test_the_program_that_continues(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "lm", **LLAMA)
    export(folder, "ctranslate2", tmp_path / "out", sentences=FEW)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "out" / "generate.py"), FEW[0], "--length", "24"],
        capture_output=True,
        text=True,
        check=True,
        env=ONE_THREAD,
    )
    original = Original(folder, FEW[:1])
    assert done.stdout.rstrip("\n") == original.text([*original.rows[0], *original.written[0]]).rstrip("\n")


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "share"), [("float32", 0.99), ("int8", 0.75)])
def test_the_translator_that_ships(precision: str, share: float, tmp_path: Path) -> None:
    """A thousand captions, each into one of the seven languages: greedy text is the same."""
    root = os.environ.get("REGARD_DATA")
    captions = Path(root or "") / "multi30k" / "test_2016_flickr.en.gz"
    if root is None or not captions.is_file():
        pytest.skip("needs REGARD_DATA with multi30k/test_2016_flickr.en.gz")
    with gzip.open(captions, "rt", encoding="utf-8") as file:
        sentences = [line.strip() for line in file][:1000]
    report = export(shipped()["translator"], "ctranslate2", tmp_path / "out", precision=precision, sentences=sentences)
    print(json.dumps(report.as_json(), indent=1, ensure_ascii=False))
    assert report.texts == 1000
    assert report.same >= share * 1000
    assert len(report.others) == 1000 - report.same


@pytest.mark.slow
def test_the_translator_on_our_own_sentences(tmp_path: Path) -> None:
    report = export(shipped()["translator"], "ctranslate2", tmp_path / "out")
    assert (report.texts, report.same) == (len(SENTENCES), len(SENTENCES))
    assert report.difference < 1e-4
