"""Where a GPU's faster way does not serve or can't be started, the definition is taken, and one line says so."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from regard.errors import RegardError, RegardWarning, out_of_memory

_told: set[str] = set()
_given_up: set[str] = set()
_started: dict[tuple[object, ...], bool] = {}


def instead(what: str, why: str) -> Literal[False]:
    """Says once that the definition computes this, and why; the answer to whether the faster way serves."""
    if what not in _told:
        _told.add(what)
        warnings.warn(f"{what} has a faster way on a GPU, but {why}; PyTorch's own operations do it", RegardWarning, stacklevel=2)
    return False


def given_up(what: str) -> bool:
    """Whether it turned out that it can't be started here."""
    return what in _given_up


def give_up(what: str, error: Exception) -> None:
    """A kernel or a recording that can't be started here is not tried again. What went wrong otherwise is the caller's."""
    if isinstance(error, RegardError) or out_of_memory(error):
        raise error
    _given_up.add(what)
    instead(what, f"it can't be started ({str(error).strip().split(chr(10))[0] or type(error).__name__})")


def starts(what: str, trial: Callable[[], object], *case: object) -> bool:
    """Whether a kernel can be started for such a case, as of a dtype: tried once on a few numbers, since amid a step it would be too late.

    A trial neither draws random numbers nor waits for the device. Compiled code tries nothing: whoever compiles tries before.
    """
    if torch.compiler.is_compiling():
        return not given_up(what)
    if (what, *case) not in _started:
        try:
            trial()
        except Exception as error:
            give_up(what, error)
            _started[what, *case] = False
        else:
            _started[what, *case] = True
    return _started[what, *case]


def alike(first: Tensor, *others: Tensor) -> bool:
    """Whether all are of one dtype, and the numbers of a row lie side by side."""
    return all(each.dtype == first.dtype and each.stride(-1) == 1 for each in (first, *others))


def kinds(*operands: Tensor) -> str:
    """Their dtypes, for people."""
    names = {str(each.dtype).removeprefix("torch."): None for each in operands}
    return " and ".join(names) + ("" if all(each.stride(-1) == 1 for each in operands) else " with gaps")
