"""The encoder-decoder of "Attention Is All You Need"."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from regard.config import Seq2SeqConfig
from regard.data.batch import Tokens
from regard.models.base import Generator, Memory, check_length, cross_mask, padding_mask, self_mask
from regard.models.state import StackState, State
from regard.nn import backends
from regard.nn.cache import Cache
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.initial import initialise
from regard.nn.layers import Stack
from regard.nn.masks import Causal, Full, Mask


class Seq2Seq(Generator):
    """A source becomes a memory, all words at once; a target is written from it, word by word."""

    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig, backend: str = "sdpa") -> None:
        super().__init__()
        self.config = config
        self.backend = backends.choose(backend)
        self.embed = Embedder(config.vocabulary, config.width, scaled=config.embedding_scale)
        self.embed_source = None
        if config.source_vocabulary is not None:
            self.embed_source = Embedder(config.source_vocabulary, config.width, scaled=config.embedding_scale)
        self.encoder = Stack(config, backend=backend)
        self.decoder = Stack(config, layers=config.decoder_layers, causal=True, cross=True, backend=backend)
        self.deembed = Deembedder(config.width, config.vocabulary, tied=config.tied, bias=config.output_bias, scale=config.logit_scale)
        initialise(self, config)

    def forward(self, source: Tokens, target: Tokens) -> Tensor:
        """Logits (rows, target, vocabulary) of what follows each target token, all at once; the target begins with a start token."""
        return self.logits(self.states(source, target))

    def states(self, source: Tokens, target: Tokens) -> Tensor:
        """The decoder's last layer (rows, target, width), before the vocabulary."""
        check_length(target.longest, self.config.context, "a target")
        return self.decoder(
            self.embed(target.ids),
            self.read(source),
            positions=target.positions,
            mask=self_mask(target, Causal(), self.backend),
            memory_mask=cross_mask(target, source, self.backend),
        )

    def logits(self, states: Tensor) -> Tensor:
        return self.deembed(states, self.embed)

    def read(self, source: Tokens) -> Tensor:
        """The encoder's output (rows, source, width): a vector for each word, made from all words."""
        check_length(source.longest, self.config.context, "a source")
        embed = self.embed_source or self.embed
        return self.encoder(embed(source.ids), positions=source.positions, mask=self_mask(source, Full(), self.backend))

    def encode(self, source: Tokens) -> Memory:
        return Memory(source, self.read(source))

    @torch.no_grad()
    def start(self, memory: Memory, room: int, hypotheses: int = 1) -> tuple[State, Tensor]:
        assert memory.states is not None, "a memory comes from encode()"
        check_length(room, self.config.context, "the target to be decoded")
        rows, device = memory.states.shape[0], memory.states.device
        cache = Cache.of(self.config, self.decoder, rows, 1 + room * hypotheses, hypotheses)  # the start token takes a place too
        state = StackState.begin(cache, torch.zeros(rows, dtype=torch.long, device=device), context=self.config.context)
        state.memory, state.memory_mask = self.decoder.keys_values(memory.states), padding_mask(memory.tokens)
        begin = torch.full((rows, 1), self.config.start_token, device=device)
        return state, self.step(begin, state)[:, -1]

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, StackState)
        return self._write(ids, state, *state.place(ids))

    @torch.no_grad()
    def extend(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, StackState)
        return self._write(ids, state, *state.place_row(ids))

    def looks(self, taps: Mapping[str, Tensor]) -> Tensor:
        return taps[f"decoder.layers.{len(self.decoder.layers) - 1}.cross.weights"].mean(1)  # all heads of the last layer

    def _write(self, ids: Tensor, state: StackState, slots: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        states = self.decoder(
            self.embed(ids),
            state.memory,
            positions=positions,
            mask=mask,
            memory_mask=state.memory_mask,
            cache=state.view(slots, mask),
        )
        return self.logits(states)
