"""Where a token stands, told to the model in one of three places.

Absolute schemes add to the embeddings (`embed`). Relative ones act inside attention: rotary turns queries and keys, ALiBi and T5's
scheme add a bias to the scores (`place`, once per pass, for all layers). Positions are tensors, so rows may stand at different places.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.config import RotaryScaling, Transformer
from regard.errors import ConfigError


@dataclass(frozen=True)
class Turn:
    """The angles by which rotary positions turn each pair of numbers in a query or key."""

    cos: Tensor  # (rows or 1, 1, length, head_width / 2), at least float32
    sin: Tensor
    halves: bool  # a pair is (x_i, x_{i + d/2}) rather than (x_{2i}, x_{2i+1})

    def apply(self, x: Tensor) -> Tensor:
        """Turns x (rows, heads, length, head_width); the length of its vectors stays what it was."""
        a, b = x.to(self.cos.dtype).chunk(2, -1) if self.halves else x.to(self.cos.dtype).unflatten(-1, (-1, 2)).unbind(-1)
        turned = (a * self.cos - b * self.sin, b * self.cos + a * self.sin)
        return (torch.cat(turned, -1) if self.halves else torch.stack(turned, -1).flatten(-2)).to(x.dtype)


@dataclass(frozen=True)
class Placement:
    """What attention needs to know of positions in one pass."""

    query: Turn | None = None
    key: Turn | None = None  # for keys computed in this pass; those in a cache were turned when they were written
    bias: Tensor | None = None  # (rows or 1, heads, query, key), added to the scores

    def turn_query(self, query: Tensor) -> Tensor:
        return query if self.query is None else self.query.apply(query)

    def turn_key(self, key: Tensor) -> Tensor:
        return key if self.key is None else self.key.apply(key)


class Positions(nn.Module):
    """No positions at all; the schemes below override what they use."""

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """x (rows, length, width) with its absolute positions (rows or 1, length) told."""
        return x

    def place(self, query: Tensor, key: Tensor, dtype: torch.dtype, *, seen: Tensor | None = None) -> Placement | None:
        """What attention must know of the positions (rows or 1, length) of the queries and of the keys computed in this pass.

        `seen`: the positions of all keys attended to, where a cache holds more of them than this pass computes.
        """
        return None


def angles(positions: Tensor, width: int, base: float, dtype: torch.dtype) -> Tensor:
    """pos / base^(2i/width) for i = 0 … width/2 - 1: (…, width / 2), at least in float32."""
    return positions.to(dtype)[..., None] * frequencies(width, base, positions.device, dtype)


def frequencies(width: int, base: float, device: torch.device, dtype: torch.dtype) -> Tensor:
    """How fast each pair turns, from once every 2π positions to almost never: like the bits of a binary number."""
    return base ** -(torch.arange(0, width, 2, device=device, dtype=dtype) / width)


def sinusoid(
    positions: Tensor, width: int, *, base: float = 10000.0, layout: str = "interleaved", dtype: torch.dtype = torch.float32
) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)): (…, width)."""
    if width % 2:
        raise ConfigError(f"sines and cosines come in pairs, but width is {width}; make it even")
    phase = angles(positions, width, base, dtype)
    if layout == "halves":
        return torch.cat((phase.sin(), phase.cos()), -1)
    return torch.stack((phase.sin(), phase.cos()), -1).flatten(-2)


class Sinusoidal(Positions):
    """The paper's: a fixed vector of sines and cosines for each position."""

    def __init__(self, width: int, layout: str = "interleaved") -> None:
        super().__init__()
        self.width, self.layout = width, layout

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + sinusoid(positions, self.width, layout=self.layout, dtype=_at_least_float32(x.dtype)).to(x.dtype)


class Learned(Positions):
    """A vector for each position, learned like a word's."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(context, width))
        nn.init.normal_(self.weight, std=0.02)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + nn.functional.embedding(positions, self.weight)


class Rotary(Positions):
    """Turns queries and keys by an angle that grows with the position: their product then depends on the distance alone."""

    def __init__(self, head_width: int, base: float = 10000.0, layout: str = "interleaved", scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        self.head_width, self.base, self.layout, self.scaling = head_width, base, layout, scaling

    def turn(self, positions: Tensor, dtype: torch.dtype) -> Turn:
        speed = frequencies(self.head_width, self.base, positions.device, dtype)
        if self.scaling is not None:
            speed = slowed(speed, self.scaling)
        phase = (positions.to(dtype)[..., None] * speed)[:, None]  # (rows or 1, 1, length, head_width / 2)
        return Turn(phase.cos(), phase.sin(), halves=self.layout == "halves")

    def place(self, query: Tensor, key: Tensor, dtype: torch.dtype, *, seen: Tensor | None = None) -> Placement:
        turn = self.turn(query, _at_least_float32(dtype))
        return Placement(query=turn, key=turn if key is query else self.turn(key, _at_least_float32(dtype)))


def slowed(speed: Tensor, scaling: RotaryScaling) -> Tensor:
    """Frequencies for a longer context than they were made for."""
    if scaling.kind == "linear":
        return speed / scaling.factor
    turns = scaling.original_context * speed / (2 * math.pi)  # how often each pair turns within the original context
    keep = ((turns - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency)).clamp(0, 1)
    return keep * speed + (1 - keep) * speed / scaling.factor


class Alibi(Positions):
    """The farther a key, the lower its score, at a rate of each head's own."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def place(self, query: Tensor, key: Tensor, dtype: torch.dtype, *, seen: Tensor | None = None) -> Placement:
        key = key if seen is None else seen
        slopes = alibi_slopes(self.heads, query.device, _at_least_float32(dtype))
        distance = (query[:, :, None] - key[:, None, :]).abs()  # (rows or 1, query, key)
        return Placement(bias=(-slopes[:, None, None] * distance[:, None]).to(dtype))


def alibi_slopes(heads: int, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """2^(-8/n), 2^(-16/n), … for n heads; where n is no power of two, every other slope of the next power fills up."""
    power = 2 ** int(math.log2(heads))
    first = torch.arange(1, power + 1, device=device, dtype=dtype) * 2
    others = torch.arange(heads - power, device=device, dtype=dtype) * 2 + 1
    return torch.exp2(-4 / power * torch.cat((first, others)))


class RelativeBias(Positions):
    """T5's: a learned bias for each head and bucket of distances; near ones have a bucket each, far ones share logarithmically."""

    def __init__(self, heads: int, buckets: int = 32, distance: int = 128, *, both_ways: bool) -> None:
        super().__init__()
        self.buckets, self.distance, self.both_ways = buckets, distance, both_ways
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.weight, std=0.02)

    def bucket(self, offset: Tensor) -> Tensor:
        """key position - query position to its bucket; an encoder has one half of the buckets for each side."""
        count, start = self.buckets, torch.zeros_like(offset)
        if self.both_ways:
            count //= 2
            start = (offset > 0) * count
        else:
            offset = offset.clamp(max=0)
        far = offset.abs()
        exact = count // 2
        growth = (far.clamp(min=1).float() / exact).log() / math.log(self.distance / exact) * (count - exact)
        return start + torch.where(far < exact, far, (exact + growth.long()).clamp(max=count - 1))

    def place(self, query: Tensor, key: Tensor, dtype: torch.dtype, *, seen: Tensor | None = None) -> Placement:
        key = key if seen is None else seen
        offset = key[:, None, :] - query[:, :, None]  # (rows or 1, query, key)
        bias = nn.functional.embedding(self.bucket(offset), self.weight)  # (rows or 1, query, key, heads)
        return Placement(bias=bias.permute(0, 3, 1, 2).to(dtype))


def make_positions(config: Transformer, *, both_ways: bool) -> Positions:
    """The scheme that a config names; `both_ways`: keys stand on either side of a query, as in an encoder."""
    match config.positions:
        case "sinusoidal":
            return Sinusoidal(config.width, config.position_layout)
        case "learned":
            return Learned(config.context, config.width)
        case "rotary":
            return Rotary(config.key_width, config.rotary_base, config.position_layout, config.rotary_scaling)
        case "alibi":
            return Alibi(config.heads)
        case "relative":
            return RelativeBias(config.heads, config.relative_buckets, config.relative_distance, both_ways=both_ways)
        case "none":
            return Positions()


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
