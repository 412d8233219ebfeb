# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"
"""The cross-entropy of rows of logits and its gradient on a GPU: each row is read once from memory and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 4096, 8  # as measured
LOWEST = tl.constexpr(-1e30)
LOG2_E = tl.constexpr(1.4426950408889634)


def surprise(logits: Tensor, labels: Tensor, real: Tensor, smoothing: float, vocabulary: int, *, slopes: bool) -> Tensor:
    """The surprise of each row (rows, at least the vocabulary), zero where it is not real; with `slopes`, gradients replace the logits."""
    found = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _surprise[(len(logits),)](
        *(logits, found, labels, real, logits.stride(0), vocabulary, logits.shape[1], smoothing),
        *(slopes, BLOCK),
        num_warps=WARPS,
    )
    return found


@triton.jit
def _surprise(logits, found, labels, real, step, vocabulary, columns, smoothing, slopes: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    logits += row.to(tl.int64) * step
    lanes = tl.arange(0, block)
    if tl.load(real + row):
        label = tl.load(labels + row)
        wanted = tl.load(logits + label).to(tl.float32)
        # Sums of exponentials relative to the highest so far, in powers of two, which is what the hardware has.
        highest = LOWEST
        total = tl.zeros((block,), tl.float32)
        plain = tl.zeros((block,), tl.float32)
        for start in range(0, vocabulary, block):
            inside = start + lanes < vocabulary
            x = tl.load(logits + start + lanes, mask=inside, other=LOWEST).to(tl.float32)
            plain += tl.where(inside, x, 0.0)
            higher = tl.maximum(highest, tl.max(x, 0) * LOG2_E)
            total = total * tl.exp2(highest - higher) + tl.exp2(x * LOG2_E - higher)
            highest = higher
        logsum = highest + tl.log2(tl.sum(total, 0))
        mean = tl.sum(plain, 0) / vocabulary
        tl.store(found + row, logsum / LOG2_E - (1.0 - smoothing) * wanted - smoothing * mean)
        if slopes:
            for start in range(0, columns, block):
                inside = start + lanes < vocabulary
                x = tl.load(logits + start + lanes, mask=inside, other=LOWEST).to(tl.float32)
                slope = tl.exp2(x * LOG2_E - logsum) - smoothing / vocabulary - tl.where(start + lanes == label, 1.0 - smoothing, 0.0)
                tl.store(logits + start + lanes, tl.where(inside, slope, 0.0), mask=start + lanes < columns)
    else:
        tl.store(found + row, 0.0)
        if slopes:
            for start in range(0, columns, block):
                tl.store(logits + start + lanes, tl.zeros((block,), tl.float32), mask=start + lanes < columns)
