"""Cross-entropy as a sum and a count, never a mean: so that accumulation, packing and several processes agree to the last digit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


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
