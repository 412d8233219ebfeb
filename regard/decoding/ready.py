"""A model made ready to write on the machine it is on, in the precision that was asked for."""

from __future__ import annotations

from typing import Literal, TypeVar

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.fitting import fit
from regard.decoding.pack import aligned, packed
from regard.decoding.products import FloatProduct, Int8Product, available, sums_in_32_bits
from regard.errors import ConfigError
from regard.models import Encoder, LanguageModel, Network, Seq2Seq

WrittenIn = Literal["auto", "float32", "float16", "bfloat16", "int8"]
NARROW = 256  # vectors narrower than this gain nothing from smaller numbers
CLOSE = 0.02  # nats: how much all that is lost may change what is thought of the next word

M = TypeVar("M", bound=Network)


def made_ready(model: M, precision: WrittenIn = "auto") -> M:
    """A copy for inference, which shares what it can; the model itself where nothing is gained.

    "auto" is int8 where that is faster and next to nothing is lost, and what the model is in otherwise.
    """
    if precision == "int8":
        refuse_int8(model)
        return _in_int8(model)
    if model.device.type == "cuda":
        return aligned(model) if model.dtype in (torch.bfloat16, torch.float16) else model
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return model
    if precision == "auto" and _gains(model):
        rounded = _in_int8(model)
        if lost(model, rounded) <= CLOSE:
            return rounded
    return packed(model, FloatProduct) if available(FloatProduct) else model


def _in_int8(model: M) -> M:
    ready = packed(model, Int8Product)
    fit(ready)
    return ready


def refuse_int8(model: Network) -> None:
    """An error where there is no such thing."""
    if model.device.type != "cpu":
        raise ConfigError("int8 is for CPUs; on a GPU take bfloat16, or leave the precision out")
    if model.dtype != torch.float32:
        raise ConfigError(f"int8 is made from float32, and this model is in {str(model.dtype).removeprefix('torch.')}; load it in float32")
    if not available(Int8Product):
        raise ConfigError("this PyTorch has no int8 kernels for this CPU; take float32, or leave the precision out")


def uses_int8(model: Network) -> bool:
    return any(isinstance(getattr(module, "product", None), Int8Product) for module in model.modules())


def _gains(model: Network) -> bool:
    """Whether int8 is faster: what an encoder reads at once is nearly as fast in float32, and small models wait for Python."""
    wide = isinstance(model, Seq2Seq | LanguageModel) and model.config.width >= NARROW
    return wide and available(Int8Product) and sums_in_32_bits()


@torch.inference_mode()
def lost(model: Network, rounded: Network) -> float:
    """How far what a rounded model expects is from what the model does, on a line of random words: KL divergence, in nats a word."""
    config, chance = model.config, torch.Generator().manual_seed(0)
    length = min(12, config.context)
    read = torch.randint(getattr(config, "source_vocabulary", None) or config.vocabulary, (1, length), generator=chance)
    written = torch.randint(config.vocabulary, (1, length), generator=chance)
    before, after = (_expected(each, Tokens(read), Tokens(written)) for each in (model, rounded))
    return float((before.exp() * (before - after)).sum(-1).mean())


def _expected(model: Network, source: Tokens, target: Tokens) -> Tensor:
    assert not isinstance(model, Encoder)
    logits: Tensor = model(source, target) if isinstance(model, Seq2Seq) else model(target)
    return logits.float().log_softmax(-1)
