"""Decoder-only: a language model, causal or with a prefix that is seen whole."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.config import LanguageModelConfig
from regard.data.batch import Tokens
from regard.errors import ConfigError, ShapeError
from regard.models.base import Generator, Memory, check_length, left_aligned, self_mask
from regard.models.state import StackState, State
from regard.nn import backends
from regard.nn.cache import Cache
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.initial import initialise
from regard.nn.layers import Stack
from regard.nn.masks import Causal, Mask, Prefix, Rule, Window


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
    def start(self, memory: Memory, room: int, hypotheses: int = 1) -> tuple[State, Tensor]:
        prompt = memory.tokens
        rows, longest = prompt.ids.shape
        shortest = int(prompt.lengths.min())  # a longer one may have less room, and be done before the others
        check_length(max(longest + 1, shortest + room), self.config.context, "prompt and continuation together")
        cache = Cache.of(self.config, self.decoder, rows, longest + room * hypotheses, hypotheses)
        slots = cache.claim(torch.arange(longest, device=prompt.ids.device).expand(rows, -1))
        mask = self._rule(prompt.lengths if self.config.mask == "prefix" else None).build(slots[None], cache.reach)
        states = self.decoder(self.embed(prompt.ids), positions=slots[None], mask=mask, cache=cache.view(slots))
        last = states[torch.arange(rows, device=states.device), prompt.lengths - 1]
        return StackState.begin(cache, prompt.lengths, window=self.config.window, context=self.config.context), self.logits(last)

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, StackState)
        return self._write(ids, state, *state.place(ids))

    @torch.no_grad()
    def extend(self, ids: Tensor, state: State) -> Tensor:
        assert isinstance(state, StackState)
        return self._write(ids, state, *state.place_row(ids))

    def _write(self, ids: Tensor, state: StackState, slots: Tensor, positions: Tensor, mask: Mask) -> Tensor:
        return self.logits(self.decoder(self.embed(ids), positions=positions, mask=mask, cache=state.view(slots, mask)))

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
