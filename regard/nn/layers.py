"""Norms, feed-forward, residual blocks, and the stack of them that is an encoder or a decoder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from regard.config import Transformer
from regard.nn import backends, joined
from regard.nn.attention import Attention
from regard.nn.cache import CacheView, KeyValues, LayerCache
from regard.nn.instead import give_up
from regard.nn.masks import Mask
from regard.nn.positions import Placement, make_positions
from regard.nn.tap import tap

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}  # act(xW) ⊙ xV: one half decides how much of the other passes


def make_norm(config: Transformer) -> nn.Module:
    """LayerNorm sets each vector's mean to 0 and variance to 1; RMSNorm only its length. Both learn a scale, LayerNorm a shift too."""
    kind = nn.LayerNorm if config.norm == "layer" else nn.RMSNorm
    return kind(config.width, eps=config.norm_epsilon)


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, the same for every position: max(0, xW₁ + b₁)W₂ + b₂."""

    def __init__(self, width: int, inner: int, activation: str = "relu", *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.activation_name, self.gated = activation, activation in GATED
        self.activation = ACTIVATIONS[GATED.get(activation, activation)]
        self.widen = nn.Linear(width, 2 * inner if self.gated else inner, bias=bias)  # gated: gate and content in one product
        self.narrow = nn.Linear(inner, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = joined.activated(self.activation_name, self.widen, x) if joined.activates(self.activation_name, self.widen, x) else None
        if inner is not None:
            x = inner
        elif self.gated:
            gate, x = self.widen(x).chunk(2, -1)
            x = self.activation(gate) * x
        else:
            x = self.activation(self.widen(x))
        tap(self, "inner", x)
        x = self.narrow(self.dropout(x))
        tap(self, "output", x)
        return x


class AddNorm(nn.Module):
    """The path around a sub-layer f: norm(x + dropout(f(x))), as in the paper, or x + dropout(f(norm(x)))."""

    def __init__(self, config: Transformer) -> None:
        super().__init__()
        self.norm = make_norm(config)
        self.before = config.norm_place == "before"
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        added = x + self.dropout(sublayer(self.norm(x) if self.before else x))
        tap(self, "added", added)
        return added if self.before else self.norm(added)


class Block(nn.Module):
    """One layer: self-attention, cross-attention where there is a source to look at, feed-forward, each with its residual path."""

    def __init__(self, config: Transformer, *, cross: bool, backend: str) -> None:
        super().__init__()

        def attention() -> Attention:
            return Attention(
                config.width,
                config.heads,
                kv_heads=config.kv_heads,
                head_width=config.head_width,
                bias=config.bias,
                scale=config.attention_scale,
                dropout=config.attention_dropout,
                backend=backend,
            )

        self.attention, self.attention_add = attention(), AddNorm(config)
        self.cross = attention() if cross else None
        self.cross_add = AddNorm(config) if cross else None
        self.feedforward = FeedForward(
            config.width, config.feedforward, config.activation, bias=config.bias == "all", dropout=config.activation_dropout
        )
        self.feedforward_add = AddNorm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | KeyValues | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Placement | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        tap(self, "input", x)
        for add, sublayer in self.steps(memory, mask=mask, memory_mask=memory_mask, positions=positions, cache=cache):
            x = add(x, sublayer)
        tap(self, "output", x)
        return x

    def steps(
        self,
        memory: Tensor | KeyValues | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Placement | None = None,
        cache: LayerCache | None = None,
    ) -> list[tuple[AddNorm, joined.SubLayer]]:
        """The sub-layers in turn, each with the path around it."""
        cross = self.cross
        steps: list[tuple[AddNorm, joined.SubLayer]] = []
        steps.append((self.attention_add, lambda x: self.attention(x, mask=mask, positions=positions, cache=cache)))
        if cross is not None and self.cross_add is not None:
            steps.append((self.cross_add, lambda x: cross(x, memory, mask=memory_mask)))
        steps.append((self.feedforward_add, self.feedforward))
        return steps


class Stack(nn.Module):
    """An encoder or a decoder: positions told, then layer upon layer."""

    def __init__(
        self, config: Transformer, *, layers: int | None = None, causal: bool = False, cross: bool = False, backend: str = "sdpa"
    ) -> None:
        super().__init__()
        backends.choose(backend, positions=config.positions, mask=getattr(config, "mask", None), dropout=config.attention_dropout)
        self.positions = make_positions(config, both_ways=not causal)
        self.embedding_norm = make_norm(config) if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(Block(config, cross=cross, backend=backend) for _ in range(layers or config.layers))
        # With norms before the sub-layers, nothing has normed what the last one added.
        self.norm = make_norm(config) if config.norm_place == "before" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        memory: Tensor | list[KeyValues] | None = None,
        *,
        positions: Tensor,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        cache: CacheView | None = None,
    ) -> Tensor:
        """Embeddings (rows, length, width) at positions (rows or 1, length) to what the last layer makes of them.

        `memory`: what cross-attention reads, or each layer's keys and values of it. With a `cache`, the words before are found in it.
        """
        tap(self, "embeddings", x)
        x = self.positions.embed(x, positions)
        tap(self, "placed", x)
        x = self.dropout(self.embedding_norm(x))
        seen = None if cache is None else cache.positions
        place = self.positions.place(positions, positions, x.dtype, seen=seen)
        given: list[dict[str, Any]] = [
            {
                "memory": memory[index] if isinstance(memory, list) else memory,
                "mask": mask,
                "memory_mask": memory_mask,
                "positions": place,
                "cache": None if cache is None else cache.layer(index),
            }
            for index in range(len(self.layers))
        ]
        blocks = [layer for layer in self.layers if isinstance(layer, Block)]
        if joined.alone(self, x) and len(blocks) == len(self.layers) and joined.joins(self._norms(blocks), x):
            steps = [step for block, own in zip(blocks, given, strict=True) for step in block.steps(**own)]
            try:
                return joined.run(x, [(add.norm, sublayer) for add, sublayer in steps], self.norm if steps[0][0].before else None)
            except Exception as error:
                give_up(joined.JOINED, error)
        for layer, own in zip(self.layers, given, strict=True):
            x = layer(x, **own)
        return self.norm(x)

    def _norms(self, blocks: list[Block]) -> list[nn.Module]:
        """Of all sub-layers, and the last one where there is one."""
        paths = [add for block in blocks for add in (block.attention_add, block.cross_add, block.feedforward_add) if add is not None]
        return [*(add.norm for add in paths), *([self.norm] if paths[0].before else [])]

    def keys_values(self, memory: Tensor) -> list[KeyValues]:
        """Each layer's cross-attention keys and values of a memory: once per source, not once per word or beam."""
        crosses = [layer.cross for layer in self.layers if isinstance(layer, Block)]
        both = [cross.keys_values(memory) for cross in crosses if cross is not None]
        return [KeyValues(key.contiguous(), value.contiguous()) for key, value in both]  # read at every position, so laid out for it
