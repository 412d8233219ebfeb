"""A model made ready to write on the machine it is on, in the precision that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor

from regard.decoding.fitting import fit
from regard.decoding.lean import LeanStack
from regard.decoding.pack import Laid, PackedDeembedder, PackedLinear, PackedProjection, Plain, aligned, packed
from regard.decoding.products import FloatProduct, Int8Product, available, sums_in_32_bits
from regard.decoding.reading import uses_int8
from regard.decoding.verify import MEAN_KL, Verification, Walked, failure, said, verify
from regard.errors import ConfigError
from regard.models import LanguageModel, Network, Seq2Seq

WrittenIn = Literal["auto", "float32", "float16", "bfloat16", "int8"]
NARROW = 256  # vectors narrower than this gain nothing from smaller numbers
CLOSE = MEAN_KL  # nats: how much all that is lost may change what is thought of the next word
ROUGH = 0.05  # of the largest number: rounding of a single product to 8 bits makes far less
FINE = 1e-4  # and that of one in float32

M = TypeVar("M", bound=Network)


@dataclass(frozen=True)
class Known:
    """What was found to serve a model: prepared so, it does what its definition does."""

    int8: bool
    flat: bool


@dataclass(frozen=True)
class Prepared(Generic[M]):
    """A model to run: a copy for inference that was found to do what the definition does, or the definition itself."""

    network: M
    verification: Verification | None = None  # None where nothing was substituted
    notes: tuple[str, ...] = ()  # what the user should know, a sentence each
    laid: tuple[Laid, ...] = ()  # what can be used again after an edit

    @property
    def known(self) -> Known | None:
        """What can be remembered, where nothing was wrong with it."""
        if self.notes or not self.laid or self.verification is None or not self.verification.passed:
            return None
        return Known(self.laid[0].kind is Int8Product, isinstance(getattr(self.network, "decoder", None), LeanStack))


def made_ready(model: M, precision: WrittenIn = "auto") -> M:
    """A copy for inference, which shares what it can; the model itself where nothing is gained.

    "auto" is int8 where that is faster and next to nothing is lost, and what the model is in otherwise.
    """
    return prepare(model, precision).network


def prepare(
    model: M, precision: WrittenIn = "auto", *, before: Sequence[Laid] = (), edited: Sequence[Tensor] = (), known: Known | None = None
) -> Prepared[M]:
    """The same, with what was found when it was compared with the definition; where it differs, the definition is used.

    `before`: products of the same model prepared earlier, which are used again but for those of the weights `edited` since. `known`: what
    was found before, for the same weights and the same code, so that nothing need be compared.
    """
    if precision == "int8":
        refuse_int8(model)
    elif model.device.type == "cuda":
        return _on_a_gpu(model) if model.dtype in (torch.bfloat16, torch.float16) else Prepared(model)
    elif model.device.type != "cpu" or model.dtype != torch.float32:
        return Prepared(model)
    if known is not None and available(kind := Int8Product if known.int8 else FloatProduct):
        own = Laid(kind)
        ready = packed(model, own, flat=known.flat)
        fit(ready)
        return Prepared(ready, laid=(own,))
    laid = {each.kind: Laid(each.kind, each, edited) for each in before}
    notes: list[str] = []
    if precision == "int8" or (precision == "auto" and _gains(model)):
        rounded = _in_int8(model, laid.get(Int8Product, Laid(Int8Product)), asked=precision == "int8")
        if rounded.verification is None or rounded.network is not model or precision == "int8":
            return rounded
        notes += rounded.notes
    if not available(FloatProduct):
        return Prepared(model, notes=tuple(notes))
    found = _tried(model, laid.get(FloatProduct, Laid(FloatProduct)), Walked(model))
    return replace(found, notes=(*notes, *found.notes))


def _on_a_gpu(model: M) -> Prepared[M]:
    ready = aligned(model)
    if ready is model:
        return Prepared(model)
    found = verify(model, ready, str(model.dtype).removeprefix("torch."))
    if found.passed:
        return Prepared(ready, found)
    return Prepared(model, found, (f"the vocabulary filled up for a GPU {found.why}, so it is used as it is defined, which is slower",))


def _tried(model: M, laid: Laid, walked: Walked) -> Prepared[M]:
    """A copy in float32 as the definition: with its decoder written out flat, or else without, or else the definition."""
    notes = ""
    for flat in (True, False):
        try:
            ready = packed(model, laid, flat=flat)
        except Exception as error:  # a definition that can't be copied, or is not built as the flat decoder thinks
            found = Verification("float32", (failure("encode", said(error)),))
        else:
            found = walked.compared(ready)
            if found.passed:
                return Prepared(ready, found, (notes,) if notes else (), (laid,))
            if not flat:
                found = found.blaming(_wrong_products(ready, FINE))
        what, instead = ("the flat decoder", "layer by layer") if flat else ("the copy with packed weights", "as it is defined")
        notes = f"{what} {found.why}, so the model runs {instead}, which is right and slower"
    return Prepared(model, found, (notes,))


def _in_int8(model: M, laid: Laid, *, asked: bool) -> Prepared[M]:
    """In 8 bits; the model itself where something is wrong or, unless it was `asked` for, too much is lost.

    Rounding would hide small mistakes. So what is around the products is compared first without it, with products as PyTorch has them.
    """
    if not all(bool(each.sum().isfinite()) for each in model.parameters()):
        broken = "some weights are not finite numbers, which int8 would hide"
        return Prepared(model, notes=(f"{broken}, so the model runs as it is defined; see what made them, or copy it again",))
    walked = Walked(model, score=False)
    around = _tried(model, Laid(Plain), walked)
    if around.network is model:
        return around
    ready = packed(model, laid, flat=isinstance(getattr(around.network, "decoder", None), LeanStack))
    fit(ready)
    found = walked.compared(ready, "int8")
    if found.passed:
        return Prepared(ready, found, around.notes, (laid,))
    wrong = _wrong_products(ready, ROUGH)
    if wrong:
        why = found.blaming(wrong).why
        return Prepared(model, found, (*around.notes, f"the model in int8 {why}, so it runs as it is defined, which is right and slower"))
    if not asked:
        return Prepared(model, found)
    lossy = f"int8, which was asked for, changes what this model expects by {found.mean_kl:.2g} nats a token; float32 changes nothing"
    return Prepared(ready, found, (*around.notes, lossy), (laid,))


def _wrong_products(ready: Network, most: float) -> list[str]:
    """The names of packed weights that, alone, give something else than their own matrix does."""
    wrong = []
    for name, module in ready.named_modules():
        if not isinstance(module, PackedLinear | PackedProjection | PackedDeembedder):
            continue
        product = module.product(slice(None)) if isinstance(module, PackedProjection) else module.product
        x = torch.randn(4, module.weight.shape[1], generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            wanted = torch.nn.functional.linear(x, module.weight, module.bias)
            # Without the range of the rows that the model works with, which these are not.
            off = (product.again()(x) - wanted).abs().max() / wanted.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
        if float(off) > most:
            wrong.append(name)
    return wrong


def refuse_int8(model: Network) -> None:
    """An error where there is no such thing."""
    if model.device.type != "cpu":
        raise ConfigError("int8 is for CPUs; on a GPU take bfloat16, or leave the precision out")
    if model.dtype != torch.float32:
        raise ConfigError(f"int8 is made from float32, and this model is in {str(model.dtype).removeprefix('torch.')}; load it in float32")
    if not available(Int8Product):
        raise ConfigError("this PyTorch has no int8 kernels for this CPU; take float32, or leave the precision out")


def precision_of(model: Network) -> str:
    """What the numbers that a model gives were computed in."""
    return "int8" if uses_int8(model) else str(model.dtype).removeprefix("torch.")


def _gains(model: Network) -> bool:
    """Whether int8 is faster: what an encoder reads at once is nearly as fast in float32, and small models wait for Python."""
    wide = isinstance(model, Seq2Seq | LanguageModel) and model.config.width >= NARROW
    return wide and available(Int8Product) and sums_in_32_bits()


def lost(model: Network, rounded: Network) -> float:
    """How far what a rounded model expects is from what the model does, on random tokens: KL divergence, in nats a token."""
    return verify(model, rounded, "int8").mean_kl
