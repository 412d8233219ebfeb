"""What every model shares, and the protocol through which search and training use all of them alike.

encode(source) → memory · start(memory, room) → state and the first logits · step(ids, state) → the next logits · state.select(parents)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from regard.config import ModelConfig
from regard.data.batch import Tokens
from regard.errors import ConfigError, ShapeError
from regard.nn import backends
from regard.nn.cache import Cache, CacheView, KeyValues
from regard.nn.masks import Boundaries, Causal, Documents, Full, Mask, Padding, Prefix, Rule

CLEAR_EVERY = 16  # slots, of all hypotheses of a source


class Network(nn.Module):
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

    def take(self, sources: Tensor) -> Self:
        """That of some sources, or of one several times."""
        return replace(
            self,
            tokens=self.tokens.map(lambda x: x.index_select(0, sources)),
            states=None if self.states is None else self.states.index_select(0, sources),
        )


class State(ABC):
    """Where decoding stands: for each source its open hypotheses, as many for each. `step` writes into it."""

    @abstractmethod
    def select(self, parents: Tensor) -> None:
        """Hypothesis k of each source now is what hypothesis parents[source, k] was; there may be more of them, or fewer."""

    @abstractmethod
    def keep(self, sources: Tensor) -> None:
        """Only these sources are left."""


class Generator(Network, ABC):
    """A model that writes: position by position, from logits over its vocabulary.

    None of the methods that take or give a state keeps anything for gradients: training calls the model itself.
    """

    @abstractmethod
    def encode(self, source: Tokens) -> Memory:
        """Reads the source, once."""

    @abstractmethod
    def start(self, memory: Memory, room: int, hypotheses: int = 1) -> tuple[State, Tensor]:
        """One hypothesis for each source, and the logits (sources, vocabulary) of its first word.

        There is room for so many new positions of so many hypotheses.
        """

    @abstractmethod
    def step(self, ids: Tensor, state: State) -> Tensor:
        """Takes in the word chosen last for each hypothesis (sources, hypotheses) and gives the logits (…, vocabulary) of the next."""

    @abstractmethod
    def extend(self, ids: Tensor, state: State) -> Tensor:
        """Takes in words (sources, n) one after the other, for sources of one hypothesis, and gives the logits (…, vocabulary) then."""

    def looks(self, taps: Mapping[str, Tensor]) -> Tensor:
        """How much each hypothesis looked at each source word (sources, hypotheses, source length), from what `record` collected."""
        raise ConfigError(f"a model of kind '{self.config.kind}' looks at no source, so there is nothing to align")


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
        if self.cache.key.device.type == "cpu" and parents.shape[1] > 1:
            self._clear()

    def _clear(self) -> None:
        """Frees slots that no hypothesis can see any more, once they are as many as those that one can."""
        used = self.cache.used
        if used < self.cleared + CLEAR_EVERY:
            return
        live = self.visible[:, :, :used].any(1)
        most = int(live.sum(1).max())
        self.cleared = used
        if 2 * most <= used:
            slots = live.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
            self.cache.gather(slots)
            chosen = self.visible[:, :, :used].gather(2, slots[:, None].expand(-1, self.visible.shape[1], -1))
            self.visible.zero_()
            self.visible[:, :, :most] = chosen
            self.cleared = most

    def keep(self, sources: Tensor) -> None:
        self.cache.keep(sources)
        self.visible, self.lengths = self.visible.index_select(0, sources), self.lengths.index_select(0, sources)
        if self.memory is not None:
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


def check_words(ids: Tensor, sources: int, hypotheses: int) -> None:
    if ids.shape[0] != sources:
        raise ShapeError(f"the state has {sources} rows and {ids.shape[0]} were given; each goes on where it stood, so give all of them")
    if ids.shape[1] != hypotheses:
        raise ShapeError(f"the state has {hypotheses} hypotheses a source, but words for {ids.shape[1]} were given; give each its own")


def check_length(length: int, context: int, what: str) -> None:
    if length > context:
        raise ShapeError(
            f"{what} is {length} tokens long, but the model's context is {context}; shorten it, or build the model with a larger context"
        )
