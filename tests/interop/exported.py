"""Small bundles with random weights and a real tokenizer, to be exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.bundle import save_bundle
from regard.config import parse_model
from regard.interop import export_ctranslate2
from regard.interop.original import SENTENCES
from regard.models import build
from regard.recipe import TokenizerSettings
from regard.text.tokenizer import Tokenizer

SHAPE: dict[str, Any] = {"width": 24, "heads": 4, "layers": 2, "feedforward": 40, "context": 64, "dropout": 0.0, "attention_dropout": 0.0}
FEW = SENTENCES[:6]


def let_words_differ(patch: pytest.MonkeyPatch) -> None:
    """In 8 bits: to random weights words are nearly alike, and which of them is taken goes by how a CPU adds."""
    patch.setitem(export_ctranslate2.ALIKE, "int8", 0.0)


def tokenizer(tags: tuple[str, ...] = (), **settings: Any) -> Tokenizer:
    return Tokenizer.train(SENTENCES, TokenizerSettings(**({"kind": "bpe", "size": 320} | settings)), tags)


def bundle(folder: Path, kind: str, *, tags: tuple[str, ...] = (), words: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A bundle of that kind, every weight random, so that no two tensors could be swapped unseen."""
    own = tokenizer(tags, **(words or {}))
    config = parse_model({"kind": kind, "vocabulary": len(own), **SHAPE, **settings})
    torch.manual_seed(5)
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder.mkdir(parents=True, exist_ok=True)
    own.save(folder / "made.json")
    other = folder / "made.json" if settings.get("source_vocabulary") else None
    return save_bundle(model, folder / "bundle", tokenizer=folder / "made.json", source_tokenizer=other)
