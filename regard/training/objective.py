"""A model and what it is trained for: from a batch to its summed loss, the same way for every task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from regard.data.batch import Tokens
from regard.data.collate import Batch
from regard.models import Encoder, LanguageModel, Network, RnnSeq2Seq, Seq2Seq
from regard.nn.layers import Stack
from regard.training.loss import cross_entropy, vocabulary_loss
from regard.training.rdrop import r_drop


@dataclass(frozen=True)
class Measured:
    """Sums over the labels of a batch, on the device that computed them."""

    surprise: Tensor  # summed -log P of the labels, without smoothing
    correct: Tensor  # how many labels were the most probable
    count: int


@dataclass(frozen=True, eq=False)
class _Placed(Tokens):
    """Tokens whose positions were found before compiled code begins: it has no search among edges to compile, in any PyTorch."""

    where: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        assert self.where is not None
        return self.where

    @classmethod
    def of(cls, tokens: Tokens) -> Tokens:
        if tokens.edges is not None:
            torch._dynamo.maybe_mark_dynamic(tokens.edges, 0)  # one code for any number of documents in a row
        return cls(**{field.name: getattr(tokens, field.name) for field in fields(tokens)}, where=tokens.positions)


class Objective(nn.Module):
    """Called with a batch, gives the summed loss. The whole model is reached through this one call, so that it can be wrapped.

    `tables`: packed batches go through a backend that wants a table of who sees whom. Then only the layers are compiled, since PyTorch 2.11
    compiles the search for documents wrongly.
    """

    def __init__(
        self, model: Network, smoothing: float = 0.0, *, r_drop: float = 0.0, compiled: bool = False, tables: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self.smoothing, self.r_drop = smoothing, r_drop
        if isinstance(model, Encoder):  # a head that the task does not use has nothing to learn from
            unused = [model.masked_words] if model.classifier is not None else [model.pooler]
            for head in unused:
                if head is not None:
                    head.requires_grad_(False)
        self._states: Callable[..., Tensor] | None = None
        self.whole = compiled and isinstance(model, Seq2Seq | LanguageModel) and not tables
        if isinstance(model, Seq2Seq | LanguageModel):
            self._states = torch.compile(model.states, options=_options(model)) if self.whole else model.states
        if compiled and not self.whole:
            for module in model.modules():
                if isinstance(module, Stack):
                    module.compile(options=_options(model))

    def forward(self, batch: Batch) -> Tensor:
        model = self.model
        if self.r_drop:
            twice = (self._trained(batch), self._trained(batch))
            return r_drop(*twice, batch.labels, batch.counted, strength=self.r_drop, smoothing=self.smoothing).total
        if not isinstance(model, Seq2Seq | LanguageModel):
            return cross_entropy(self.logits(batch), batch.labels, batch.counted, smoothing=self.smoothing).total
        weight = model.embed.weight if model.deembed.weight is None else model.deembed.weight
        return vocabulary_loss(
            self.states(batch),
            weight,
            model.deembed.bias,
            batch.labels,
            batch.counted,
            smoothing=self.smoothing,
            scale=model.deembed.scale,
        )

    @torch.no_grad()
    def measure(self, batch: Batch) -> Measured:
        logits = self.logits(batch)
        surprise = cross_entropy(logits, batch.labels, batch.counted).total
        return Measured(surprise, ((logits.argmax(-1) == batch.labels) & batch.counted).sum(), batch.count)

    def states(self, batch: Batch) -> Tensor:
        """What the last layer makes of a batch, before the vocabulary: (rows, length, width)."""
        assert self._states is not None, "only models with a vocabulary at the end have states before it"
        target, source = batch.target, batch.source
        if self.whole:
            target, source = _Placed.of(target), None if source is None else _Placed.of(source)
        return self._states(source, target) if isinstance(self.model, Seq2Seq) else self._states(target, batch.prefix)

    def _trained(self, batch: Batch) -> Tensor:
        """The logits by way of what is compiled."""
        model = self.model
        return model.logits(self.states(batch)) if isinstance(model, Seq2Seq | LanguageModel) else self.logits(batch)

    def logits(self, batch: Batch) -> Tensor:
        """Scores for each label: over the vocabulary at each position, or over the classes of each text."""
        model = self.model
        if isinstance(model, Seq2Seq | RnnSeq2Seq):
            assert batch.source is not None
            return model(batch.source, batch.target)
        if isinstance(model, LanguageModel):
            return model(batch.target, batch.prefix)
        assert isinstance(model, Encoder)
        states = model(batch.target)
        if model.classifier is not None and batch.labels.dim() == 1:
            return model.classify(states, batch.target)[: len(batch.labels)]  # a packed row ends with documents that are only filling
        return model.fill(states)


def _options(model: Network) -> dict[str, Any]:
    """For the compiler. Its way to have a norm's gradient and that of its weights in one pass is twice as slow where dropout comes in."""
    from torch._inductor import config  # loads the compiler: only where it is used

    known = hasattr(config.triton, "mix_order_reduction")
    return {"triton.mix_order_reduction": False} if known and model.config.dropout else {}
