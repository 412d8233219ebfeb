"""Encoder-only: vectors for words in their context, and heads that put them to use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.config import EncoderConfig
from regard.data.batch import Tokens
from regard.errors import ConfigError
from regard.models.base import Network, check_length, self_mask
from regard.nn import backends
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.initial import initialise
from regard.nn.layers import ACTIVATIONS, GATED, Stack, make_norm
from regard.nn.masks import Full, Rule, Window


class Encoder(Network):
    """Every word sees every word. What the vectors are for, the heads say: masked words, labels, or one vector for the whole text."""

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, backend: str = "sdpa") -> None:
        super().__init__()
        self.config = config
        self.backend = backends.choose(backend)
        self.embed = Embedder(config.vocabulary, config.width, scaled=config.embedding_scale)
        self.token_types = Embedder(config.token_types, config.width, scaled=False) if config.token_types else None
        self.encoder = Stack(config, backend=backend)
        self.masked_words = MaskedWords(config) if config.masked_words else None
        self.pooler = nn.Linear(config.width, config.width) if config.pooler else None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.width, len(config.labels)) if config.labels else None
        initialise(self, config)

    def forward(self, tokens: Tokens, types: Tensor | None = None) -> Tensor:
        """A vector for each token (rows, length, width), made from all tokens of its sequence."""
        check_length(tokens.longest, self.config.context, "a text")
        x = self.embed(tokens.ids)
        if self.token_types is not None:
            x = x + self.token_types(torch.zeros_like(tokens.ids) if types is None else types)
        rule: Rule = Full() if self.config.window is None else Window(self.config.window)
        return self.encoder(x, positions=tokens.positions, mask=self_mask(tokens, rule, self.backend))

    def fill(self, states: Tensor) -> Tensor:
        """Logits (…, vocabulary) of the word that belongs at each place."""
        if self.masked_words is None:
            raise ConfigError("this encoder has no head for masked words; build it with masked_words = true")
        return self.masked_words(states, self.embed)

    def pool(self, states: Tensor, tokens: Tokens) -> Tensor:
        """One vector for each sequence (sequences, width): its first token's, or the mean of all."""
        pooled = self.vectors(states, tokens)
        if self.pooler is None:
            return pooled
        return torch.relu(self.pooler(pooled)) if self.config.pooler_activation == "relu" else torch.tanh(self.pooler(pooled))

    def vectors(self, states: Tensor, tokens: Tokens, pooling: str | None = None) -> Tensor:
        """The same without what a head adds, to compare texts by; `pooling`: "first" or "mean", by default as the config says."""
        return _first(states, tokens) if (pooling or self.config.pooling) == "first" else _mean(states, tokens)

    def classify(self, states: Tensor, tokens: Tokens) -> Tensor:
        """Logits (sequences, labels)."""
        if self.classifier is None:
            raise ConfigError("this encoder has no labels to choose from; build it with labels = [...]")
        return self.classifier(self.dropout(self.pool(states, tokens)))


class MaskedWords(nn.Module):
    """From a vector at a masked place to the word that was there: a dense layer, a norm, and the de-embedding."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.activation = ACTIVATIONS[GATED.get(config.activation, config.activation)]
        self.norm = make_norm(config)
        self.deembed = Deembedder(config.width, config.vocabulary, tied=config.tied, bias=True, scale=config.logit_scale)

    def forward(self, states: Tensor, embedder: Embedder) -> Tensor:
        return self.deembed(self.vectors(states), embedder)

    def vectors(self, states: Tensor) -> Tensor:
        """What is compared with the embedding of each word."""
        return self.norm(self.activation(self.dense(states)))


def _first(states: Tensor, tokens: Tokens) -> Tensor:
    if tokens.edges is not None:
        return states[0, tokens.edges[:-1].clamp(max=states.shape[1] - 1)]
    if tokens.real is not None:
        return states[torch.arange(states.shape[0], device=states.device), tokens.real.long().argmax(1)]
    return states[:, 0]


def _mean(states: Tensor, tokens: Tokens) -> Tensor:
    count = tokens.lengths.clamp(min=1)[:, None]
    if tokens.edges is not None:
        # Summed in float32 at least, whatever the states are: a long document would be rounded away. Nothing here waits for the device.
        wide = torch.promote_types(states.dtype, torch.float32)
        owner = torch.bucketize(torch.arange(states.shape[1], device=states.device), tokens.edges, right=True) - 1
        return torch.zeros(len(count), states.shape[-1], dtype=wide, device=states.device).index_add(0, owner, states[0].to(wide)) / count
    if tokens.real is not None:
        states = states * tokens.real[:, :, None]
    return states.sum(1) / count
