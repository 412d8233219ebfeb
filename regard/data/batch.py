"""Token ids side by side: padded into rows of one length, or packed into one row without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import ShapeError


@dataclass(frozen=True, eq=False)
class Tokens:
    """A batch of sequences. Padded: `real` says where tokens stand. Packed: `edges` says where each sequence begins and ends."""

    ids: Tensor  # (rows, length); packed: (1, tokens)
    real: Tensor | None = None  # (rows, length), False at padding; None: no padding
    edges: Tensor | None = None  # packed: (sequences + 1,) int32, [0, 3, 7] for a sequence of 3 and one of 4; the last is all tokens
    longest: int = 0  # no sequence is longer; packed rows must say it
    tail: bool = False  # padding stands on the right only

    def __post_init__(self) -> None:
        if self.ids.dim() != 2:
            raise ShapeError(f"token ids are (rows, length), got {tuple(self.ids.shape)}; add a row with ids[None] if it is one sequence")
        if self.real is not None and self.real.shape != self.ids.shape:
            raise ShapeError(f"real is {tuple(self.real.shape)} but ids are {tuple(self.ids.shape)}; they tell of the same tokens")
        if self.edges is None:
            object.__setattr__(self, "longest", self.ids.shape[1])
        elif self.ids.shape[0] != 1 or self.longest < 1:
            raise ShapeError(
                f"packed tokens are one row and say how long the longest sequence is; got {self.ids.shape[0]} rows, {self.longest}"
            )
        elif self.edges.device.type == "cpu" and int(self.edges[-1]) != self.ids.shape[1]:
            raise ShapeError(
                f"edges end at {int(self.edges[-1])} but there are {self.ids.shape[1]} tokens; every token belongs to a sequence"
            )

    @classmethod
    def pad(cls, sequences: Sequence[Sequence[int]], pad: int = 0, *, device: torch.device | str | None = None) -> Tokens:
        """Rows of one length, filled up on the right."""
        _some(sequences)
        length = max(len(sequence) for sequence in sequences)
        rows = [[*sequence, *[pad] * (length - len(sequence))] for sequence in sequences]
        ids = torch.tensor(rows, dtype=torch.long, device=device).reshape(len(sequences), length)
        lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
        return cls(ids, torch.arange(length, device=device)[None] < lengths[:, None], tail=True)

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]], *, device: torch.device | str | None = None) -> Tokens:
        """One row, each sequence after the last."""
        _some(sequences)
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        edges = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))).to(torch.int32)
        ids = torch.tensor([[token for sequence in sequences for token in sequence]], dtype=torch.long, device=device)
        return cls(ids, edges=edges.to(device), longest=max(1, int(lengths.max())))

    def map(self, change: Callable[[Tensor], Tensor]) -> Tokens:
        """The same tokens with every tensor changed: moved to a device, for example."""
        real = None if self.real is None else change(self.real)
        return replace(self, ids=change(self.ids), real=real, edges=None if self.edges is None else change(self.edges))

    @property
    def packed(self) -> bool:
        return self.edges is not None

    @property
    def positions(self) -> Tensor:
        """Where each token stands in its own sequence: (rows or 1, length)."""
        slots = torch.arange(self.ids.shape[1], device=self.ids.device)
        if self.edges is not None:
            starts = self.edges[torch.bucketize(slots, self.edges, right=True) - 1]
            return (slots - starts)[None]
        if self.real is not None:
            return (self.real.cumsum(1) - 1).clamp(min=0)  # padding may stand on the left too
        return slots[None]

    @property
    def lengths(self) -> Tensor:
        """How many real tokens each sequence has: (sequences,)."""
        if self.edges is not None:
            return self.edges.diff().long()
        if self.real is not None:
            return self.real.sum(1)
        return torch.full((self.ids.shape[0],), self.ids.shape[1], device=self.ids.device)


def _some(sequences: Sequence[Sequence[int]]) -> None:
    if not sequences:
        raise ShapeError("a batch of no sequences; leave it out")
