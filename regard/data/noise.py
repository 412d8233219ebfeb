"""Random numbers that belong to an example, not to a moment: the same whatever the batch, the process or the resumption it falls into."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def uniform(seed: int, *keys: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), one for each combination of keys (which broadcast); the same keys give the same number."""
    state = _mixed(np.asarray(seed, np.uint64))
    for key in keys:
        state = _mixed(state ^ _mixed(np.asarray(key).astype(np.uint64)))
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: Words) -> Words:
    """The finaliser of SplitMix64: every bit of the input reaches every bit of the output."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
