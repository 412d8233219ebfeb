"""R-Drop (Liang et al. 2021): a batch is read twice with different dropout, and the two predictions must agree."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import ShapeError
from regard.training.loss import Loss, cross_entropy


def r_drop(first: Tensor, second: Tensor, labels: Tensor, real: Tensor | None = None, *, strength: float, smoothing: float = 0.0) -> Loss:
    """The summed loss of two passes with logits (…, vocabulary) over the same labels (…), where `real`.

    Half of the paper's, so that it is that of one pass where both agree: the mean of the two cross-entropies, plus `strength` (its α) times
    half of the divergence between them. What is counted are the labels, each once.
    """
    if first.shape != second.shape:
        raise ShapeError(f"the two passes of R-Drop gave {tuple(first.shape)} and {tuple(second.shape)}; they read the same batch")
    one, other = (cross_entropy(logits, labels, real, smoothing=smoothing) for logits in (first, second))
    return Loss((one.total + other.total) / 2 + strength / 2 * divergence(first, second, real), one.count)


def divergence(first: Tensor, second: Tensor, real: Tensor | None = None) -> Tensor:
    """How much two predictions differ: (KL(p‖q) + KL(q‖p)) / 2, summed where `real`; 0 where they are the same."""
    p, q = (F.log_softmax(logits.float() if logits.dtype.itemsize < 4 else logits, -1) for logits in (first, second))
    # The two divergences together are Σ (p - q)(log p - log q): never negative, term by term, so nothing cancels.
    apart = ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2
    return apart.sum() if real is None else torch.where(real, apart, 0.0).sum()
