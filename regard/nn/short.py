# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"
"""Attention for packed rows of short documents: one tile of queries holds several of them and reads just the keys they may see.

Kernels made for long texts give each document tiles of its own, which a sentence leaves mostly empty. Here tiles lie across documents, and
each query brings the span of keys that it may see: its document, cut by the triangle or by a window. That is all there is to the mask of a
packed row, so the kernels know neither documents nor triangles. Spans only ever move forward along the row, so a tile's keys are those from
its first query's first to its last query's last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.masks import Boundaries, Packed

LOG2_E = 1.4426950408889634


class Tile(NamedTuple):
    """How much of the work one program takes on."""

    queries: int
    keys: int
    warps: int
    stages: int  # loads under way at a time


# As measured, by the width of a head: forwards, backwards to the queries, backwards to the keys and values.
TILES: dict[int, tuple[Tile, Tile, Tile]] = {
    16: (Tile(64, 32, 4, 3), Tile(64, 32, 4, 2), Tile(32, 64, 4, 1)),
    32: (Tile(64, 32, 4, 3), Tile(64, 32, 4, 2), Tile(32, 64, 4, 1)),
    64: (Tile(64, 32, 4, 3), Tile(64, 32, 4, 2), Tile(32, 64, 4, 1)),
    128: (Tile(64, 64, 4, 2), Tile(64, 64, 8, 1), Tile(64, 64, 8, 1)),
}


def attend(query: Tensor, key: Tensor, value: Tensor, packed: Packed, scale: float) -> Tensor:
    """Queries (1, heads, tokens, width) over keys and values (1, kv_heads, tokens, width): for each query a mixture of values."""
    before, after = packed.window, 1 if packed.causal else packed.window
    seen = spans(packed.query, packed.key, query.shape[2], before, after)
    seers = spans(packed.key, packed.query, key.shape[2], after, before)  # whom a query sees behind it, that one sees it ahead
    output, _ = torch.ops.regard.short_attention(query, key, value, seen, seers, scale, packed.query.edges is packed.key.edges)
    return output.transpose(0, 1).unsqueeze(0)


def spans(own: Boundaries, other: Boundaries, tokens: int, before: int | None, after: int | None) -> Tensor:
    """For each token of a packed row the first slot that it sees on the other side, and the one after the last: (2, tokens).

    It sees the document that goes with its own. Within one row, `before` and `after` may say that it sees fewer slots than that many before
    and after it; 1 is itself alone.
    """
    slots = torch.arange(tokens, device=own.edges.device, dtype=torch.int32)
    document = torch.bucketize(slots, own.edges, right=True) - 1  # of all edges: PyTorch 2.11 compiles the search in a part of them wrongly
    first, last = other.edges[document], other.edges[document + 1]
    if before is not None:
        first = torch.maximum(first, slots - before + 1)
    if after is not None:
        last = torch.minimum(last, slots + after)
    return torch.stack((first, last)).to(torch.int32)


@torch.library.custom_op("regard::short_attention", mutates_args=())
def short_attention(
    query: Tensor, key: Tensor, value: Tensor, seen: Tensor, seers: Tensor, scale: float, joint: bool
) -> tuple[Tensor, Tensor]:
    """The mixtures (tokens, heads, width), and of each query the logarithm of what its weights are divided by (heads, tokens)."""
    _, heads, tokens, width = query.shape
    output, logsum = _results(query)
    query, key, value = _narrow_steps(query, key, value)
    tile = TILES[width][0]
    _short_forward[heads, triton.cdiv(tokens, tile.queries)](
        *(query, key, value, output, logsum, seen, tokens, scale * LOG2_E),
        *(*_steps(query), *_steps(key), *_steps(value), *_steps(output.transpose(0, 1)), heads // key.shape[1]),
        *(width, tile.queries, tile.keys),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return output, logsum


@torch.library.custom_op("regard::short_attention_backward", mutates_args=())
def short_attention_backward(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsum: Tensor, slope: Tensor,
    seen: Tensor, seers: Tensor, scale: float, joint: bool,
) -> list[Tensor]:  # fmt: skip
    """The gradients of queries, keys and values side by side (tokens, all heads, width); not joint, those of the queries are apart."""
    heads, kv_heads, width = query.shape[1], key.shape[1], query.shape[3]
    tokens, keys = query.shape[2], key.shape[2]
    gradients = _gradients(query, key, joint)
    to_query, to_key, to_value = _parted(gradients, heads, kv_heads)
    query, key, value, slope = _narrow_steps(query, key, value, slope)
    output, slope = output.transpose(0, 1), slope.transpose(0, 1)
    shift = torch.empty_like(logsum)  # of each query, what all its weights' gradients have in common: output · slope
    scales, group = (scale, scale * LOG2_E), heads // kv_heads
    tile = TILES[width][1]
    _short_backward_query[heads, triton.cdiv(tokens, tile.queries)](
        *(query, key, value, output, slope, logsum, shift, to_query, seen, tokens, *scales),
        *(*_steps(query), *_steps(key), *_steps(value), *_steps(output), *_steps(slope), *_steps(to_query), group),
        *(width, tile.queries, tile.keys),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    tile = TILES[width][2]
    _short_backward_key[kv_heads, triton.cdiv(keys, tile.keys)](
        *(query, key, value, slope, logsum, shift, to_key, to_value, seers, tokens, keys, *scales),
        *(*_steps(query), *_steps(key), *_steps(value), *_steps(slope), *_steps(to_key), *_steps(to_value), group),
        *(width, tile.queries, tile.keys),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return gradients


@short_attention.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, seers: Tensor, scale: float, joint: bool) -> tuple[Tensor, Tensor]:
    return _results(query)


@short_attention_backward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsum: Tensor, slope: Tensor,
    seen: Tensor, seers: Tensor, scale: float, joint: bool,
) -> list[Tensor]:  # fmt: skip
    return _gradients(query, key, joint)


def _results(query: Tensor) -> tuple[Tensor, Tensor]:
    _, heads, tokens, width = query.shape
    return query.new_empty(tokens, heads, width), query.new_empty(heads, tokens, dtype=torch.float32)


def _gradients(query: Tensor, key: Tensor, joint: bool) -> list[Tensor]:
    """Where queries, keys and values come from one product, so do their gradients lie: no one has to put them together."""
    (_, heads, tokens, width), (_, kv_heads, keys, _) = query.shape, key.shape
    if joint:
        return [query.new_empty(tokens, heads + 2 * kv_heads, width)]
    return [query.new_empty(tokens, heads, width), query.new_empty(keys, 2 * kv_heads, width)]


def _parted(gradients: list[Tensor], heads: int, kv_heads: int) -> tuple[Tensor, ...]:
    """Of queries, keys and values: (1, heads, tokens, width) each."""
    seen = [gradient.transpose(0, 1).unsqueeze(0) for gradient in gradients]
    if len(seen) == 1:
        return seen[0].split((heads, kv_heads, kv_heads), 1)
    return (seen[0], *seen[1].split((kv_heads, kv_heads), 1))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, seen, seers, ctx.scale, ctx.joint = inputs
    ctx.save_for_backward(query, key, value, *output, seen, seers)


def _differentiate(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, output, logsum, seen, seers = ctx.saved_tensors
    gradients = torch.ops.regard.short_attention_backward(query, key, value, output, logsum, slope, seen, seers, ctx.scale, ctx.joint)
    return (*_parted(gradients, query.shape[1], key.shape[1]), None, None, None, None)


short_attention.register_autograd(_differentiate, setup_context=_keep)


def _narrow_steps(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The kernels step from token to token and from head to head as they must, but the numbers of a head lie side by side."""
    return tuple(tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in tensors)


def _steps(x: Tensor) -> tuple[int, int]:
    """From token to token and from head to head of (…, heads, tokens, width)."""
    return x.stride(-2), x.stride(-3)


# The kernels. In all of them the weight of a key is 2^(score · log2 e - logsum), and rows and columns of a tile are queries and keys.


@triton.jit
def _load(start, token_step, offsets, end, width: tl.constexpr):
    """Some tokens' vectors of one head (tokens, width), zeros from `end` on. `start` points to the first of them."""
    where = start + offsets[:, None] * token_step + tl.arange(0, width)[None, :]
    return tl.load(where, mask=(offsets < end)[:, None], other=0.0)


@triton.jit
def _store(start, token_step, offsets, end, x, width: tl.constexpr):
    where = start + offsets[:, None] * token_step + tl.arange(0, width)[None, :]
    tl.store(where, x.to(start.dtype.element_ty), mask=(offsets < end)[:, None])


@triton.jit
def _short_forward(
    query, key, value, output, logsum, seen, tokens, scale,
    query_step, query_head, key_step, key_head, value_step, value_head, output_step, output_head, group,
    width: tl.constexpr, tile_queries: tl.constexpr, tile_keys: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    begin = tl.program_id(1) * tile_queries
    rows = tl.arange(0, tile_queries)
    left = tokens - begin  # of the row from here on
    first = tl.load(seen + begin + rows, mask=rows < left, other=0)
    last = tl.load(seen + tokens + begin + rows, mask=rows < left, other=0)
    start = tl.load(seen + begin)
    end = tl.load(seen + tokens + begin + tl.minimum(left, tile_queries) - 1)
    offset = begin.to(tl.int64)
    key += head // group * key_head + start.to(tl.int64) * key_step
    value += head // group * value_head + start.to(tl.int64) * value_step
    q = _load(query + offset * query_step + head * query_head, query_step, rows, left, width)
    highest = tl.full((tile_queries,), float("-inf"), tl.float32)
    total = tl.zeros((tile_queries,), tl.float32)
    mixed = tl.zeros((tile_queries, width), tl.float32)
    columns = tl.arange(0, tile_keys)
    for place in range(start, end, tile_keys):
        k = _load(key + (place - start) * key_step, key_step, columns, end - place, width)
        v = _load(value + (place - start) * value_step, value_step, columns, end - place, width)
        slots = place + columns
        visible = (slots[None, :] >= first[:, None]) & (slots[None, :] < last[:, None])
        scores = tl.where(visible, tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # nothing seen so far
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, 1)
        mixed = tl.dot(weights.to(v.dtype), v, mixed * shrink[:, None])
        highest = higher
    blind = total == 0.0  # a query that sees nothing gives zeros, and later weights of zero
    divisor = tl.where(blind, 1.0, total)
    _store(output + offset * output_step + head * output_head, output_step, rows, left, mixed / divisor[:, None], width)
    found = tl.where(blind, float("inf"), highest + tl.log2(divisor))
    tl.store(logsum + head * tokens + begin + rows, found, mask=rows < left)


@triton.jit
def _short_backward_query(
    query, key, value, output, slope, logsum, shift, to_query, seen, tokens, scale, log2_scale,
    query_step, query_head, key_step, key_head, value_step, value_head, output_step, output_head, slope_step, slope_head,
    to_query_step, to_query_head, group,
    width: tl.constexpr, tile_queries: tl.constexpr, tile_keys: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    begin = tl.program_id(1) * tile_queries
    rows = tl.arange(0, tile_queries)
    left = tokens - begin
    first = tl.load(seen + begin + rows, mask=rows < left, other=0)
    last = tl.load(seen + tokens + begin + rows, mask=rows < left, other=0)
    start = tl.load(seen + begin)
    end = tl.load(seen + tokens + begin + tl.minimum(left, tile_queries) - 1)
    offset = begin.to(tl.int64)
    key += head // group * key_head + start.to(tl.int64) * key_step
    value += head // group * value_head + start.to(tl.int64) * value_step
    q = _load(query + offset * query_step + head * query_head, query_step, rows, left, width)
    o = _load(output + offset * output_step + head * output_head, output_step, rows, left, width)
    s = _load(slope + offset * slope_step + head * slope_head, slope_step, rows, left, width)
    common = tl.sum(o.to(tl.float32) * s.to(tl.float32), 1)
    vector = head * tokens + begin + rows
    tl.store(shift + vector, common, mask=rows < left)
    sums = tl.load(logsum + vector, mask=rows < left, other=float("inf"))
    gradient = tl.zeros((tile_queries, width), tl.float32)
    columns = tl.arange(0, tile_keys)
    for place in range(start, end, tile_keys):
        k = _load(key + (place - start) * key_step, key_step, columns, end - place, width)
        v = _load(value + (place - start) * value_step, value_step, columns, end - place, width)
        slots = place + columns
        visible = (slots[None, :] >= first[:, None]) & (slots[None, :] < last[:, None])
        weights = tl.where(visible, tl.exp2(tl.dot(q, tl.trans(k)) * log2_scale - sums[:, None]), 0.0)
        change = weights * (tl.dot(s, tl.trans(v)) - common[:, None])
        gradient = tl.dot(change.to(k.dtype), k, gradient)
    _store(to_query + offset * to_query_step + head * to_query_head, to_query_step, rows, left, gradient * scale, width)


@triton.jit
def _short_backward_key(
    query, key, value, slope, logsum, shift, to_key, to_value, seers, tokens, keys, scale, log2_scale,
    query_step, query_head, key_step, key_head, value_step, value_head, slope_step, slope_head,
    to_key_step, to_key_head, to_value_step, to_value_head, group,
    width: tl.constexpr, tile_queries: tl.constexpr, tile_keys: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    begin = tl.program_id(1) * tile_keys
    columns = tl.arange(0, tile_keys)
    left = keys - begin
    first = tl.load(seers + begin + columns, mask=columns < left, other=0)
    last = tl.load(seers + keys + begin + columns, mask=columns < left, other=0)
    start = tl.load(seers + begin)
    end = tl.load(seers + keys + begin + tl.minimum(left, tile_keys) - 1)
    offset = begin.to(tl.int64)
    k = _load(key + offset * key_step + kv_head * key_head, key_step, columns, left, width)
    v = _load(value + offset * value_step + kv_head * value_head, value_step, columns, left, width)
    key_gradient = tl.zeros((tile_keys, width), tl.float32)
    value_gradient = tl.zeros((tile_keys, width), tl.float32)
    rows = tl.arange(0, tile_queries)
    query += start.to(tl.int64) * query_step
    slope += start.to(tl.int64) * slope_step
    for head in range(kv_head * group, (kv_head + 1) * group):
        for place in range(start, end, tile_queries):
            q = _load(query + head * query_head + (place - start) * query_step, query_step, rows, end - place, width)
            s = _load(slope + head * slope_head + (place - start) * slope_step, slope_step, rows, end - place, width)
            vector = head * tokens + place + rows
            sums = tl.load(logsum + vector, mask=rows < end - place, other=float("inf"))
            common = tl.load(shift + vector, mask=rows < end - place, other=0.0)
            slots = place + rows
            visible = (slots[None, :] >= first[:, None]) & (slots[None, :] < last[:, None])  # keys are the rows here
            weights = tl.where(visible, tl.exp2(tl.dot(k, tl.trans(q)) * log2_scale - sums[None, :]), 0.0)
            value_gradient = tl.dot(weights.to(s.dtype), s, value_gradient)
            change = weights * (tl.dot(v, tl.trans(s)) - common[None, :])
            key_gradient = tl.dot(change.to(q.dtype), q, key_gradient)
    _store(to_key + offset * to_key_step + kv_head * to_key_head, to_key_step, columns, left, key_gradient * scale, width)
    _store(to_value + offset * to_value_step + kv_head * to_value_head, to_value_step, columns, left, value_gradient, width)
