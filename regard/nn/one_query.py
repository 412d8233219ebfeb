# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"
"""Attention of one position on a GPU: a few queries a row over a cache or a source's keys, as one kernel that also keeps the new words.

Kernels made for long texts split queries into tiles, and in decoding there is hardly one. Here a program has the queries of a row that
share a key head (all hypotheses of a source among them, so that its keys are read once), writes their own keys and values into the cache,
and goes through the slots in use. How many those are it reads on the device: one recorded graph serves every length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.nn.cache import KeyValues
from regard.nn.masks import Mask

LOG2_E = 1.4426950408889634
BLOCK, WARPS = 64, 4  # slots at a time


def attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Mask, scale: float, *, new: KeyValues | None = None, slots: Tensor | None = None
) -> Tensor:
    """Queries (rows, heads, queries, width) over keys and values (rows, kv_heads, length, width): (rows, queries, heads × width).

    `new`: of the queries' own words (rows, kv_heads, queries, width), written to `slots` first; nothing beyond them is looked at.
    """
    rows, heads, queries, width = query.shape
    output = query.new_empty(rows, queries, heads, width)
    key, value = (query, query) if new is None else new
    visible = mask.visible
    seen = query if visible is None else visible.expand(rows, -1, queries, -1).view(torch.uint8)
    _one_position[(rows, keys.shape[1])](
        *(query, key, value, keys, values, seen, query if slots is None else slots, output),
        *(*query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *keys.stride()[:3], *values.stride()[:3]),
        *(seen.stride(0), seen.stride(2), seen.stride(3), *output.stride()[:3]),
        *(keys.shape[2], scale * LOG2_E),
        *(queries, heads // keys.shape[1], width, max(16, triton.next_power_of_2(queries * heads // keys.shape[1]))),
        *(BLOCK, new is not None, visible is not None),
        num_warps=WARPS,
    )
    return output.flatten(2)


@triton.jit
def _one_position(
    query, key, value, keys, values, visible, slots, output,
    q_row, q_head, q_query, k_row, k_head, k_query, v_row, v_head, v_query,
    ks_row, ks_head, ks_slot, vs_row, vs_head, vs_slot, m_row, m_query, m_slot, o_row, o_query, o_head,
    length, scale,
    queries: tl.constexpr, group: tl.constexpr, width: tl.constexpr, padded: tl.constexpr,
    block: tl.constexpr, writes: tl.constexpr, masked: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    number, column = tl.arange(0, padded), tl.arange(0, width)
    real = number < queries * group
    head, place = kv_head * group + number // queries, number % queries
    where = row * q_row + head[:, None] * q_head + place[:, None] * q_query + column[None, :]
    q = tl.load(query + where, mask=real[:, None], other=0.0)
    keys += row * ks_row + kv_head * ks_head
    values += row * vs_row + kv_head * vs_head
    if writes:
        first = tl.load(slots)
        own = number < queries
        at = number[:, None].to(tl.int64)
        own_key = tl.load(key + row * k_row + kv_head * k_head + at * k_query + column[None, :], mask=own[:, None], other=0.0)
        own_value = tl.load(value + row * v_row + kv_head * v_head + at * v_query + column[None, :], mask=own[:, None], other=0.0)
        tl.store(keys + (first + at) * ks_slot + column[None, :], own_key, mask=own[:, None])
        tl.store(values + (first + at) * vs_slot + column[None, :], own_value, mask=own[:, None])
        length = first + queries
        tl.debug_barrier()  # other threads of this program read what these have written
    highest = tl.full((padded,), float("-inf"), tl.float32)
    total = tl.zeros((padded,), tl.float32)
    mixed = tl.zeros((padded, width), tl.float32)
    for start in range(0, length, block):
        slot = start + tl.arange(0, block)
        inside = slot < length
        k = tl.load(keys + slot[:, None] * ks_slot + column[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = inside[None, :] & real[:, None]
        if masked:
            shown = tl.load(visible + row * m_row + place[:, None] * m_query + slot[None, :] * m_slot, mask=seen, other=0)
            seen = seen & (shown != 0)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        v = tl.load(values + slot[:, None] * vs_slot + column[None, :], mask=inside[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        total = total * shrink + tl.sum(weights, 1)
        highest = higher
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]  # who sees nothing has nothing
    where = row * o_row + place[:, None] * o_query + head[:, None] * o_head + column[None, :]
    tl.store(output + where, mixed.to(output.dtype.element_ty), mask=real[:, None])
