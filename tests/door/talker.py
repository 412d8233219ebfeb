"""A tiny model with random weights and a chat template: it says nonsense, but in the form of a conversation."""

from __future__ import annotations

from pathlib import Path

import torch

from regard.bundle import save_bundle
from regard.config import parse_model
from regard.interop.vocabularies import Pieces, over_bytes
from regard.models import build
from regard.text.foreign import ForeignTokenizer, Roles
from tests.interop.ggufs import CHATML, byte_level


def talker(folder: Path, template: str | None = CHATML, *, context: int = 256) -> Path:
    """The folder of its bundle."""
    words = byte_level()
    library = over_bytes(Pieces(words["tokens"], words["kinds"], merges=words["merges"]), "smollm")
    tokenizer = ForeignTokenizer(library, Roles(pad=2, start=1, end=2, chat=template))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder / "tokenizer.json")
    shape = {
        "layers": 1,
        "width": 32,
        "heads": 4,
        "feedforward": 48,
        "positions": "rotary",
        "context": context,
        "dropout": 0.0,
        "tied": False,
    }
    settings = {"kind": "lm", "vocabulary": len(words["tokens"]), "pad_token": 2, "start_token": 1, "end_token": 2, "stop_tokens": [0]}
    torch.manual_seed(5)
    network = build(parse_model(settings | shape))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        network.deembed.weight[2] *= 3.0  # now and then it has said all it wanted to
    return save_bundle(network, folder / "bundle", tokenizer=folder / "tokenizer.json")
