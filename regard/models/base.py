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
from regard.models.state import State
from regard.nn import backends
from regard.nn.masks import Boundaries, Causal, Documents, Full, Mask, Padding, Prefix, Rule


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
