"""How close two ways of computing the same model have to come: by the arithmetic, not by what one machine gave."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.nn.layers import Block

# Roundings of a block, one after another: norms, projections, scores, weights, their average, two products of the feed-forward; and each is
# of sums of some hundred terms, whose order is the machine's own and moves them by several units of the last place.
ROUNDINGS, UNITS = 8, 8


def tolerance(want: Tensor, blocks: int) -> float:
    """What may be between two results of so many blocks, the first and last product counted as one more: of the largest, by its type."""
    numbers = want.detach().abs()
    largest = float(numbers[numbers.isfinite()].max()) if numbers.numel() else 0.0
    return torch.finfo(want.dtype).eps * ROUNDINGS * UNITS * (blocks + 1) * largest


def blocks(model: nn.Module) -> int:
    return sum(isinstance(module, Block) for module in model.modules())


def assert_close(got: Tensor, want: Tensor, model: nn.Module) -> None:
    """Two results of the same model."""
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance(want, blocks(model)))
