"""How often each example is visited in an epoch: as its file's weight and the balance between languages say, and in which segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Where the examples of each file begin and end in a store, and which files are balanced as one.

    With copies, each example lies there several times, segmented differently: example i as i·copies, i·copies + 1, …
    """

    edges: Indices  # (files + 1,), in the store, copies counted
    names: tuple[str, ...] = ()  # of each file its tag; files of one name are one group; (): each file is its own
    balance: float = 1.0
    copies: int = 1

    def sizes(self) -> npt.NDArray[np.float64]:
        """How many examples each file has, copies not counted."""
        return np.diff(self.edges) / self.copies


def visits(sizes: Sequence[float] | npt.NDArray[np.float64], weights: Sequence[float], names: Sequence[str], balance: float) -> list[float]:
    """How often the examples of each file are visited in an epoch.

    A group's size is the sum of its files' sizes, each times its weight. A group's share of all visits is as size^balance; the largest is
    visited once through, by its weights, and the smaller ones (largest / size)^(1 - balance) times as often.
    """
    groups = list(names) or [str(number) for number in range(len(sizes))]
    size: dict[str, float] = {}
    for name, count, weight in zip(groups, sizes, weights, strict=True):
        size[name] = size.get(name, 0.0) + count * weight
    largest = max(size.values(), default=0.0)
    again = {name: (largest / count) ** (1 - balance) if count else 1.0 for name, count in size.items()}
    return [weight * again[name] for name, weight in zip(groups, weights, strict=True)]


def drawn(count: int, groups: Groups | None, weights: Sequence[float], seed: int, epoch: int) -> Indices:
    """The numbers of the examples of an epoch, file by file: a function of the data, the seed and the epoch.

    Visits are counted through all epochs, and no example is ever more than one ahead of another of its file: one that is visited 0.3 times
    an epoch comes in three of ten. With every visit the next of its copies is taken.
    """
    if groups is None:
        return np.arange(count)
    often = visits(groups.sizes(), weights or [1.0] * (len(groups.edges) - 1), groups.names, groups.balance)
    if groups.copies == 1 and all(times == 1.0 for times in often):
        return np.arange(count)
    parts = [
        _of_file(start // groups.copies, end // groups.copies, times, groups.copies, epoch, _lottery(seed, number))
        for number, (start, end, times) in enumerate(zip(groups.edges[:-1].tolist(), groups.edges[1:].tolist(), often, strict=True))
    ]
    return np.concatenate(parts)


def _of_file(start: int, end: int, times: float, copies: int, epoch: int, lottery: np.random.Generator) -> Indices:
    # Evenly spread over [0, 1), so that of 0.3 visits each epoch has just three tenths of the examples.
    phase = (lottery.permutation(end - start) + 0.5) / max(1, end - start)
    before = np.floor(times * epoch + phase).astype(np.int64)
    now = np.floor(times * (epoch + 1) + phase).astype(np.int64) - before
    examples = np.repeat(np.arange(start, end), now)
    within = np.arange(len(examples)) - np.repeat(np.cumsum(now) - now, now)  # of the visits of an example in this epoch, which it is
    return examples * copies + (np.repeat(before, now) + within) % copies


def _lottery(seed: int, file: int) -> np.random.Generator:
    """The same in every epoch."""
    return np.random.Generator(np.random.Philox(key=[seed, 2**63 + file]))
