"""What decoding remembers: the keys and values of the words so far, in buffers that never move.

A cache is passed to the model, never kept on it. Each row has a fill of its own, and a token's slot is its position: a shorter prompt
is padded on the right, and the next word overwrites its padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.config import Transformer
from regard.errors import CacheError

REACH_STEP = 64  # views of the buffers grow in steps of this, so that attention reads little and meets few shapes


class KeyValues(NamedTuple):
    """Keys and values of one attention: (rows, kv_heads, length, head_width)."""

    key: Tensor
    value: Tensor


@dataclass(frozen=True)
class LayerCache:
    """One layer's part of a cache, for one pass: where to write, and how far to read."""

    key: Tensor  # (rows, kv_heads, capacity, head_width)
    value: Tensor
    rows: Tensor  # (rows, 1), their numbers
    slots: Tensor  # (rows, new)
    reach: int

    def extend(self, new: KeyValues) -> KeyValues:
        """Writes the new keys and values into their slots and gives all of them back, as far as any row is filled."""
        self.key[self.rows, :, self.slots] = new.key.transpose(1, 2).to(self.key.dtype)
        self.value[self.rows, :, self.slots] = new.value.transpose(1, 2).to(self.value.dtype)
        return KeyValues(self.key[:, :, : self.reach], self.value[:, :, : self.reach])


class Cache:
    """The self-attention keys and values of every layer of a stack, for a batch of rows."""

    def __init__(
        self, layers: int, rows: int, kv_heads: int, capacity: int, head_width: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (layers, rows, kv_heads, capacity, head_width)
        self.key = torch.zeros(shape, dtype=dtype, device=device)
        self.value = torch.zeros(shape, dtype=dtype, device=device)
        self.filled = torch.zeros(rows, dtype=torch.long, device=device)  # slots in use, per row
        self.row_numbers = torch.arange(rows, device=device)[:, None]
        self.most = 0  # no row has more than this in use; known without asking the device

    @classmethod
    def of(cls, config: Transformer, stack: nn.Module, rows: int, capacity: int) -> Cache:
        """An empty cache for a stack of that config, where its weights are and as they are."""
        weight = next(stack.parameters())
        layers = len(stack.layers)  # type: ignore[arg-type]
        return cls(layers, rows, config.kv_heads or config.heads, capacity, config.key_width, dtype=weight.dtype, device=weight.device)

    @property
    def capacity(self) -> int:
        return self.key.shape[3]

    @property
    def rows(self) -> int:
        return self.key.shape[1]

    def slots(self, ids: Tensor) -> Tensor:
        """The slots that tokens (rows, count) go to: the next of each row, and their positions too."""
        rows, count = ids.shape
        if rows != self.rows:
            raise CacheError(f"the cache has {self.rows} rows and {rows} were given; each goes on where it stood, so give all of them")
        if self.most + count > self.capacity:
            raise CacheError(f"the cache holds {self.capacity} positions a row and {self.most + count} are needed; start with more room")
        return self.filled[:, None] + torch.arange(count, device=self.filled.device)

    def reach(self, count: int) -> int:
        """How many slots attention must read once `count` more are written, in whole steps."""
        return min(self.capacity, -(-(self.most + count) // REACH_STEP) * REACH_STEP)

    def layer(self, index: int, slots: Tensor) -> LayerCache:
        return LayerCache(self.key[index], self.value[index], self.row_numbers, slots, self.reach(slots.shape[1]))

    def advance(self, count: int, lengths: Tensor | None = None) -> None:
        """Marks the slots just written as filled: `count` in each row, or for a right-padded batch each row's own length."""
        self.filled += count if lengths is None else lengths
        self.most += count

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was; the number of rows may change."""
        if rows.shape == self.filled.shape:  # beams swap places: the buffers stay where they are
            for buffer in (self.key, self.value):
                used = buffer[:, :, :, : self.most]
                used.copy_(used.index_select(1, rows))
            self.filled.copy_(self.filled.index_select(0, rows))
        else:
            self.key, self.value = self.key.index_select(1, rows), self.value.index_select(1, rows)
            self.filled = self.filled.index_select(0, rows)
            self.row_numbers = torch.arange(len(rows), device=rows.device)[:, None]
