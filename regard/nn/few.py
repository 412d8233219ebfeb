"""Attention of a few queries, as in decoding, where kernels made for many queries are slow.

On a CPU it is the formula as two batched products; on a GPU, `one_query` has a kernel for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.nn import backends
from regard.nn.backends import HAS_TRITON, SHORT_WIDTHS, Attended
from regard.nn.instead import alike, given_up, instead, kinds
from regard.nn.masks import Mask
from regard.nn.tap import recording

FEW = 16
IN_ONE = "attention of one position"


def few_on_gpu(query: Tensor, others: Sequence[Tensor], mask: Mask | None, bias: Tensor | None) -> bool:
    """Whether the kernel for one position serves these queries (rows, heads, queries, width), and nobody wants more than its result.

    `others`: all keys and values that it reads or writes, each (rows, kv_heads, length, width).
    """
    count = query.shape[2] * query.shape[1] // others[0].shape[1]
    if not served_on_gpu(query.device, query.dtype, query.shape[3], count) or bias is not None or torch.is_grad_enabled():
        return False
    plain = mask is None or (isinstance(mask, Mask) and mask.packed is None)
    if not plain or recording() or backends.overridden() or torch.compiler.is_compiling() or given_up(IN_ONE):
        return False
    return alike(query, *others) or instead(IN_ONE, f"its operands are in {kinds(query, *others)}")


def served_on_gpu(device: torch.device, dtype: torch.dtype, width: int, queries: int) -> bool:
    """`queries`: of one row that share a key head."""
    half = dtype in (torch.bfloat16, torch.float16)
    return device.type == "cuda" and half and HAS_TRITON and queries <= FEW and width in SHORT_WIDTHS


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
