"""What every model shares, and the protocol through which search and training use all of them alike.

encode(source) → memory · start(memory, room) → state and the first logits · step(ids, state) → the next logits · state.reorder(rows)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.data.batch import Tokens
from regard.errors import ShapeError
from regard.nn import backends
from regard.nn.cache import Cache, KeyValues
from regard.nn.masks import Boundaries, Causal, Documents, Full, Mask, Padding, Prefix, Rule


class Model(nn.Module):
    """A network and the config that made it. Token ids go in as `Tokens`, padded or packed."""

    config: ModelConfig

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


@dataclass(frozen=True)
class Memory:
    """A source made ready for decoding: what the encoder made of it, or for a language model just the prompt."""

    tokens: Tokens
    states: Tensor | None = None  # (sources, length, width)


class State(ABC):
    """Where decoding stands: one row for each open hypothesis. `step` writes into it."""

    @abstractmethod
    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i becomes what row rows[i] was. Rows of a source stay together, as many for each; `sources` names those that stay."""


class Generator(Model, ABC):
    """A model that writes: position by position, from logits over its vocabulary."""

    @abstractmethod
    def encode(self, source: Tokens) -> Memory:
        """Reads the source, once."""

    @abstractmethod
    def start(self, memory: Memory, room: int) -> tuple[State, Tensor]:
        """One row for each source, with room for so many new positions, and the logits (rows, vocabulary) of the first of them.

        Neither this nor `step` keeps anything for gradients: training calls the model itself.
        """

    @abstractmethod
    def step(self, ids: Tensor, state: State) -> Tensor:
        """Takes in the tokens (rows, n) chosen last and gives the logits (rows, n, vocabulary) that follow each."""


@dataclass
class StackState(State):
    """A Transformer's: the cache of its decoder, and each layer's keys and values of the source, kept once per source."""

    cache: Cache
    memory: list[KeyValues] | None = None
    memory_mask: Mask | None = None
    prefix: Tensor | None = None  # (rows,), where a prefix model's given part ends

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        self.cache.reorder(rows)
        if self.prefix is not None:
            self.prefix = self.prefix.index_select(0, rows)
        if sources is not None and self.memory is not None:
            self.memory = [KeyValues(key.index_select(0, sources), value.index_select(0, sources)) for key, value in self.memory]
            self.memory_mask = take_rows(self.memory_mask, sources)


def take_rows(mask: Mask | None, rows: Tensor) -> Mask | None:
    """The mask of some rows of a batch."""
    if mask is None or mask.visible is None or mask.visible.shape[0] == 1:
        return mask
    return Mask(mask.visible.index_select(0, rows), None if mask.blind is None else mask.blind.index_select(0, rows))


def boundaries(tokens: Tokens) -> Boundaries:
    assert tokens.edges is not None
    return Boundaries(tokens.edges, tokens.longest)


def self_mask(tokens: Tokens, rule: Rule, backend: backends.Backend) -> Mask:
    """Who of a batch may see whom: the rule, but never padding and never another document."""
    if tokens.packed:
        rule = rule & Documents(boundaries(tokens))
        if backends.chosen(backend) is backends.varlen:
            return rule.pack()
    elif tokens.real is not None and not (tokens.tail and any(isinstance(part, Causal | Prefix) for part in rule.parts())):
        # Padding on the right is in the future of every real token: hiding the future hides it, and a kernel's own triangle will do.
        rule = rule & Padding(tokens.real)
    return rule.build(tokens.ids.shape[1], device=tokens.ids.device)


def cross_mask(target: Tokens, source: Tokens, backend: backends.Backend) -> Mask:
    """Every target token sees all real tokens of its own source."""
    if target.packed != source.packed:
        raise ShapeError("one of source and target is packed and the other padded; make both the same way")
    if source.packed:
        rule = Documents(boundaries(target), boundaries(source))
        if backends.chosen(backend) is backends.varlen:
            return rule.pack()
        # Slots are counted within each row, so queries start at 0 here, whatever the number of keys.
        slots = torch.arange(target.ids.shape[1], device=target.ids.device)[None]
        return rule.build(slots, source.ids.shape[1])
    if source.ids.shape[0] != target.ids.shape[0]:
        raise ShapeError(f"{source.ids.shape[0]} sources for {target.ids.shape[0]} targets; each target needs its own")
    return padding_mask(source)


def padding_mask(source: Tokens) -> Mask:
    """The same for every query: no padding."""
    rule = Full() if source.real is None else Padding(source.real)
    return rule.build(1, source.ids.shape[1], device=source.ids.device)


def left_aligned(tokens: Tokens) -> Tokens:
    """The same rows with all padding on the right, wherever it stood."""
    if tokens.packed:
        raise ShapeError("decoding reads padded rows, not a packed one; use Tokens.pad")
    if tokens.real is None:
        return tokens
    order = (~tokens.real).long().argsort(dim=1, stable=True)
    return Tokens(tokens.ids.gather(1, order), tokens.real.gather(1, order), tail=True)


def check_length(length: int, context: int, what: str) -> None:
    if length > context:
        raise ShapeError(
            f"{what} is {length} tokens long, but the model's context is {context}; shorten it, or build the model with a larger context"
        )
