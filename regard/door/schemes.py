"""What position schemes look like, whatever the text: a model's own, and those that need no training beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import ModelConfig, RnnConfig
from regard.door.shown import Short
from regard.models import Network
from regard.nn.layers import Stack
from regard.nn.positions import Alibi, Learned, Positions, RelativeBias, Rotary, alibi_slopes, sinusoid

SHOWN = 64  # positions
HEAD_WIDTH = 64  # of a rotary scheme for a model that has no heads


@dataclass(frozen=True, repr=False)
class Similarity(Short):
    """The cosine between the vectors of two positions so far apart: over all such pairs the mean, the lowest and the highest."""

    mean: Tensor  # (distances,)
    low: Tensor
    high: Tensor


@dataclass(frozen=True, repr=False)
class Scheme(Short):
    """Either a vector for each position and how alike they are by distance, or what is added to scores at each distance."""

    distance: tuple[int, ...]
    vectors: Tensor | None = None  # (positions, numbers)
    similarity: Similarity | None = None
    bias: Tensor | None = None  # (heads, distances)


@dataclass(frozen=True, repr=False)
class Schemes(Short):
    own: str  # "none" for a model without positions, "recurrent" for one that reads in order
    each: Mapping[str, Scheme]


@torch.inference_mode()
def schemes(network: Network, shown: int = SHOWN) -> Schemes:
    config = network.config
    count = max(2, min(shown, config.context))
    stack = next((module for module in network.modules() if isinstance(module, Stack)), None)
    own = Positions() if stack is None else stack.positions
    width = config.width - config.width % 2
    layout = getattr(config, "position_layout", "interleaved")
    each = {
        "sinusoidal": of_vectors(sinusoid(torch.arange(count), width, layout=layout)),
        "rotary": of_vectors(_turned(own if isinstance(own, Rotary) else Rotary(_head_width(config)), count)),
    }
    if isinstance(own, Learned):
        each["learned"] = of_vectors(own.weight[:count].detach().float().cpu())
    elif isinstance(own, Alibi):
        slopes = alibi_slopes(own.heads)
        each["alibi"] = Scheme(tuple(range(count)), bias=-slopes[:, None] * torch.arange(count))
    elif isinstance(own, RelativeBias):
        distance = range(1 - count, count if own.both_ways else 1)
        offsets = torch.tensor(distance, device=own.weight.device)
        each["relative"] = Scheme(tuple(distance), bias=own.weight.detach()[own.bucket(offsets)].float().cpu().T)
    return Schemes("recurrent" if isinstance(config, RnnConfig) else config.positions, each)


def _head_width(config: ModelConfig) -> int:
    width = HEAD_WIDTH if isinstance(config, RnnConfig) else config.key_width
    return width + width % 2


def _turned(rotary: Rotary, count: int) -> Tensor:
    """The direction that each pair of numbers points to at each position: cosines, then sines (positions, head_width)."""
    turn = rotary.turn(torch.arange(count)[None], torch.float32)
    return torch.cat((turn.cos, turn.sin), -1)[0, 0]


def of_vectors(vectors: Tensor) -> Scheme:
    """A scheme of vectors (positions, numbers), compared with one another."""
    alike = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    apart = [alike.diagonal(distance) for distance in range(len(vectors))]
    found = Similarity(*(torch.stack([take(row) for row in apart]) for take in (torch.mean, torch.amin, torch.amax)))
    return Scheme(tuple(range(len(vectors))), vectors, found)
