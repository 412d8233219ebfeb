"""Attention of a few queries on a CPU, as in decoding: the formula as two batched products, which beats kernels made for many queries."""

from __future__ import annotations

from torch import Tensor

from regard.nn.backends import Attended
from regard.nn.masks import Mask

FEW = 16


def suits(query: Tensor, mask: Mask) -> bool:
    return query.device.type == "cpu" and query.shape[2] <= FEW and mask.packed is None and not query.requires_grad


def few(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, bias: Tensor | None, scale: float, dropout: float) -> Attended:
    """softmax(QKᵀ · scale) V; query heads that share a key head stand side by side as its queries."""
    rows, heads, queries, width = query.shape
    together = (query * scale).reshape(rows, key.shape[1], heads // key.shape[1] * queries, width)
    scores = (together @ key.transpose(-2, -1)).view(rows, heads, queries, key.shape[2])
    if bias is not None:
        scores = scores + bias
    if mask.visible is not None and mask.blind is None:
        scores = scores.masked_fill_(~mask.visible, float("-inf"))
        weights = scores.softmax(-1)
    else:
        weights = mask.softmax(scores)
    output = weights.view(rows, key.shape[1], heads // key.shape[1] * queries, key.shape[2]) @ value
    return Attended(output.view(rows, heads, queries, value.shape[3]))
