"""From examples in a store to a batch: padded or packed, shifted by a start token, masked, labelled, as the task has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.data.noise import uniform
from regard.data.plan import padded_size
from regard.data.store import Ragged, Store
from regard.data.stream import Cuts, cuts
from regard.data.visits import Indices
from regard.recipe import Task

EDGES_STEP = 128  # the number of packed documents is rounded up to this, so that compiled code meets few shapes

Table = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Batch:
    """What one pass of training reads: tokens in, labels to be surprised by, and where these count."""

    target: Tokens
    labels: Tensor  # (rows, length) like the target, or (sequences,) for classes
    counted: Tensor  # bool, like labels
    count: int  # how many are counted: known before anything runs
    tokens: int  # how many real tokens are read
    source: Tokens | None = None
    prefix: Tensor | None = None  # (sequences,), how much of each is given

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor changed: moved, or pinned."""
        return replace(
            self,
            target=self.target.map(change),
            labels=change(self.labels),
            counted=change(self.counted),
            source=self.source and self.source.map(change),
            prefix=None if self.prefix is None else change(self.prefix),
        )


@dataclass(frozen=True)
class Form:
    """How examples of a task become batches."""

    task: Task
    seed: int
    max_length: int
    vocabulary: int
    pad: int = 0
    mask: int = 3
    special: int = 4  # ids below this are never masked
    mask_share: float = 0.15
    prefix_share: float | None = None  # for a prefix mask: at most this share of a text is given, where examples don't say it themselves
    packed: int | None = None  # the size of a packed row; None: padded

    def collate(self, store: Store, indices: Indices, epoch: int) -> Batch:
        """The examples of these numbers as one batch."""
        shift = float(uniform(self.seed, epoch))
        recut = (lambda lengths: cuts(store, indices, lengths, shift)) if store.stream else None
        text = self._gather(store.target, indices, shifted=self.task in ("translate", "lm"), recut=recut)
        source = None if store.source is None else self._gather(store.source, indices).tokens
        sequences = len(indices)
        prefix = None
        ids, labels, counted = text.ids, text.labels, text.real
        if self.task == "mlm":
            ids, counted = self._masked(text, indices, epoch)
        given = self._given(store, text, indices, epoch)
        if given is not None:
            counted = counted & (text.places >= given[text.owners] - 1)  # what is given need not be foretold
        if given is not None and self.prefix_share is not None:
            others = text.tokens.lengths.shape[0] - sequences  # documents that only fill up a packed row
            prefix = torch.from_numpy(np.concatenate((given, np.zeros(others, np.int64))))
        target = replace(text.tokens, ids=torch.from_numpy(ids))
        read = int(text.lengths.sum())
        if self.task == "classify":
            assert store.labels is not None
            classes = torch.from_numpy(store.labels[indices])
            return Batch(target, classes, torch.ones(sequences, dtype=torch.bool), sequences, read)
        return Batch(target, torch.from_numpy(labels), torch.from_numpy(counted), int(counted.sum()), read, source, prefix)

    def _given(self, store: Store, text: _Laid, indices: Indices, epoch: int) -> Table | None:
        """How much of each text is given: as the example has it, or for a prefix model by chance."""
        if store.given is not None:
            return store.given[indices]
        if self.task == "lm" and self.prefix_share is not None:
            return np.floor(uniform(self.seed, epoch, indices) * self.prefix_share * text.lengths).astype(np.int64)
        return None

    def _gather(self, ragged: Ragged, indices: Indices, *, shifted: bool = False, recut: Callable[[Table], Cuts] | None = None) -> _Laid:
        """These sequences laid out side by side; shifted, each is read without its last token and asked for without its first."""
        starts = ragged.edges[indices]
        lengths = ragged.edges[indices + 1] - starts - shifted
        if self.packed is None:
            width = padded_size(int(lengths.max()))
            places = np.broadcast_to(np.arange(width), (len(indices), width))
            owners = np.broadcast_to(np.arange(len(indices))[:, None], places.shape)
            real = places < lengths[:, None]
            tokens = Tokens(torch.empty(places.shape, dtype=torch.long), torch.from_numpy(real), tail=True)
        else:
            edges = np.concatenate(([0], np.cumsum(lengths)))
            assert edges[-1] <= self.packed, "a packed row must hold all of its batch"
            slots = np.arange(self.packed)
            owners = np.minimum(np.searchsorted(edges[1:], slots, side="right"), len(indices) - 1)[None]
            places = slots[None] - edges[owners]
            real = slots[None] < edges[-1]
            # What is left of the row is a document of its own, or several where it is longer than any may be.
            rest = np.arange(edges[-1], self.packed, self.max_length)[1:]
            filled = np.concatenate((edges, rest))
            # As many documents on the side of the source as on that of the target, whatever is left over there.
            size = -(-(len(indices) + 2 + -(-self.packed // self.max_length)) // EDGES_STEP) * EDGES_STEP
            filled = np.concatenate((filled, np.full(size - len(filled), self.packed)))
            tokens = Tokens(
                torch.empty(1, self.packed, dtype=torch.long), edges=torch.from_numpy(filled.astype(np.int32)), longest=self.max_length
            )
        found = starts[owners] + places if recut is None else recut(lengths).where(owners, places)
        where = np.where(real, found, 0)
        ids = np.where(real, ragged.tokens[where], self.pad).astype(np.int64)
        labels = np.where(real, ragged.tokens[where + real], self.pad).astype(np.int64) if shifted else ids
        return _Laid(replace(tokens, ids=torch.from_numpy(ids)), ids, labels, real, owners, places, lengths)

    def _masked(self, text: _Laid, indices: Indices, epoch: int) -> tuple[Table, Flags]:
        """BERT's masking: of the chosen words 80 % become the mask, 10 % any word, 10 % stay."""
        example = indices[text.owners]
        choice, kind, other = (uniform(self.seed, epoch, example, text.places, number) for number in (0, 1, 2))
        chosen = text.real & (text.ids >= self.special) & (choice < self.mask_share)
        word = self.special + np.floor(other * (self.vocabulary - self.special)).astype(np.int64)
        ids = np.where(chosen & (kind < 0.8), self.mask, np.where(chosen & (kind < 0.9), word, text.ids))
        return ids, chosen


@dataclass(frozen=True)
class _Laid:
    """Sequences laid out for a batch, and for each place whose it is and where in its sequence."""

    tokens: Tokens
    ids: Table
    labels: Table
    real: Flags
    owners: Table
    places: Table
    lengths: Table
