"""Decoder-only: a language model, causal or with a prefix that is seen whole."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.config import LanguageModelConfig
from regard.data.batch import Tokens
from regard.errors import ConfigError, ShapeError
from regard.models.base import Generator, Memory, StackState, State, check_length, left_aligned, self_mask
from regard.nn import backends
from regard.nn.cache import Cache
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.initial import initialise
from regard.nn.layers import Stack
from regard.nn.masks import Causal, Prefix, Rule, Window


class LanguageModel(Generator):
    """Each word from those before it. With mask = "prefix", the given part of a text sees itself in both directions."""

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, backend: str = "sdpa") -> None:
        super().__init__()
        self.config = config
        self.backend = backends.choose(backend, mask=config.mask)
        self.embed = Embedder(config.vocabulary, config.width, scaled=config.embedding_scale)
        self.decoder = Stack(config, causal=True, backend=backend)
        self.deembed = Deembedder(config.width, config.vocabulary, tied=config.tied, bias=config.output_bias, scale=config.logit_scale)
        initialise(self, config)

    def forward(self, tokens: Tokens, prefix: Tensor | None = None) -> Tensor:
        """Logits (rows, length, vocabulary) of what follows each token. `prefix`: how much of each sequence is given (sequences,)."""
        return self.logits(self.states(tokens, prefix))

    def states(self, tokens: Tokens, prefix: Tensor | None = None) -> Tensor:
        """The last layer (rows, length, width), before the vocabulary."""
        check_length(tokens.longest, self.config.context, "a text")
        ends = None if prefix is None else self._prefix_ends(tokens, prefix)
        mask = self_mask(tokens, self._rule(ends), self.backend)
        return self.decoder(self.embed(tokens.ids), positions=tokens.positions, mask=mask)

    def logits(self, states: Tensor) -> Tensor:
        return self.deembed(states, self.embed)

    def encode(self, source: Tokens) -> Memory:
        """A language model has nothing to encode: the prompt itself is what it continues."""
        if source.ids.shape[1] == 0 or not source.lengths.all():
            raise ShapeError("a prompt is empty; begin it with the start token")
        return Memory(left_aligned(source))

    @torch.no_grad()
    def start(self, memory: Memory, room: int) -> tuple[State, Tensor]:
        prompt = memory.tokens
        rows, capacity = prompt.ids.shape[0], prompt.ids.shape[1] + room
        check_length(capacity, self.config.context, "prompt and continuation together")
        cache = Cache.of(self.config, self.decoder, rows, capacity)
        state = StackState(cache, prefix=prompt.lengths if self.config.mask == "prefix" else None)
        states = self._advance(prompt.ids, state, prompt.lengths)
        last = states[torch.arange(rows, device=states.device), prompt.lengths - 1]
        return state, self.logits(last)

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, StackState)
        return self.logits(self._advance(ids, state))

    def _advance(self, ids: Tensor, state: StackState, lengths: Tensor | None = None) -> Tensor:
        count = ids.shape[1]
        slots = state.cache.slots(ids)
        mask = self._rule(state.prefix).build(slots, state.cache.reach(count))
        states = self.decoder(self.embed(ids), positions=slots, mask=mask, cache=state.cache)
        state.cache.advance(count, lengths)
        return states

    def _rule(self, prefix_ends: Tensor | None) -> Rule:
        rule = Causal() if prefix_ends is None else Prefix(prefix_ends)
        return rule if self.config.window is None else rule & Window(self.config.window)

    def _prefix_ends(self, tokens: Tokens, prefix: Tensor) -> Tensor:
        """The slot where the given part ends: of each row, or of each token of a packed row."""
        if self.config.mask != "prefix":
            raise ConfigError("a prefix was given to a causal model; build it with mask = 'prefix'")
        if prefix.shape != tokens.lengths.shape:
            raise ShapeError(f"prefix has {prefix.shape[0]} lengths for {tokens.lengths.shape[0]} sequences; give one for each")
        if tokens.edges is not None:
            return (tokens.edges[:-1] + prefix).repeat_interleave(tokens.lengths)[None]
        if tokens.real is not None:
            return tokens.real.long().argmax(1) + prefix  # counted from the first token, where padding stands on the left
        return prefix
