"""Cross-entropy as a sum and a count, never a mean: so that accumulation, packing and several processes agree to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from regard.nn.backends import HAS_TRITON
from regard.nn.instead import give_up, given_up, instead, kinds

LOGITS = {"cuda": 2**29, "cpu": 2**23}  # how many are there at a time: enough to keep the device busy, few enough to forget their memory
SURPRISE, WIDE = "the loss over a vocabulary", "the gradient of a vocabulary"
SERVED = (torch.bfloat16, torch.float16, torch.float32)  # the kernel adds up in float32
ALIGNED = 128  # a vocabulary of another size than a multiple of this slows the matrix unit down by half


@dataclass(frozen=True)
class Loss:
    """The summed loss of a batch and how many tokens it is the sum of."""

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)


def cross_entropy(logits: Tensor, labels: Tensor, real: Tensor | None = None, *, smoothing: float = 0.0) -> Loss:
    """How surprised the model is by the labels (…) under its logits (…, vocabulary), where `real`; padding is never counted.

    With smoothing ε the target is 1 - ε on the label and ε spread evenly over the whole vocabulary.
    """
    logs = F.log_softmax(logits.float() if logits.dtype.itemsize < 4 else logits, -1)
    surprise = -logs.gather(-1, labels[..., None]).squeeze(-1)
    if smoothing:
        surprise = (1 - smoothing) * surprise - smoothing * logs.mean(-1)
    if real is None:
        return Loss(surprise.sum(), torch.tensor(surprise.numel(), device=surprise.device))
    return Loss(surprise.masked_fill(~real, 0.0).sum(), real.sum())


def vocabulary_loss(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, real: Tensor, *, smoothing: float = 0.0, scale: float = 1.0
) -> Tensor:
    """The summed cross-entropy of the logits weight · (scale · states) + bias, a few tokens at a time.

    The same as cross_entropy(linear(…)).total with its gradients, but there are never more than some of the logits, and none in float32
    where states are in half precision: a batch's logits would take more memory than all else.
    """
    total: Tensor = _VocabularyLoss.apply(states, weight, bias, labels, real, smoothing, scale)  # type: ignore[no-untyped-call]
    return total


class _VocabularyLoss(torch.autograd.Function):
    """The last step of a pass forwards knows all that the first step back needs, so both are taken while the logits are there."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, real: Tensor, smoothing: float, scale: float
    ) -> Tensor:
        device, vocabulary = states.device.type, weight.shape[0]
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        sum_dtype = torch.promote_types(dtype, torch.float32)
        extra = -vocabulary % ALIGNED if device == "cuda" else 0
        x = states.flatten(0, -2).to(dtype)
        x = x if scale == 1.0 else x * scale
        matrix = F.pad(weight.to(dtype), (0, 0, 0, extra))
        offset = None if bias is None else F.pad(bias.to(dtype), (0, extra))
        labels, real = labels.flatten(), real.flatten()
        total = torch.zeros((), dtype=sum_dtype, device=states.device)
        to_states, to_weight, to_bias = torch.empty_like(x) if ctx.needs_input_grad[0] else None, None, None
        for here in _parts(len(x), LOGITS.get(device, LOGITS["cpu"]) // (vocabulary + extra)):
            logits = F.linear(x[here], matrix, offset)  # (tokens, vocabulary)
            total += _surprise(logits, labels[here], real[here], smoothing, vocabulary, slopes=any(ctx.needs_input_grad)).sum()
            if to_states is not None:
                torch.mm(logits, matrix, out=to_states[here])
            if ctx.needs_input_grad[1]:
                to_weight = _add(to_weight, _wide_product(logits.T, x[here], sum_dtype))
            if ctx.needs_input_grad[2]:
                to_bias = _add(to_bias, logits.sum(0, dtype=sum_dtype))
        if to_states is not None:
            to_states = (to_states if scale == 1.0 else to_states * scale).view_as(states)
        to_weight = None if to_weight is None else to_weight[:vocabulary]
        to_bias = None if to_bias is None else to_bias[:vocabulary]
        ctx.save_for_backward(to_states, to_weight, to_bias)
        ctx.dtypes = (states.dtype, weight.dtype, None if bias is None else bias.dtype)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        found = (None if kept is None else (kept * slope).to(dtype) for kept, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True))
        return (*found, None, None, None, None)


def _parts(length: int, most: int) -> Iterator[slice]:
    """As few even parts as there may be."""
    size = -(-length // -(-length // max(1, most))) if length else 1
    return (slice(start, start + size) for start in range(0, length, size))


def _surprise(logits: Tensor, labels: Tensor, real: Tensor, smoothing: float, vocabulary: int, *, slopes: bool) -> Tensor:
    """Each token's surprise (tokens,), zero where it is not real. With `slopes`, its gradients take the logits' place."""
    if _served(logits):
        from regard.training.surprise import surprise  # compiles a kernel: only where there is a GPU to run it

        try:
            return surprise(logits, labels, real, smoothing, vocabulary, slopes=slopes)
        except Exception as error:
            give_up(SURPRISE, error)
    logits, padding = logits[:, :vocabulary], logits[:, vocabulary:]
    logs = F.log_softmax(logits.float() if logits.dtype.itemsize < 4 else logits, -1)
    found = -logs.gather(-1, labels[:, None]).squeeze(-1)
    if smoothing:
        found = (1 - smoothing) * found - smoothing * logs.mean(-1)
    if slopes:  # softmax minus what was wanted
        logs.exp_().sub_(smoothing / vocabulary)
        logs.scatter_add_(-1, labels[:, None], logs.new_full((len(labels), 1), smoothing - 1))
        logits.copy_(logs.masked_fill_(~real[:, None], 0.0))
        padding.zero_()
    return found.masked_fill(~real, 0.0)


def _served(logits: Tensor) -> bool:
    """Whether the kernel serves these."""
    if not logits.is_cuda or not HAS_TRITON or given_up(SURPRISE):
        return False
    return logits.dtype in SERVED or instead(SURPRISE, f"its logits are in {kinds(logits)}")


def _wide_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix product whose sums are not rounded to half precision."""
    if left.dtype == dtype:
        return left @ right
    if left.is_cuda and not given_up(WIDE):
        try:
            return torch.mm(left, right, out_dtype=dtype)
        except Exception as error:
            give_up(WIDE, error)
    return (left @ right).to(dtype)


def _add(sum_so_far: Tensor | None, more: Tensor) -> Tensor:
    return more if sum_so_far is None else sum_so_far.add_(more)
