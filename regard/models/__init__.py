"""The model families, and `build`, which makes the one that a config describes."""

from __future__ import annotations

from regard.config import EncoderConfig, LanguageModelConfig, ModelConfig, RnnConfig, Seq2SeqConfig
from regard.models.base import Generator, Memory, Network
from regard.models.encoder import Encoder
from regard.models.lm import LanguageModel
from regard.models.rnn import RnnSeq2Seq
from regard.models.seq2seq import Seq2Seq
from regard.models.state import State

__all__ = ["Encoder", "Generator", "LanguageModel", "Memory", "Network", "RnnSeq2Seq", "Seq2Seq", "State", "build"]


def build(config: ModelConfig, backend: str = "sdpa") -> Network:
    """A model with fresh weights, as the config describes it."""
    match config:
        case Seq2SeqConfig():
            return Seq2Seq(config, backend)
        case LanguageModelConfig():
            return LanguageModel(config, backend)
        case EncoderConfig():
            return Encoder(config, backend)
        case RnnConfig():
            return RnnSeq2Seq(config, backend)
