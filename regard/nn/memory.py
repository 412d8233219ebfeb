"""Beyond a finite context: what a layer keeps of the text before the segment that it reads.

A text too long for one pass is read in segments. Segment recurrence (Transformer-XL) keeps the last states as they are and looks at them
again; a compressive memory (Infini-attention) adds every key and value into one matrix that never grows. What is remembered is passed in
and given back, never kept on the module.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from regard.errors import ConfigError, ShapeError
from regard.nn import backends
from regard.nn.attention import Attention
from regard.nn.masks import Causal
from regard.nn.positions import Learned, Placement, Positions, Sinusoidal
from regard.nn.tap import tap

Kept = TypeVar("Kept")


def in_segments(
    layer: Callable[[Tensor, Kept | None], tuple[Tensor, Kept]], x: Tensor, size: int, memory: Kept | None = None
) -> tuple[Tensor, Kept | None]:
    """A long text (rows, length, width), `size` words at a time, each segment told what was kept of those before it."""
    if size < 1:
        raise ConfigError(f"a segment of {size} words holds nothing; make size at least 1")
    outputs = []
    for segment in x.split(size, 1):
        output, memory = layer(segment, memory)
        outputs.append(output)
    return torch.cat(outputs, 1), memory


class SegmentRecurrence(nn.Module):
    """Transformer-XL's: a segment also sees the last `reach` states before it, as keys that no gradient flows back into."""

    def __init__(self, attention: Attention, reach: int, positions: Positions | None = None) -> None:
        super().__init__()
        if reach < 0:
            raise ConfigError(f"reach = {reach} states can't be remembered; make it 0 or more")
        self.attention, self.reach, self.positions = attention, reach, _relative(positions)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A segment (rows, length, width) and the states kept before it (rows, kept, width) to its output and the states to keep next."""
        past = x[:, :0] if memory is None else memory.detach()
        if past.shape[0] != x.shape[0] or past.shape[2] != x.shape[2]:
            raise ShapeError(f"the memory is {tuple(past.shape)} but the segment {tuple(x.shape)}; pass what the same rows gave back")
        seen = torch.cat((past, x), 1)  # (rows, kept + length, width)
        # Relative schemes know distances only, so counting may begin again at the oldest state that is still kept.
        slots = torch.arange(seen.shape[1], device=x.device)[None]
        output = self.attention(
            x,
            seen,
            mask=Causal().build(x.shape[1], seen.shape[1], device=x.device),
            positions=self.positions.place(slots[:, past.shape[1] :], slots, x.dtype),
        )
        return output, seen[:, max(0, seen.shape[1] - self.reach) :].detach()


@dataclass(frozen=True)
class Compressed:
    """Every key and value so far, added up for each head: as large after a thousand segments as after one."""

    matrix: Tensor  # (rows, heads, head_width, head_width), from a key to its value
    total: Tensor  # (rows, heads, head_width), the sum of all keys, by which what is retrieved is divided


def retrieve(query: Tensor, memory: Compressed) -> Tensor:
    """σ(Q)M / σ(Q)z with σ = ELU + 1: (rows, heads, query, head_width); zeros where nothing was stored yet."""
    query = F.elu(query) + 1
    count = query @ memory.total[..., None]  # (rows, heads, query, 1)
    return query @ memory.matrix / count.clamp(min=torch.finfo(count.dtype).tiny)


def compress(key: Tensor, value: Tensor, memory: Compressed, *, delta: bool = False) -> Compressed:
    """The memory with M + σ(K)ᵀV and z + Σσ(K).

    By the delta rule a value is stored less what its key retrieves already, so M does not change for a pair that it holds; z counts
    every key in either case, as in the paper.
    """
    if delta:
        value = value - retrieve(key, memory)
    key = F.elu(key) + 1
    return Compressed(memory.matrix + key.transpose(-2, -1) @ value, memory.total + key.sum(-2))


class CompressiveAttention(nn.Module):
    """Infini-attention: causal attention within a segment, mixed with what all segments before it left in a compressive memory.

    A gate for each head learns how much it looks far instead of near. Gradients flow through the memory; detach it to stop them.
    """

    def __init__(
        self, width: int, heads: int, *, positions: Positions | None = None, delta: bool = False, bias: bool = True, backend: str = "sdpa"
    ) -> None:
        super().__init__()
        if width % heads:
            raise ConfigError(f"heads = {heads} does not divide width = {width}; change one of them")
        self.heads, self.head_width, self.delta = heads, width // heads, delta
        self.scale = 1 / math.sqrt(self.head_width)
        self.positions = _relative(positions)
        self.backend = backends.choose(backend)
        self.project = nn.Linear(width, 3 * width, bias=bias)
        self.join = nn.Linear(width, width, bias=bias)
        self.gate = nn.Parameter(torch.zeros(heads))  # β, before the sigmoid: half near, half far

    def forward(self, x: Tensor, memory: Compressed | None = None) -> tuple[Tensor, Compressed]:
        """A segment (rows, length, width) to its output and the memory with this segment in it."""
        query, key, value = self.project(x).unflatten(-1, (3, self.heads, self.head_width)).permute(2, 0, 3, 1, 4)
        memory = self.empty(x) if memory is None else memory
        far = retrieve(query, memory)  # by content alone: in a sum there are no positions to keep
        near = self._near(query, key, value)
        share = self.gate.sigmoid()[:, None, None]
        mixed = share * far + (1 - share) * near  # (rows, heads, length, head_width)
        return self.join(mixed.transpose(1, 2).flatten(2)), compress(key, value, memory, delta=self.delta)

    def empty(self, x: Tensor) -> Compressed:
        """A memory of nothing, for the rows of x."""
        shape = (x.shape[0], self.heads, self.head_width)
        return Compressed(x.new_zeros(*shape, self.head_width), x.new_zeros(shape))

    def _near(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        slots = torch.arange(query.shape[2], device=query.device)[None]
        place = self.positions.place(slots, slots, query.dtype) or Placement()
        query, key = place.turn_query(query), place.turn_key(key)
        mask = Causal().build(query.shape[2], device=query.device)
        attended = backends.chosen(self.backend)(query, key, value, mask=mask, bias=place.bias, scale=self.scale, dropout=0.0)
        tap(self, "weights", attended.weights)
        return attended.output


def _relative(positions: Positions | None) -> Positions:
    if isinstance(positions, Sinusoidal | Learned):
        raise ConfigError(
            f"{type(positions).__name__} positions begin again in every segment, so two words would stand at one place; "
            "use Rotary, Alibi or RelativeBias, which tell distances"
        )
    return positions or Positions()
