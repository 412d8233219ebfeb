"""Attention: softmax(QKᵀ / √d) V, and the module that gives it something to learn."""

from __future__ import annotations

import math
from typing import get_args

from torch import Tensor, nn

from regard.config import Bias
from regard.errors import CacheError, ConfigError, MaskError, ShapeError, nearest
from regard.nn import backends
from regard.nn.cache import KeyValues, LayerCache
from regard.nn.few import IN_ONE, few, few_on_gpu, suits
from regard.nn.instead import give_up
from regard.nn.masks import Mask, Rule
from regard.nn.positions import Placement
from regard.nn.tap import tap


class Projection(nn.Linear):
    """Several linear maps of one input as one product, of which some can be asked for alone."""

    def part(self, x: Tensor, outputs: slice) -> Tensor:
        return nn.functional.linear(x, self.weight[outputs], None if self.bias is None else self.bias[outputs])


class Attention(nn.Module):
    """Multi-head attention, of a sequence to itself or to another; grouped-query with fewer kv_heads, multi-query with one.

    attention(x, mask=…) is self-attention; attention(x, memory, mask=…) is cross-attention: queries from x, keys and values from memory.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_width: int | None = None,
        bias: Bias = "all",
        scale: float | None = None,
        dropout: float = 0.0,
        backend: str = "sdpa",
    ) -> None:
        super().__init__()
        if head_width is None and width % heads:
            raise ConfigError(f"heads = {heads} does not divide width = {width}; change one of them or give head_width")
        if bias not in get_args(Bias):
            raise ConfigError(f"bias = {bias!r} is unknown; {nearest(bias, get_args(Bias))}")
        self.heads, self.kv_heads = heads, kv_heads or heads
        if heads % self.kv_heads:
            raise ConfigError(f"kv_heads = {kv_heads} does not divide heads = {heads}; each must serve as many query heads")
        self.head_width = head_width or width // heads
        self.scale = 1 / math.sqrt(self.head_width) if scale is None else scale
        self.dropout = dropout
        self.backend = backends.choose(backend, dropout=dropout)
        # Q, K and V come from one matrix product; cross-attention uses the rows for Q and those for K and V apart.
        self.query_rows = heads * self.head_width
        self.project = Projection(width, self.query_rows + 2 * self.kv_heads * self.head_width, bias=bias != "none")
        self.join = nn.Linear(self.query_rows, width, bias=bias == "all")

    def forward(
        self,
        x: Tensor,
        source: Tensor | KeyValues | None = None,
        *,
        mask: Mask | None = None,
        positions: Placement | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (rows, query, width) to the same shape. `source`: what to look at instead of x, or its keys and values computed before."""
        positions = positions or Placement()
        if source is None:
            query, key, value = self._split(self.project(x))
            query, new = positions.turn_query(query), KeyValues(positions.turn_key(key), value)
            if cache is not None and few_on_gpu(query, (*new, cache.key, cache.value), mask, positions.bias):
                try:
                    return self._in_one(query, cache.key, cache.value, mask, new, cache.slots)
                except Exception as error:
                    give_up(IN_ONE, error)
            seen = new if cache is None else cache.extend(new)
        elif cache is not None:
            raise CacheError("a cache is for self-attention; keep the keys and values of a source with keys_values() and pass those")
        else:
            query = positions.turn_query(self._heads(self.project.part(x, slice(None, self.query_rows)), self.heads))
            seen = source if isinstance(source, KeyValues) else self.keys_values(source, positions)
            if isinstance(source, KeyValues) and few_on_gpu(query, seen, mask, positions.bias):
                try:
                    return self._in_one(query, *seen, mask)
                except Exception as error:
                    give_up(IN_ONE, error)
        mask = _checked(mask, query, seen.key)
        backend, dropout = backends.serving(backends.chosen(self.backend), mask), self.dropout if self.training else 0.0
        if backend is backends.sdpa and not dropout and suits(query, mask):
            backend = few
        attended = backend(query, *seen, mask=mask, bias=positions.bias, scale=self.scale, dropout=dropout)
        for name, value in zip(("query", "key", "value"), (query, *seen), strict=True):
            tap(self, name, value)
        tap(self, "scores", attended.scores)
        tap(self, "weights", attended.weights)
        tap(self, "mask", mask.visible)
        joined = attended.output.transpose(1, 2).flatten(2)  # heads side by side: (rows, query, heads * head_width)
        tap(self, "heads", joined)
        projected = self.join(joined)
        tap(self, "output", projected)
        return projected

    def _in_one(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, new: KeyValues | None = None, slots: Tensor | None = None
    ) -> Tensor:
        from regard.nn.one_query import attend  # loads kernels: only where they are used

        return self.join(attend(query, key, value, mask or Mask(), self.scale, new=new, slots=slots))

    def keys_values(self, source: Tensor, positions: Placement | None = None) -> KeyValues:
        """The keys and values of a source, to be computed once and attended to at every position of a target."""
        key, value = self.project.part(source, slice(self.query_rows, None)).chunk(2, -1)
        key, value = self._heads(key, self.kv_heads), self._heads(value, self.kv_heads)
        return KeyValues((positions or Placement()).turn_key(key), value)

    def _split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self._heads(projected, self.heads + 2 * self.kv_heads)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), 1)
        return query, key, value

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_width)).transpose(1, 2)  # (rows, heads, length, head_width)


def _checked(mask: Mask | None, query: Tensor, key: Tensor) -> Mask:
    if query.shape[0] != key.shape[0]:
        raise ShapeError(f"{query.shape[0]} rows of queries for {key.shape[0]} rows of keys; each row looks at its own")
    if mask is None:
        return Mask()
    if isinstance(mask, Rule):
        raise MaskError(f"the rule {type(mask).__name__} is not built yet; pass rule.build(queries, keys)")
    if not isinstance(mask, Mask):
        kind = "a tensor" if isinstance(mask, Tensor) else f"a {type(mask).__name__}"
        raise MaskError(f"mask is {kind}; build one from rules, for example (Causal() & Padding(ids != pad)).build({query.shape[2]})")
    if mask.visible is not None:
        rows, _, queries, keys = mask.visible.shape
        if rows not in (1, query.shape[0]) or queries not in (1, query.shape[2]) or keys != key.shape[2]:
            raise MaskError(
                f"the mask is for {rows} rows of {queries} queries and {keys} keys, "
                f"but there are {query.shape[0]} rows of {query.shape[2]} queries and {key.shape[2]} keys; build it from the same batch"
            )
    return mask
