"""A model and what it is trained for: from a batch to its summed loss, the same way for every task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.data.collate import Batch
from regard.models import Encoder, LanguageModel, Model, RnnSeq2Seq, Seq2Seq
from regard.training.loss import cross_entropy


@dataclass(frozen=True)
class Measured:
    """Sums over the labels of a batch, on the device that computed them."""

    surprise: Tensor  # summed -log P of the labels, without smoothing
    correct: Tensor  # how many labels were the most probable
    count: int


class Objective(nn.Module):
    """Called with a batch, gives the summed loss. The whole model is reached through this one call, so that it can be wrapped."""

    def __init__(self, model: Model, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self.smoothing = smoothing
        if isinstance(model, Encoder):  # a head that the task does not use has nothing to learn from
            unused = [model.masked_words] if model.classifier is not None else [model.pooler]
            for head in unused:
                if head is not None:
                    head.requires_grad_(False)

    def forward(self, batch: Batch) -> Tensor:
        return cross_entropy(self.logits(batch), batch.labels, batch.counted, smoothing=self.smoothing).total

    @torch.no_grad()
    def measure(self, batch: Batch) -> Measured:
        logits = self.logits(batch)
        surprise = cross_entropy(logits, batch.labels, batch.counted).total
        return Measured(surprise, ((logits.argmax(-1) == batch.labels) & batch.counted).sum(), batch.count)

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
