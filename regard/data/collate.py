"""From examples in a store to a batch: padded or packed, shifted by a start token, masked, labelled, as the task has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

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
PLACES_STEP = 128  # and that of masked words in a packed row, which are always as many

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
    places: Tensor | None = None  # (n,), where in the flattened labels something is counted, so that nothing else need be foretold

    @property
    def of_documents(self) -> bool:
        """Whether there is one label for each sequence instead of one for each token."""
        return self.labels.dim() == 1

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """The same batch with every tensor changed: moved, or pinned."""
        return replace(
            self,
            target=self.target.map(change),
            labels=change(self.labels),
            counted=change(self.counted),
            source=self.source and self.source.map(change),
            prefix=None if self.prefix is None else change(self.prefix),
            places=None if self.places is None else change(self.places),
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
    special: frozenset[int] = frozenset(range(4))  # ids that stand for no text, and are never masked
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
        prefix = places = None
        ids, labels, counted = text.ids, text.labels, text.real
        if self.task == "mlm":
            ids, counted = self._masked(text, indices, epoch)
            places = self._places(counted)
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
            others = target.lengths.shape[0] - sequences  # documents that only fill up a packed row have no label that counts
            classes = np.concatenate((store.labels[indices], np.zeros(others, np.int64)))
            real = torch.arange(len(classes)) < sequences
            return Batch(target, torch.from_numpy(classes), real, sequences, read)
        return Batch(target, torch.from_numpy(labels), torch.from_numpy(counted), int(counted.sum()), read, source, prefix, places)

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
        choice = uniform(self.seed, epoch, example, text.places, 0)
        chosen = text.real & self._is_text[text.ids] & (choice < self.mask_share)
        kind, other = (uniform(self.seed, epoch, example[chosen], text.places[chosen], number) for number in (1, 2))
        words = np.flatnonzero(self._is_text)
        word = words[np.floor(other * len(words)).astype(np.int64)]
        ids = text.ids.copy()
        ids[chosen] = np.where(kind < 0.8, self.mask, np.where(kind < 0.9, word, text.ids[chosen]))
        return ids, chosen

    @cached_property
    def _is_text(self) -> Flags:
        """Of each token whether it stands for text."""
        table = np.ones(self.vocabulary, np.bool_)
        table[[token for token in self.special if token < self.vocabulary]] = False
        return table

    def _places(self, counted: Flags) -> Tensor:
        """Where something is counted. Of a packed row always as many, so that every step is of one shape: the rest are places that don't
        count. How many words are chosen is a matter of chance, but six deviations more than the mean come once in a thousand million rows;
        what is still more is masked without being asked for.
        """
        found = np.flatnonzero(counted)
        if self.packed is None:
            return torch.from_numpy(found)
        mean = self.packed * self.mask_share
        most = min(self.packed, -(-int(mean + 6 * (mean * (1 - self.mask_share)) ** 0.5 + 8) // PLACES_STEP) * PLACES_STEP)
        counted.ravel()[found[most:]] = False
        idle = int(np.argmin(counted.ravel()))  # the first place that does not count; all count only where there are as many
        return torch.from_numpy(np.concatenate((found[:most], np.full(most - len(found[:most]), idle, np.int64))))


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
