"""From token ids to vectors, and from vectors back to scores over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Embedder(nn.Module):
    """A row of a matrix for each token: the product with its one-hot vector, without the zeros. Scaled by √width in the paper."""

    def __init__(self, vocabulary: int, width: int, *, scaled: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.scale = width**0.5 if scaled else 1.0
        nn.init.normal_(self.weight, std=width**-0.5 if scaled else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = nn.functional.embedding(ids, self.weight)  # (rows, length, width)
        return x if self.scale == 1.0 else x * self.scale


class Deembedder(nn.Module):
    """Logits: how well each token of the vocabulary fits. Tied, it has no matrix of its own and is given the embedder's."""

    def __init__(self, width: int, vocabulary: int, *, tied: bool, bias: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if bias else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, x: Tensor, embedder: Embedder) -> Tensor:
        weight = embedder.weight if self.weight is None else self.weight
        return nn.functional.linear(x if self.scale == 1.0 else x * self.scale, weight, self.bias)  # (rows, length, vocabulary)
