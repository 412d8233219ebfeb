"""Who may see whom.

A rule says it (`Causal() & Padding(real)`), and `build` turns it, once per batch, into the `Mask` that every layer's attention is given.
Rules speak of *slots*: the place of a token in its row or cache. The mask alone decides how queries line up with keys: fewer
queries than keys are the last ones (bottom-right), as decoding with a cache needs, unless each row's slots are given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import MaskError


class Boundaries(NamedTuple):
    """Where documents begin and end in a packed row: [0, 3, 7] is one of 3 tokens and one of 4."""

    edges: Tensor  # (documents + 1,) int32, rising; equal neighbours are empty documents
    longest: int


@dataclass(frozen=True, eq=False)
class Packed:
    """A mask as kernels for packed rows want it: boundaries instead of a table."""

    query: Boundaries
    key: Boundaries
    causal: bool
    window: int | None


@dataclass(frozen=True, eq=False)
class Mask:
    """A rule made ready for one batch: either a table of who sees whom, or the boundaries of packed documents."""

    visible: Tensor | None = None  # (rows or 1, 1, query or 1, key), True: may see; None: all may
    blind: Tensor | None = None  # (rows or 1, 1, query or 1, 1), True: sees nothing, so its output is zero; None: no row can be
    causal: bool = False  # `visible` is exactly the square triangle, so a kernel may use its own
    packed: Packed | None = None  # given instead of `visible`

    def softmax(self, scores: Tensor) -> Tensor:
        """Weights (…, query, key) that are zero for what must not be seen; a query that may see nothing has zeros only."""
        if self.visible is None:
            return scores.softmax(-1)
        hidden = ~self.visible.flatten(0, 4 - scores.dim())  # a lone sentence has neither rows nor heads
        # The lowest number instead of -inf, then zero: so that there is no NaN for a query that sees nothing, forwards or backwards.
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0.0)


class Rule(ABC):
    """One reason why a query may or may not see a key. Rules combine with `&`."""

    sees_itself = True  # whether a query whose slot is one of the keys may always see that one: then no row is blind

    @abstractmethod
    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        """Slots (rows or 1, query, 1) and (1, 1, key) to booleans that broadcast to (rows, query, key)."""

    def parts(self) -> tuple[Rule, ...]:
        return (self,)

    def __and__(self, other: Rule) -> Rule:
        return All(self.parts() + other.parts())

    def build(self, queries: int | Tensor, keys: int | None = None, *, device: torch.device | str | None = None) -> Mask:
        """The table for `queries` (how many, or their slots: (rows, query)) over `keys` slots."""
        if isinstance(queries, int):
            keys = queries if keys is None else keys
            slots = torch.arange(keys - queries, keys, device=device)[None, :, None]
            square, inside = queries == keys, queries <= keys
        else:
            if keys is None:
                raise MaskError("slots of the queries were given without the number of keys; pass keys=")
            slots, square, inside, device = queries[:, :, None], False, True, queries.device
        rules = [rule for rule in self.parts() if not isinstance(rule, Full)]
        if not rules:
            return Mask()
        visible = All(tuple(rules)).allows(slots, torch.arange(keys, device=device)[None, None, :]).unsqueeze(1)
        # Whether a row is blind is never asked, only whether one may be: the answer would make a device wait and compiled code branch.
        blind = None if inside and all(rule.sees_itself for rule in rules) else ~visible.any(-1, keepdim=True)
        return Mask(visible, blind, causal=square and len(rules) == 1 and isinstance(rules[0], Causal))

    def pack(self) -> Mask:
        """The boundaries, for `varlen`: packed documents, causal or not, with or without a window, and nothing else."""
        rules = self.parts()
        documents = [rule for rule in rules if isinstance(rule, Documents)]
        windows = [rule.size for rule in rules if isinstance(rule, Window)]
        other = [type(rule).__name__ for rule in rules if not isinstance(rule, Documents | Causal | Window | Full)]
        if other or len(documents) != 1:
            found = f"found {other[0]}" if other else f"found {len(documents)} Documents rules"
            raise MaskError(f"packed attention knows one Documents rule with Causal and Window, {found}; use .build() and backend 'sdpa'")
        return Mask(
            packed=Packed(
                query=documents[0].query,
                key=documents[0].key,
                causal=any(isinstance(rule, Causal) for rule in rules),
                window=min(windows, default=None),
            )
        )


@dataclass(frozen=True)
class All(Rule):
    """Every one of its rules must allow it."""

    rules: tuple[Rule, ...]

    def parts(self) -> tuple[Rule, ...]:
        return self.rules

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        visible = self.rules[0].allows(query, key)
        for rule in self.rules[1:]:
            visible = visible & rule.allows(query, key)
        return visible


@dataclass(frozen=True)
class Full(Rule):
    """Everyone sees everyone: the encoder's mask."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)


@dataclass(frozen=True)
class Causal(Rule):
    """No one sees the future: the decoder's mask."""

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query


@dataclass(frozen=True, eq=False)
class Prefix(Rule):
    """Everyone sees the given part, and beyond it only the past. `ends`: the slot where the given part ends, per row or per query."""

    ends: Tensor  # (rows,) or, for packed rows, (rows, query)

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        ends = self.ends[:, None] if self.ends.dim() == 1 else self.ends  # (rows, query or 1)
        return (key <= query) | (key < ends[:, :, None])


@dataclass(frozen=True)
class Window(Rule):
    """No one sees further than `size - 1` slots away."""

    size: int

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() < self.size


@dataclass(frozen=True, eq=False)
class Padding(Rule):
    """No one sees padding. `real` is True where a token stands."""

    real: Tensor  # (rows, key)
    sees_itself = False

    def __post_init__(self) -> None:
        if self.real.dtype != torch.bool or self.real.dim() != 2:
            raise MaskError(
                f"Padding wants booleans (rows, keys), True where a token stands; got {self.real.dtype} {tuple(self.real.shape)}; "
                "for example Padding(ids != pad)"
            )

    @classmethod
    def of_lengths(cls, lengths: Tensor, keys: int) -> Padding:
        return cls(torch.arange(keys, device=lengths.device)[None, :] < lengths[:, None])

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        if self.real.shape[1] != key.shape[-1]:
            raise MaskError(f"Padding tells of {self.real.shape[1]} keys, but there are {key.shape[-1]}; build it from the same batch")
        return self.real[:, None, :]


@dataclass(frozen=True, eq=False)
class Documents(Rule):
    """Several documents share a packed row, and none sees another. For cross-attention, each target document sees its own source."""

    query: Boundaries
    source: Boundaries | None = None  # the keys' boundaries where they are not the queries' own

    @property
    def key(self) -> Boundaries:
        return self.source or self.query

    @property
    def sees_itself(self) -> bool:  # type: ignore[override]
        return self.source is None

    def allows(self, query: Tensor, key: Tensor) -> Tensor:
        return document_of(query, self.query) == document_of(key, self.key)


def document_of(slots: Tensor, boundaries: Boundaries) -> Tensor:
    """The number of the document that each slot belongs to."""
    return torch.bucketize(slots, boundaries.edges, right=True) - 1
