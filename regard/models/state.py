"""Where decoding stands, for each source of a batch: written into by every position, passed along and never kept on a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.nn.cache import ALL, Cache, CacheView, KeyValues
from regard.nn.masks import Mask

CLEAR_EVERY = 16  # slots, of all hypotheses of a source
UNSEEN = 0.2  # the share of the slots from which on it is worth the copying


class State(ABC):
    """Where decoding stands: for each source its open hypotheses, as many for each. `step` writes into it."""

    @abstractmethod
    def select(self, parents: Tensor) -> None:
        """Hypothesis k of each source now is what hypothesis parents[source, k] was; there may be more of them, or fewer."""

    @abstractmethod
    def keep(self, sources: Tensor) -> None:
        """Only these sources are left."""


@dataclass
class StackState(State):
    """A Transformer's: the cache of its decoder, and each layer's keys and values of the source, kept once per source."""

    cache: Cache
    visible: Tensor  # (sources, hypotheses, capacity): the slots where the words of each hypothesis stand
    lengths: Tensor  # (sources,), words so far, the prompt's or the start token among them
    memory: list[KeyValues] | None = None
    memory_mask: Mask | None = None
    window: int | None = None
    context: int | None = None  # no position is given beyond it: rows that are done go on with the others for a while
    cleared: int = 0  # slots in use when it was last looked which of them are needed

    @classmethod
    def begin(cls, cache: Cache, lengths: Tensor, *, window: int | None = None, context: int | None = None) -> StackState:
        """After prompts of these lengths, padded on the right, have been put into the first slots."""
        slots = torch.arange(cache.capacity, device=lengths.device)
        return cls(cache, (slots < lengths[:, None])[:, None], lengths.clone(), window=window, context=context)

    def place(self, ids: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """Slots (hypotheses,), positions (sources, hypotheses) and mask of the next word of each hypothesis."""
        check_words(ids, *self.visible.shape[:2])
        positions = self.lengths[:, None].repeat(1, ids.shape[1])
        if self.context is not None:
            positions = positions.clamp(max=self.context - 1)
        slots = self.cache.claim(positions)
        self.visible.scatter_(2, slots[None, :, None].expand(*ids.shape, 1), True)
        self.lengths += 1
        return slots, positions, self._mask(self.visible[:, :, : self.cache.span_with(0)], positions)

    def place_row(self, ids: Tensor) -> tuple[Tensor, Tensor, Mask]:
        """The same for several words (sources, n) in a row, for sources of one hypothesis."""
        count = ids.shape[1]
        check_words(ids[:, :1], *self.visible.shape[:2])
        positions = self.lengths[:, None] + torch.arange(count, device=ids.device)
        slots = self.cache.claim(positions)
        keys = torch.arange(self.cache.reach, device=ids.device)
        new = (keys <= slots[:, None]) & (keys >= slots[0])  # (n, reach): those before it, and itself
        visible = self.visible[:, :, : self.cache.reach] | new
        self.visible.index_fill_(2, slots, True)
        self.lengths += count
        return slots, positions, self._mask(visible, positions)

    def forget(self, count: int) -> None:
        """Takes back the words read last, so many of them, for sources of one hypothesis."""
        self.visible[:, :, self.cache.used - count : self.cache.used] = False
        self.lengths -= count
        self.cache.forget(count)

    def _mask(self, visible: Tensor, positions: Tensor) -> Mask:
        if self.window is not None:
            visible = visible & (positions[:, :, None] - self.cache.positions[:, None, : visible.shape[2]] < self.window)
        return Mask(visible[:, None])

    def view(self, slots: Tensor, mask: Mask) -> CacheView:
        """The cache as a pass with this mask sees it."""
        assert mask.visible is not None
        return self.cache.view(slots, mask.visible.shape[3])

    def select(self, parents: Tensor) -> None:
        chosen = self.visible.gather(1, parents[:, :, None].expand(-1, -1, self.visible.shape[2]))
        if chosen.shape == self.visible.shape:
            self.visible.copy_(chosen)  # buffers stay where they are
        else:
            self.visible = chosen
        if self.due and parents.shape[1] > 1:
            self.clear()

    @property
    def clears(self) -> bool:
        """Whether slots are freed before they are needed. On a GPU looking costs more than slots that nobody can see."""
        return self.cache.key.device.type == "cpu"

    @property
    def due(self) -> bool:
        """Whether it is time to look which of them are."""
        return self.clears and self.cache.used >= self.cleared + CLEAR_EVERY

    def clear(self, *, now: bool = False) -> None:
        """Frees slots that no hypothesis can see any more, once they are a fifth of all, or now."""
        used = self.cache.used
        live = self.visible[:, :, :used].any(1)
        most = int(live.sum(1).max())
        self.cleared = used
        if used - most >= used * UNSEEN or now:
            slots = live.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
            self.cache.gather(slots)
            chosen = self.visible[:, :, :used].gather(2, slots[:, None].expand(-1, self.visible.shape[1], -1))
            self.visible.zero_()
            self.visible[:, :, :most] = chosen
            self.cleared = most

    def keep(self, sources: Tensor) -> None:
        before = len(self.lengths)
        self.cache.keep(sources)
        self.visible, self.lengths = self.visible.index_select(0, sources), self.lengths.index_select(0, sources)
        if self.memory is not None:
            self.memory = [KeyValues(key.index_select(0, sources), value.index_select(0, sources)) for key, value in self.memory]
            self.memory_mask = take_rows(self.memory_mask, sources, before)

    def vacant(self, seats: int, capacity: int, read: int) -> StackState:
        """One like this with nobody in it: so many seats of so many slots, for sources of at most such a length."""
        device, hypotheses = self.lengths.device, self.visible.shape[1]
        state = StackState.begin(self.cache.empty(seats, capacity), torch.zeros(seats, dtype=torch.long, device=device))
        state.visible = state.visible.expand(-1, hypotheses, -1).clone()
        state.window, state.context = self.window, self.context
        if self.memory is not None:
            state.memory = [KeyValues(*(x.new_zeros(seats, x.shape[1], read, x.shape[3]) for x in pair)) for pair in self.memory]
            # Nobody is there to look, but what is computed all the same must see something.
            state.memory_mask = Mask(torch.ones(seats, 1, 1, read, dtype=torch.bool, device=device))
        return state

    def seat(self, new: StackState, places: Tensor, rows: Tensor | slice = ALL) -> None:
        """The sources of another state, or these of its rows, take these places (sources,); nothing moves."""
        used = new.cache.used
        self.leave(places)
        self.cache.seat(new.cache, places, rows)
        self.visible[places, :, :used] = new.visible[rows, :, :used]
        self.lengths[places] = new.lengths[rows]
        if self.memory is None or new.memory is None:
            return
        for mine, others in zip(self.memory, new.memory, strict=True):
            mine.key[places, :, : others.key.shape[2]] = others.key[rows]
            mine.value[places, :, : others.value.shape[2]] = others.value[rows]
        assert self.memory_mask is not None
        assert self.memory_mask.visible is not None
        seen = None if new.memory_mask is None else new.memory_mask.visible
        self.memory_mask.visible[places] = False
        self.memory_mask.visible[places, :, :, : new.memory[0].key.shape[2]] = True if seen is None else seen[rows]

    def reset(self) -> None:
        """Nobody is there, and no slot is in use."""
        self.visible.zero_()
        self.lengths.zero_()
        self.cache.reset()
        self.cleared = 0

    def leave(self, places: Tensor) -> None:
        """Whoever is there has gone, and needs no slot."""
        self.visible[places] = False
        self.lengths[places] = 0


def take_rows(mask: Mask | None, rows: Tensor, of: int) -> Mask | None:
    """The mask of some rows of so many; what is the same for all of them stays as it is."""
    if mask is None or mask.visible is None or mask.visible.shape[0] != of:
        return mask
    return Mask(mask.visible.index_select(0, rows), None if mask.blind is None else mask.blind.index_select(0, rows))


def check_words(ids: Tensor, sources: int, hypotheses: int) -> None:
    if ids.shape[0] != sources:
        raise ShapeError(f"the state has {sources} rows and {ids.shape[0]} were given; each goes on where it stood, so give all of them")
    if ids.shape[1] != hypotheses:
        raise ShapeError(f"the state has {hypotheses} hypotheses a source, but words for {ids.shape[1]} were given; give each its own")
