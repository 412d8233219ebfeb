"""The recurrent encoder-decoder, with the attention that started it all, or without."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from regard.config import RnnConfig
from regard.data.batch import Tokens
from regard.errors import ShapeError
from regard.models.base import Generator, Memory, check_length, left_aligned, padding_mask
from regard.models.state import State, check_words, take_rows
from regard.nn import backends
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.recurrent import Hidden, Looked, RecurrentDecoder, RecurrentEncoder


@dataclass
class RnnState(State):
    """The decoder's hidden state for each row, and the source it looks at."""

    hidden: Hidden  # its rows are the hypotheses of the first source, then those of the next
    source: Looked

    @property
    def sources(self) -> int:
        return self.source.memory.shape[0]

    @property
    def hypotheses(self) -> int:
        return self.hidden.state.shape[1] // self.sources

    def select(self, parents: Tensor) -> None:
        first = torch.arange(self.sources, device=parents.device)[:, None] * self.hypotheses
        self.hidden = self.hidden.take((first + parents).flatten())

    def keep(self, sources: Tensor) -> None:
        rows = sources[:, None] * self.hypotheses + torch.arange(self.hypotheses, device=sources.device)
        self.hidden = self.hidden.take(rows.flatten())
        keys = self.source.keys
        mask = take_rows(self.source.mask, sources)
        assert mask is not None
        self.source = Looked(self.source.memory.index_select(0, sources), None if keys is None else keys.index_select(0, sources), mask)


@dataclass(frozen=True)
class RnnMemory(Memory):
    """The encoder's state at each word, and the last, which is all that a decoder without attention is told."""

    last: Hidden | None = None

    def take(self, sources: Tensor) -> Self:
        return replace(super().take(sources), last=None if self.last is None else self.last.take(sources))


class RnnSeq2Seq(Generator):
    """Reads a source word by word and writes a target word by word."""

    config: RnnConfig

    def __init__(self, config: RnnConfig, backend: str = "sdpa") -> None:
        super().__init__()
        backends.choose(backend)  # for attention kernels, which this model has none of: only the name must be right
        self.config = config
        self.embed = Embedder(config.vocabulary, config.width, scaled=False)
        self.embed_source = None
        if config.source_vocabulary is not None:
            self.embed_source = Embedder(config.source_vocabulary, config.width, scaled=False)
        self.encoder = RecurrentEncoder(
            config.width, config.layers, cell=config.cell, bidirectional=config.bidirectional, dropout=config.dropout
        )
        self.decoder = RecurrentDecoder(
            config.width, config.layers, cell=config.cell, attends=config.attention == "additive", dropout=config.dropout
        )
        self.deembed = Deembedder(config.width, config.vocabulary, tied=config.tied, bias=True)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        """Logits (rows, target, vocabulary) of what follows each target token."""
        return self.logits(self.states(source, target))

    def states(self, source: Tokens, target: Tokens) -> Tensor:
        """What the decoder makes of each word (rows, target, width), before the vocabulary."""
        if target.packed:
            raise ShapeError("a recurrent model reads padded rows, not a packed one; use Tokens.pad")
        check_length(target.ids.shape[1], self.config.context, "a target")
        memory = self.encode(source)
        hidden, looked = self._begin(memory)
        states, _ = self.decoder(self.dropout(self.embed(target.ids)), hidden, looked)
        return states

    def logits(self, states: Tensor) -> Tensor:
        return self.deembed(states, self.embed)

    def encode(self, source: Tokens) -> RnnMemory:
        source = left_aligned(source)
        check_length(source.ids.shape[1], self.config.context, "a source")
        embed = self.embed_source or self.embed
        states, last = self.encoder(self.dropout(embed(source.ids)), source.lengths)
        return RnnMemory(source, states, last)

    @torch.no_grad()
    def start(self, memory: Memory, room: int, hypotheses: int = 1) -> tuple[State, Tensor]:
        """`room` is no matter here: a hidden state is as large after a thousand words as after one."""
        assert isinstance(memory, RnnMemory), "a memory comes from encode()"
        state = RnnState(*self._begin(memory))
        begin = torch.full((memory.tokens.ids.shape[0], 1), self.config.start_token, device=self.device)
        return state, self.step(begin, state)[:, -1]

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, RnnState)
        check_words(ids, state.sources, state.hypotheses)
        return self._write(ids.reshape(-1, 1), state).unflatten(0, ids.shape).squeeze(2)

    @torch.no_grad()
    def extend(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, RnnState)
        check_words(ids[:, :1], state.sources, state.hypotheses)
        return self._write(ids, state)

    def _write(self, ids: Tensor, state: RnnState) -> Tensor:
        states, state.hidden = self.decoder(self.dropout(self.embed(ids)), state.hidden, state.source)
        return self.logits(states)

    def looks(self, taps: Mapping[str, Tensor]) -> Tensor:
        if self.decoder.attention is None:
            return super().looks(taps)
        weights = taps["decoder.attention.weights"]  # (sources * hypotheses, 1, length)
        return weights.transpose(0, 1)

    def _begin(self, memory: RnnMemory) -> tuple[Hidden, Looked]:
        assert memory.states is not None
        assert memory.last is not None
        return self.decoder.start(memory.last), self.decoder.look(memory.states, padding_mask(memory.tokens))
