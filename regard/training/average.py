"""Averages of weights over time, which are often better than the weights of any one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from regard.errors import TrainingError


class Ema:
    """An exponential moving average: with each update, momentum · average + (1 - momentum) · weights.

    With `warmup` the momentum of update t (from 1) is at most (1 + t) / (10 + t), so that the first, random weights are soon forgotten.
    Averages are kept in float32 at least: small shares of new weights would be rounded away in bfloat16.
    """

    def __init__(self, weights: Mapping[str, Tensor], momentum: float, *, warmup: bool = True) -> None:
        self.momentum, self.warmup = momentum, warmup
        self.updates = 0
        self._shapes = {name: tensor.shape for name, tensor in weights.items()}
        self._dtypes = {name: tensor.dtype for name, tensor in weights.items()}
        self._kept = {name: tensor.detach().to(_wide(tensor.dtype), copy=True) for name, tensor in weights.items()}

    @torch.no_grad()
    def update(self, weights: Mapping[str, Tensor]) -> None:
        """Takes in the weights of a step; what is no floating-point number is taken as it is."""
        _check_same(weights, self._shapes, "the weights")
        self.updates += 1
        momentum = min(self.momentum, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.momentum
        floats = [name for name, tensor in self._kept.items() if tensor.is_floating_point()]
        if floats:
            new = [weights[name].detach().to(self._kept[name].dtype) for name in floats]
            torch._foreach_lerp_([self._kept[name] for name in floats], new, 1 - momentum)
        for name in self._kept.keys() - set(floats):
            self._kept[name].copy_(weights[name])

    def weights(self) -> dict[str, Tensor]:
        """The averages, in the precision of the weights."""
        return {name: tensor.to(self._dtypes[name]) for name, tensor in self._kept.items()}

    def state_dict(self) -> dict[str, Any]:
        """How many updates there were, and the averages: the tensors in use, not copies."""
        return {"updates": self.updates, "weights": dict(self._kept)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _check_same(state["weights"], self._shapes, "the saved averages")
        self.updates = int(state["updates"])
        for name, tensor in self._kept.items():
            tensor.copy_(state["weights"][name])


def average(checkpoints: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several sets of weights, summed in float64; what is no floating-point number is the last one's.

    They may be read one after the other, so that no more than one and the sum are in memory at a time.
    """
    total: dict[str, Tensor] = {}
    last: Mapping[str, Tensor] = {}
    count = 0
    for last in checkpoints:
        count += 1
        if count == 1:
            total = {name: tensor.detach().to(torch.float64, copy=True) for name, tensor in last.items() if tensor.is_floating_point()}
            shapes = {name: tensor.shape for name, tensor in last.items()}
        _check_same(last, shapes, f"set {count} of the weights to average")
        if count > 1:
            for name, tensor in total.items():
                tensor.add_(last[name].detach())
    if not count:
        raise TrainingError("there are no weights to average")
    return {name: (total[name] / count).to(tensor.dtype) if name in total else tensor.clone() for name, tensor in last.items()}


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32) if dtype.is_floating_point else dtype


def _check_same(given: Mapping[str, Tensor], wanted: Mapping[str, torch.Size], what: str) -> None:
    strange = sorted(given.keys() ^ wanted.keys()) or [name for name, tensor in given.items() if tensor.shape != wanted[name]]
    if strange:
        raise TrainingError(f"{what} belong to another model: {strange[0]!r} is not the same in both")
