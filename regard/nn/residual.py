# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"
"""norm(x + dropout(change)), the path around a sub-layer, as one kernel forwards and one backwards: each number is read and written once.

What is dropped is a function of a seed and the number's place, so that it is not kept but found again on the way back.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

NUMBERS = 2048  # that a program works on at a time
WARPS, PROGRAMS = 4, 528  # backwards: four for each multiprocessor of an H200, which then take turns over the rows


def add_norm(x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, *, dropout: float, epsilon: float) -> tuple[Tensor, Tensor]:
    """LayerNorm(x + dropout(change)) and the sum itself, both (…, width) like x."""
    seed = torch.randint(2**31 - 1, (1,), device=x.device)
    output, added, _, _ = torch.ops.regard.add_norm(x.flatten(0, -2), change.flatten(0, -2), weight, bias, seed, dropout, epsilon)
    return output.view_as(x), added.view_as(x)


def try_out(dtype: torch.dtype, weight: Tensor) -> None:
    """Starts the kernels for training, forwards and backwards, on a few numbers beside such weights."""
    x = torch.zeros(16, weight.shape[0], dtype=dtype, device=weight.device)
    plain, seed = torch.zeros_like(weight, requires_grad=False), torch.zeros(1, dtype=torch.int64, device=weight.device)
    _, added, mean, scale = torch.ops.regard.add_norm(x, x, plain, plain, seed, 0.1, 1e-5)
    torch.ops.regard.add_norm_backward(x, added, plain, seed, mean, scale, 0.1)


def add_norm_alone(x: Tensor, change: Tensor, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """The same for inference: nothing is dropped, and nothing kept for gradients."""
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    x, change = x.contiguous(), change.contiguous()
    output, added = torch.empty_like(x), torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _norm_alone[(rows,)](x, change, norm.weight, norm.bias, output, added, width, norm.eps, block, num_warps=WARPS)
    return output, added


@torch.library.custom_op("regard::add_norm", mutates_args=())
def _add_norm(
    x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, dropout: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The normed sum, the sum (rows, width), and of each row the mean and one over the deviation."""
    rows, width = x.shape
    x, change = x.contiguous(), change.contiguous()
    output, added, mean, scale = _results(x)
    block, together = _block(width)
    _norm_forward[(triton.cdiv(rows, together),)](
        *(x, change, weight, bias, seed, output, added, mean, scale, rows, width, epsilon, *_chance(dropout)),
        *(dropout > 0, together, block),
        num_warps=WARPS,
    )
    return output, added, mean, scale


@torch.library.custom_op("regard::add_norm_backward", mutates_args=())
def _add_norm_backward(
    slope: Tensor, added: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, scale: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x and of the change (rows, width), and of weight and bias in parts to be summed."""
    rows, width = added.shape
    to_x, to_change, to_weight, to_bias = _gradients(added, dropout)
    block, together = _block(width)
    _norm_backward[(PROGRAMS,)](
        *(slope.contiguous(), added, weight, seed, mean, scale, to_x, to_change, to_weight, to_bias, rows, width, *_chance(dropout)),
        *(dropout > 0, together, block),
        num_warps=WARPS,
    )
    return to_x, to_change, to_weight, to_bias


@_add_norm.register_fake
def _(
    x: Tensor, change: Tensor, weight: Tensor, bias: Tensor, seed: Tensor, dropout: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _results(x)


@_add_norm_backward.register_fake
def _(
    slope: Tensor, added: Tensor, weight: Tensor, seed: Tensor, mean: Tensor, scale: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _gradients(added, dropout)


def _results(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, scale = (x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))
    return x.new_empty(x.shape), x.new_empty(x.shape), mean, scale


def _gradients(added: Tensor, dropout: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    to_weight, to_bias = (added.new_empty(PROGRAMS, added.shape[1], dtype=torch.float32) for _ in range(2))
    return added.new_empty(added.shape), added.new_empty(added.shape if dropout else (0,)), to_weight, to_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, _, weight, _, seed, ctx.dropout, _ = inputs
    _, added, mean, scale = output
    ctx.save_for_backward(added, weight, seed, mean, scale)


def _differentiate(ctx: Any, slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    found = torch.ops.regard.add_norm_backward(slope, *ctx.saved_tensors, ctx.dropout)
    to_x, to_change, to_weight, to_bias = found
    return to_x, to_change if ctx.dropout else to_x, to_weight.sum(0), to_bias.sum(0), None, None, None


_add_norm.register_autograd(_differentiate, setup_context=_keep)


def _block(width: int) -> tuple[int, int]:
    """How wide a program's rows are, and how many it takes at a time."""
    block = triton.next_power_of_2(width)
    return block, max(1, NUMBERS // block)


def _chance(dropout: float) -> tuple[int, float]:
    """Below which of 2³² numbers one is dropped, and by how much the others are raised."""
    return int(dropout * 2**32), 1 / (1 - dropout)


@triton.jit
def _stirred(x):
    """A number that looks like chance, another one for every x."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def _dropped(x, seed, place, limit, raised):
    number = _stirred(_stirred(place.to(tl.uint32)) ^ tl.load(seed).to(tl.uint32))
    return tl.where(number >= limit.to(tl.uint32), x * raised, 0.0)


@triton.jit
def _norm_forward(
    x, change, weight, bias, seed, output, added, mean, scale, rows, width, epsilon, limit, raised,
    drops: tl.constexpr, together: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * together + tl.arange(0, together), tl.arange(0, block)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = row[:, None] * width + column[None, :]
    total = tl.load(change + place, mask=inside, other=0.0).to(tl.float32)
    if drops:
        total = _dropped(total, seed, place, limit, raised)
    total = (total + tl.load(x + place, mask=inside, other=0.0).to(tl.float32)).to(added.dtype.element_ty)
    tl.store(added + place, total, mask=inside)
    total = total.to(tl.float32)  # as the way back will read it
    middle = tl.sum(total, 1) / width
    centred = tl.where(inside, total - middle[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / width + epsilon)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)
    tl.store(output + place, (centred * factor[:, None] * w[None, :] + b[None, :]).to(output.dtype.element_ty), mask=inside)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(scale + row, factor, mask=row < rows)


@triton.jit
def _norm_alone(x, change, weight, bias, output, added, width, epsilon, block: tl.constexpr):
    column = tl.arange(0, block)
    inside = column < width
    place = tl.program_id(0).to(tl.int64) * width + column
    total = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + tl.load(change + place, mask=inside, other=0.0).to(tl.float32)
    total = total.to(added.dtype.element_ty)
    tl.store(added + place, total, mask=inside)
    total = total.to(tl.float32)
    centred = tl.where(inside, total - tl.sum(total, 0) / width, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 0) / width + epsilon)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(output + place, (centred * factor * w + b).to(output.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(
    slope, added, weight, seed, mean, scale, to_x, to_change, to_weight, to_bias, rows, width, limit, raised,
    drops: tl.constexpr, together: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program, column = tl.program_id(0), tl.arange(0, block)
    w = tl.load(weight + column, mask=column < width, other=0.0).to(tl.float32)
    sum_weight = tl.zeros((together, block), tl.float32)
    sum_bias = tl.zeros((together, block), tl.float32)
    for start in range(program * together, rows, tl.num_programs(0) * together):
        row = start + tl.arange(0, together)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        place = row[:, None] * width + column[None, :]
        g = tl.load(slope + place, mask=inside, other=0.0).to(tl.float32)
        total = tl.load(added + place, mask=inside, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=row < rows, other=0.0)
        factor = tl.load(scale + row, mask=row < rows, other=0.0)
        normed = tl.where(inside, (total - middle[:, None]) * factor[:, None], 0.0)
        sum_weight += g * normed
        sum_bias += g
        g *= w[None, :]
        g -= tl.sum(g, 1)[:, None] / width + normed * (tl.sum(g * normed, 1)[:, None] / width)
        g *= factor[:, None]
        tl.store(to_x + place, g.to(to_x.dtype.element_ty), mask=inside)
        if drops:
            tl.store(to_change + place, _dropped(g, seed, place, limit, raised).to(to_change.dtype.element_ty), mask=inside)
    where = program * width + column
    tl.store(to_weight + where, tl.sum(sum_weight, 0), mask=column < width)
    tl.store(to_bias + where, tl.sum(sum_bias, 0), mask=column < width)
