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
from regard.nn.instead import starts
from regard.nn.layers import Stack
from regard.training import rdrop
from regard.training.loss import cross_entropy, vocabulary_loss

COMPILED = "what lies between matrix products"


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
        self.whole = compiled and isinstance(model, Seq2Seq | LanguageModel | Encoder) and not tables
        if isinstance(model, Seq2Seq | LanguageModel | Encoder):
            states = model.forward if isinstance(model, Encoder) else model.states
            self._states = torch.compile(states, options=_options(model)) if self.whole else states
        self._agreed = torch.compile(rdrop.r_drop) if self.whole else rdrop.r_drop  # else a dozen passes over float32 logits
        if compiled and not self.whole:
            for module in model.modules():
                if isinstance(module, Stack):
                    module.compile(options=_options(model))

    def forward(self, batch: Batch) -> Tensor:
        model = self.model
        if self.r_drop:
            twice = (self._trained(batch), self._trained(batch))
            return self._agreed(*twice, *_wanted(batch), strength=self.r_drop, smoothing=self.smoothing).total
        if isinstance(model, RnnSeq2Seq) or batch.of_documents:
            return cross_entropy(self._trained(batch), *_wanted(batch), smoothing=self.smoothing).total
        states = self.states(batch)
        deembed = model.deembed if isinstance(model, Seq2Seq | LanguageModel) else None
        if isinstance(model, Encoder):
            assert model.masked_words is not None, "an encoder that learns words has a head for them"
            states, deembed = model.masked_words.vectors(_at_places(states, batch)), model.masked_words.deembed
        assert deembed is not None
        assert isinstance(model, Seq2Seq | LanguageModel | Encoder)
        weight = model.embed.weight if deembed.weight is None else deembed.weight
        return vocabulary_loss(states, weight, deembed.bias, *_wanted(batch), smoothing=self.smoothing, scale=deembed.scale)

    @torch.no_grad()
    def measure(self, batch: Batch) -> Measured:
        logits = self.logits(batch)
        labels, counted = _wanted(batch)
        surprise = cross_entropy(logits, labels, counted).total
        return Measured(surprise, ((logits.argmax(-1) == labels) & counted).sum(), batch.count)

    def states(self, batch: Batch) -> Tensor:
        """What the last layer makes of a batch, before the vocabulary: (rows, length, width)."""
        assert self._states is not None, "only models with a vocabulary at the end have states before it"
        target, source = batch.target, batch.source
        if self.whole:
            target, source = _Placed.of(target), None if source is None else _Placed.of(source)
        if isinstance(self.model, Encoder):
            return self._states(target)
        return self._states(source, target) if isinstance(self.model, Seq2Seq) else self._states(target, batch.prefix)

    def _trained(self, batch: Batch) -> Tensor:
        """The logits by way of what is compiled."""
        model = self.model
        if isinstance(model, Encoder):
            return self._read(self.states(batch), batch)
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
        return self._read(model(batch.target), batch)

    def _read(self, states: Tensor, batch: Batch) -> Tensor:
        """What an encoder's head makes of its states: (documents, labels), or (places, vocabulary) where words are hidden."""
        assert isinstance(self.model, Encoder)
        if batch.of_documents:
            return self.model.classify(states, batch.target)[: len(batch.labels)]
        return self.model.fill(_at_places(states, batch))


def compiles(device: torch.device) -> bool:
    """Whether PyTorch's compiler can be started for that device, which takes Triton and a C compiler."""
    return starts(COMPILED, lambda: _try_compiling(device), device)


def _try_compiling(device: torch.device) -> None:
    x = torch.ones(32, device=device, requires_grad=True)
    y = torch.compile(_curved)(x)
    torch.autograd.grad(y, x, torch.ones_like(y))


def _curved(x: Tensor) -> Tensor:
    return x.sin() * x


def _at_places(x: Tensor, batch: Batch) -> Tensor:
    """What of (rows, length, …) stands where something is counted: (places, …); all of it where the batch does not say where that is."""
    return x if batch.places is None else x.flatten(0, 1).index_select(0, batch.places)


def _wanted(batch: Batch) -> tuple[Tensor, Tensor]:
    """The labels and which of them count, as the logits have them."""
    return _at_places(batch.labels, batch), _at_places(batch.counted, batch)


def _options(model: Network) -> dict[str, Any]:
    """For the compiler. Its way to have a norm's gradient and that of its weights in one pass is twice as slow where dropout comes in."""
    from torch._inductor import config  # loads the compiler: only where it is used

    known = hasattr(config.triton, "mix_order_reduction")
    return {"triton.mix_order_reduction": False} if known and model.config.dropout else {}
