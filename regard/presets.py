"""The named shapes that people know, and small ones for a laptop."""

from __future__ import annotations

from typing import Any

from regard.config import ModelConfig, parse_model
from regard.errors import ConfigError, nearest

_LLAMA = {
    "kind": "lm", "positions": "rotary", "position_layout": "halves", "norm": "rms", "norm_place": "before", "activation": "swiglu",
    "bias": "none", "embedding_scale": False, "dropout": 0.0, "init": "normal",
}  # fmt: skip
_GPT = {
    "kind": "lm", "positions": "learned", "norm": "layer", "norm_place": "before", "activation": "gelu-tanh", "embedding_scale": False,
    "init": "normal",
}  # fmt: skip
_BERT = {
    "kind": "encoder", "positions": "learned", "norm": "layer", "norm_place": "after", "norm_epsilon": 1e-12, "activation": "gelu",
    "embedding_scale": False, "embedding_norm": True, "attention_dropout": 0.1, "init": "normal",
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's Table 3, with its shared vocabulary of 37,000.
    "transformer-base": {"kind": "seq2seq", "vocabulary": 37000},
    "transformer-big": {"kind": "seq2seq", "vocabulary": 37000, "width": 1024, "heads": 16, "feedforward": 4096, "dropout": 0.3},
    # Small data, or a laptop: norm before, which trains without care.
    "transformer-small": {
        "kind": "seq2seq", "vocabulary": 8000, "layers": 4, "width": 256, "heads": 4, "feedforward": 1024, "norm_place": "before",
    },
    "transformer-tiny": {
        "kind": "seq2seq", "vocabulary": 10000, "layers": 4, "width": 128, "heads": 4, "feedforward": 256, "norm_place": "before",
        "dropout": 0.3,
    },
    "t5-small": {
        "kind": "seq2seq", "vocabulary": 32128, "layers": 6, "width": 512, "heads": 8, "head_width": 64, "feedforward": 2048,
        "positions": "relative", "attention_scale": 1.0, "norm": "rms", "norm_place": "before", "norm_epsilon": 1e-6, "bias": "none",
        "embedding_scale": False, "logit_scale": 512**-0.5, "pad_token": 0, "start_token": 0, "end_token": 1, "init": "normal",
    },
    "gpt2": _GPT | {
        "vocabulary": 50257, "layers": 12, "width": 768, "heads": 12, "feedforward": 3072, "context": 1024, "attention_dropout": 0.1,
        "pad_token": 50256, "start_token": 50256, "end_token": 50256,
    },
    "gpt-small": _GPT | {"vocabulary": 8000, "layers": 6, "width": 384, "heads": 6, "feedforward": 1536, "context": 256, "dropout": 0.2},
    "llama-tiny": _LLAMA | {
        "vocabulary": 32000, "layers": 6, "width": 288, "heads": 6, "kv_heads": 3, "feedforward": 768, "context": 1024,
    },
    "bert-base": _BERT | {
        "vocabulary": 30522, "layers": 12, "width": 768, "heads": 12, "feedforward": 3072, "context": 512, "token_types": 2,
        "pooler": True, "pooling": "first", "start_token": 101, "end_token": 102,
    },
    "bert-small": _BERT | {
        "vocabulary": 8000, "layers": 4, "width": 256, "heads": 4, "feedforward": 1024, "context": 512, "masked_words": True,
    },
    "rnn-attention": {"kind": "rnn", "vocabulary": 10000, "attention": "additive", "cell": "gru", "width": 512},
    "rnn-plain": {"kind": "rnn", "vocabulary": 10000, "attention": "none", "cell": "lstm", "layers": 2, "width": 512},
}  # fmt: skip


def preset(name: str, **settings: Any) -> ModelConfig:
    """The config of that name, with any of its settings changed."""
    if name not in PRESETS:
        raise ConfigError(f"preset {name!r} is unknown; {nearest(name, PRESETS)}")
    return parse_model(PRESETS[name] | settings, where=f"preset {name}")
