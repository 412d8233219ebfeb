"""Where a GPU's faster way does not serve, the definition is taken, and one line says so."""

from __future__ import annotations

import warnings
from typing import Literal

from torch import Tensor

_told: set[str] = set()


def instead(what: str, why: str) -> Literal[False]:
    """Says once that the definition computes this, more slowly, and why; the answer to whether the faster way serves."""
    if what not in _told:
        _told.add(what)
        warnings.warn(f"{what}: {why}, which its GPU kernel does not serve; PyTorch's own operations do it, more slowly", stacklevel=2)
    return False


def alike(first: Tensor, *others: Tensor) -> bool:
    """Whether all are of one dtype, and the numbers of a row lie side by side."""
    return all(each.dtype == first.dtype and each.stride(-1) == 1 for each in (first, *others))


def kinds(*operands: Tensor) -> str:
    """Their dtypes, for people."""
    names = {str(each.dtype).removeprefix("torch."): None for each in operands}
    return " and ".join(names) + ("" if all(each.stride(-1) == 1 for each in operands) else " with gaps")
