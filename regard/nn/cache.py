"""What decoding remembers: the keys and values of the words so far, in buffers that never move.

A cache is passed to the model, never kept on it. Its rows are sources. All hypotheses of a source share its row, a slot for each word of
each: they form a tree, words that several have in common stand there once, and nothing is copied when one hypothesis gives way to
another. Which slots are the past of a hypothesis is a table of booleans beside the cache, and the mask that attention is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.config import Transformer
from regard.errors import CacheError
from regard.nn.few import served_on_gpu

C = TypeVar("C", int, Tensor)
ALL = slice(None)  # rows
# Views of the buffers grow in such steps, so that attention reads little and meets few shapes. On a CPU one is what a register holds of
# float32: whole ones are added up alike, wherever in them the words stand.
REACH_STEP = {"cpu": 16, "cuda": 256}


def in_whole_steps(count: C, kind: str = "cpu") -> C:
    """At least so many slots, and no part of a step."""
    step = REACH_STEP.get(kind, 64)
    return -(-count // step) * step


class KeyValues(NamedTuple):
    """Keys and values of one attention: (rows, kv_heads, length, head_width)."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a cache, for one pass: where to write, and how far to read."""

    key: Tensor  # (rows, kv_heads, capacity, head_width)
    value: Tensor
    slots: Tensor  # (new,), the same in every row
    reach: int

    def extend(self, new: KeyValues) -> KeyValues:
        """Writes the new keys and values into their slots and gives all of them back, as far as any slot is used."""
        self.key.index_copy_(2, self.slots, new.key.to(self.key.dtype))
        self.value.index_copy_(2, self.slots, new.value.to(self.value.dtype))
        return KeyValues(self.key[:, :, : self.reach], self.value[:, :, : self.reach])


@dataclass(frozen=True)
class CacheView:
    """A cache for one pass through a stack: tensors and nothing else, so that compiled code has only their shapes to watch."""

    key: Tensor  # (layers, rows, kv_heads, capacity, head_width)
    value: Tensor
    slots: Tensor  # (new,)
    positions: Tensor  # (rows, reach), of the words in the slots that are read

    def layer(self, index: int) -> LayerCache:
        return LayerCache(self.key[index], self.value[index], self.slots, self.positions.shape[1])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU, memory that the system clears when it is first touched: most of what there must be room for never is."""
    if device.type == "cpu" and dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))
    return torch.zeros(shape, dtype=dtype, device=device)


def _of_products(weight: Tensor) -> torch.dtype:
    """What a product with this weight comes in: autocast changes it, though not in float64."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) and weight.dtype != torch.float64 else weight.dtype


class Cache:
    """The self-attention keys and values of every layer of a stack, for a batch of rows."""

    def __init__(
        self,
        layers: int,
        rows: int,
        kv_heads: int,
        capacity: int,
        head_width: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
        whole: bool = False,
    ) -> None:
        """`whole`: whoever reads it at a position finds out by itself how far; it is then given all of it."""
        self.whole = whole
        shape = (layers, rows, kv_heads, capacity, head_width)
        self.key, self.value = _zeros(shape, dtype, device), _zeros(shape, dtype, device)
        self.positions = torch.zeros(rows, capacity, dtype=torch.long, device=device)  # where the word in each slot stands in its text
        self.next = torch.zeros(1, dtype=torch.long, device=device)  # the first free slot, on the device
        self.used = 0  # and on the host, known without asking the device

    @classmethod
    def of(cls, config: Transformer, stack: nn.Module, rows: int, capacity: int, hypotheses: int = 1) -> Cache:
        """An empty cache for a stack of that config, where its weights are, in what its products come in."""
        weight, kv_heads = next(stack.parameters()), config.kv_heads or config.heads
        dtype = _of_products(weight)
        layers = len(stack.layers)  # type: ignore[arg-type]
        together = hypotheses * config.heads // kv_heads
        if weight.device.type == "cpu":
            capacity = in_whole_steps(capacity)
        whole = served_on_gpu(weight.device, dtype, config.key_width, together) and config.positions not in ("alibi", "relative")
        return cls(layers, rows, kv_heads, capacity, config.key_width, dtype=dtype, device=weight.device, whole=whole)

    def empty(self, rows: int, capacity: int) -> Cache:
        """One of the same kind with nothing in it."""
        layers, _, kv_heads, _, width = self.key.shape
        return Cache(layers, rows, kv_heads, capacity, width, dtype=self.key.dtype, device=self.key.device, whole=self.whole)

    def seat(self, new: Cache, places: Tensor, rows: Tensor | slice = ALL) -> None:
        """What another has of its rows, or of these, goes to these places, into the same slots."""
        self.key[:, places, :, : new.used] = new.key[:, rows, :, : new.used]
        self.value[:, places, :, : new.used] = new.value[:, rows, :, : new.used]
        self.positions[places, : new.used] = new.positions[rows, : new.used]
        self.next.clamp_(min=new.used)
        self.used = max(self.used, new.used)

    def reset(self) -> None:
        """All slots are free again."""
        self.next.zero_()
        self.used = 0

    @property
    def capacity(self) -> int:
        return self.key.shape[3]

    @property
    def rows(self) -> int:
        return self.key.shape[1]

    def claim(self, positions: Tensor) -> Tensor:
        """The next slots (new,), for words that stand at these positions (rows, new) of their texts."""
        count = positions.shape[1]
        if self.used + count > self.capacity:
            raise CacheError(f"the cache holds {self.capacity} words a row and {self.used + count} are needed; start with more room")
        slots = self.next + torch.arange(count, device=self.next.device)
        self.positions.index_copy_(1, slots, positions)
        self.next += count
        self.used += count
        return slots

    def forget(self, count: int) -> None:
        """The slots claimed last are free again, so many of them."""
        self.next -= count
        self.used -= count

    @property
    def reach(self) -> int:
        """How many slots attention must read, in whole steps."""
        return self.reach_with(0)

    def reach_with(self, new: int) -> int:
        """The same once so many more are used."""
        return min(self.capacity, in_whole_steps(self.used + new, self.key.device.type))

    def span_with(self, new: int) -> int:
        """How many slots a position that writes so many more is given to read."""
        return self.capacity if self.whole else self.reach_with(new)

    def view(self, slots: Tensor, reach: int | None = None) -> CacheView:
        """The cache as one pass sees it that writes to these slots and reads so many, or all that are used."""
        return CacheView(self.key, self.value, slots, self.positions[:, : self.reach if reach is None else reach])

    def gather(self, slots: Tensor) -> None:
        """Only these slots (rows, n) of each row are left, in this order; the rest is free again."""
        count = slots.shape[1]
        blocks = torch.arange(self.rows * self.key.shape[2], device=slots.device).view(self.rows, -1, 1)  # of each row and head
        places = (blocks * self.capacity + slots[:, None]).flatten()
        for layer in (*self.key, *self.value):
            layer[:, :, :count] = layer.view(-1, layer.shape[3]).index_select(0, places).view(self.rows, -1, count, layer.shape[3])
        self.positions[:, :count] = self.positions.gather(1, slots)
        self.next.fill_(count)
        self.used = count

    def keep(self, rows: Tensor) -> None:
        """Only these rows are left."""
        for name in ("key", "value"):
            old: Tensor = getattr(self, name)
            new = _zeros((old.shape[0], len(rows), *old.shape[2:]), old.dtype, old.device)
            new[:, :, :, : self.used] = old[:, :, :, : self.used].index_select(1, rows)
            setattr(self, name, new)
        self.positions = self.positions.index_select(0, rows)
