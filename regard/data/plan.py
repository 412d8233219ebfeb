"""Which examples go into which batch: a function of lengths, seed and epoch, so that a resumed run continues with the very next batch.

Examples of like length go together, by a budget of tokens instead of a number of sentences. Lengths are rounded up to a few fixed sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.data.visits import Groups, Indices, drawn
from regard.errors import TrainingError

POOL = 64  # batches' worth of examples that are sorted by length together: enough to fill batches evenly, few enough to stay mixed


@dataclass(frozen=True)
class Plan:
    """The batches of one epoch, each an array of examples' numbers."""

    batches: tuple[Indices, ...]

    def __len__(self) -> int:
        return len(self.batches)


def make_plan(
    lengths: npt.NDArray[np.int64],
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    groups: Groups | None = None,
    weights: Sequence[float] = (),
    packed: bool = False,
    shuffle: bool = True,
) -> Plan:
    """Every example once, or as often as `groups` and `weights` say, in batches of at most `batch_tokens`, in an order of that epoch's own.

    Padded, a batch costs its rows times its longest, rounded up; packed, it costs what its examples are long. In the first epoch the most
    expensive batch comes first, so that trouble with memory shows at once.
    """
    if not len(lengths):
        raise TrainingError("there are no examples to make batches of; look at the data with: regard data check")
    random = np.random.Generator(np.random.Philox(key=[seed, epoch]))
    chosen = drawn(len(lengths), groups, weights, seed, epoch)
    if not len(chosen):
        raise TrainingError("the weights of the files are so small that an epoch visits no example; raise weight in data.train")
    if shuffle:
        chosen = chosen[random.permutation(len(chosen))]
    costs = lengths[chosen] if packed else rounded(lengths[chosen])
    longest = int(costs.max())
    if longest > batch_tokens:
        raise TrainingError(
            f"an example of {longest} tokens does not fit into a batch of {batch_tokens}; raise batch_tokens or lower max_length"
        )
    if packed:
        batches = _packed(chosen, costs, batch_tokens)
    else:
        pool = max(1, POOL * batch_tokens // int(costs.mean()))
        cuts = range(pool, len(chosen), pool)
        pools = zip(np.split(chosen, cuts), np.split(costs, cuts), strict=True)
        batches = [batch for part, cost in pools for batch in _padded(part, cost, batch_tokens)]
    if shuffle:
        batches = [batches[index] for index in random.permutation(len(batches))]
    if epoch == 0:
        worst = max(range(len(batches)), key=lambda index: cost_of(batches[index], lengths, packed=packed))
        batches[0], batches[worst] = batches[worst], batches[0]
    return Plan(tuple(batches))


def cost_of(batch: Indices, lengths: npt.NDArray[np.int64], *, packed: bool) -> int:
    """How many tokens a batch takes up, padding included."""
    return int(lengths[batch].sum()) if packed else len(batch) * int(rounded(lengths[batch]).max())


def rounded(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lengths rounded up to a few sizes: multiples of 8 up to 64, then of an eighth of the power of two below."""
    lengths = np.maximum(lengths, 1)
    step = 2 ** np.maximum(3, np.floor(np.log2(lengths)).astype(np.int64) - 3)
    return -(-lengths // step) * step


def padded_size(length: int) -> int:
    """The width of a padded batch whose longest row has that length."""
    return int(rounded(np.array([length]))[0])


def _padded(part: Indices, costs: npt.NDArray[np.int64], budget: int) -> list[Indices]:
    """Examples by rising length, cut where one more would make rows times longest exceed the budget."""
    order = np.argsort(costs, kind="stable")
    sizes = costs[order].tolist()
    batches, start = [], 0
    for end, size in enumerate(sizes):
        if (end + 1 - start) * size > budget:  # lengths rise, so the last is the longest
            batches.append(part[order[start:end]])
            start = end
    return [*batches, part[order[start:]]]


def _packed(part: Indices, costs: npt.NDArray[np.int64], budget: int) -> list[Indices]:
    """Each batch filled up to the budget, long and short together: without padding, lengths need not be alike."""
    total = np.cumsum(costs)
    batches, start, before = [], 0, 0
    while start < len(part):
        end = int(np.searchsorted(total, before + budget, side="right"))
        batches.append(part[start:end])
        start, before = end, int(total[end - 1])
    return batches
