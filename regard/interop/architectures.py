"""The architectures of other libraries that have a counterpart here, by the name that their configs have for them."""

from __future__ import annotations

from regard.interop.encoder_decoders import BART, MARIAN, T5
from regard.interop.encoders import BERT, DISTILBERT, ROBERTA
from regard.interop.language_models import GPT2, LLAMA, QWEN2
from regard.interop.parts import Architecture, Part, linear

__all__ = ["ARCHITECTURES", "Architecture", "Part", "linear"]

ARCHITECTURES = {
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "gpt2": GPT2,
    "llama": LLAMA,
    "qwen2": QWEN2,
    "t5": T5,
    "marian": MARIAN,
    "bart": BART,
}
