"""Small models of every family, for the laws."""

from __future__ import annotations

from typing import Any

import torch

from regard.data.batch import Tokens
from regard.models import Network, build
from regard.presets import preset

VOCABULARY = 31
TRANSFORMERS = ["transformer-base", "t5-small", "gpt2", "llama-tiny", "bert-base"]
SEQ2SEQ = ["transformer-base", "t5-small", "rnn-attention", "rnn-plain"]
LANGUAGE_MODELS = ["gpt2", "llama-tiny"]
FAMILIES = [*TRANSFORMERS, "rnn-attention", "rnn-plain"]
WRITERS = [name for name in FAMILIES if name != "bert-base"]


def small(name: str, backend: str = "sdpa", **settings: Any) -> Network:
    """A preset in its own style but small, in float64, without dropout, every weight random."""
    shape: dict[str, Any] = {"vocabulary": VOCABULARY, "width": 24, "layers": 2, "dropout": 0.0, "context": 64}
    shape |= {"pad_token": 0, "start_token": 1, "end_token": 2}
    if not name.startswith("rnn"):
        shape |= {"heads": 4, "feedforward": 40, "attention_dropout": 0.0}
        shape["kv_heads"] = 2 if name == "llama-tiny" else None
        if name == "t5-small":
            shape["head_width"] = 6
    if name == "bert-base":
        shape |= {"masked_words": True, "labels": ["no", "yes"]}
    torch.manual_seed(3)
    model = build(preset(name, **(shape | settings)), backend).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def sentences(*lengths: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def outputs(model: Network, source: Tokens, target: Tokens, **more: Any) -> torch.Tensor:
    """The logits a model is trained on, whatever its family; one-sided families read the target."""
    if model.config.kind in ("seq2seq", "rnn"):
        return model(source, target, **more)
    if model.config.kind == "lm":
        return model(target, **more)
    return model.fill(model(target, **more))
