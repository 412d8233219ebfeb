# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def,no-untyped-call"
"""The kernels of `fused`: one over the vocabulary, and one a source for all that follows.

Scores are ordered as whole numbers that hold the word as well, so that a maximum of these is the word, and of equal ones the first. All
that is written stands in the tensors of the search, in place: whatever is moved there is read by all threads before any of them writes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.decoding import fused
from regard.decoding.fused import Tables
from regard.decoding.sampling import Sampler
from regard.decoding.search import BeamSearch

BLOCK, BLOCKS = 1024, 32  # words of a vocabulary that a warp looks at, and most blocks that a beam chooses from
COLUMNS, WARPS = 128, 4  # words of a history that are moved together
NEVER, ENDS = tl.constexpr(fused.NEVER), tl.constexpr(fused.ENDS)
OFF, LOG2_E = tl.constexpr(float("-inf")), tl.constexpr(1.4426950408889634)
PLACES = tl.constexpr(8191)  # the last in the largest block: 13 bits, which float16 and bfloat16 leave free in float32


class Seen(NamedTuple):
    """Of every hypothesis (rows) and block of the vocabulary."""

    highest: Tensor  # (rows, blocks)
    total: Tensor  # (rows, blocks), Σ exp(score - highest), of all words
    best: Tensor  # (rows, blocks, each), the highest scores of words that may be chosen
    words: Tensor  # (rows, blocks, each), whose they are


def write_likeliest(search: Sampler, logits: Tensor, tables: Tables) -> None:
    seen = _look(search, logits, tables, 1, BLOCK)
    blocks = seen.highest.shape[1]
    _write_likeliest[(len(search.open),)](
        *(*seen, tables.kinds, search.steering.limit, search.history, search.logs, search.words),
        *(_bytes(search.open), search.written, _bytes(search.stuck), _bytes(search.broken)),
        *(blocks, search.given, search.limit, logits.shape[-1], triton.next_power_of_2(blocks)),
        num_warps=1,
    )


def go_on(search: BeamSearch, logits: Tensor, tables: Tables) -> None:
    vocabulary, width, looked_at = logits.shape[-1], search.hypotheses, search.looked_at
    seen = _look(search, logits, tables, looked_at, max(BLOCK, triton.next_power_of_2(triton.cdiv(vocabulary, BLOCKS))))
    blocks, finished = seen.highest.shape[1], search.finished
    _go_on[(len(search.open),)](
        *(*seen, tables.kinds, tables.power, search.steering.limit),
        *(search.total, search.history, search.logs, search.words, search.parents, _bytes(search.open), search.written),
        *(finished.rank, finished.score, finished.words, finished.logs, finished.length, _bytes(finished.ended), _bytes(search.broken)),
        *(blocks, search.given, search.limit, vocabulary),
        *(width, looked_at, min(search.beam.n_best, width)),
        *(triton.next_power_of_2(width), triton.next_power_of_2(looked_at), triton.next_power_of_2(blocks)),
        *(triton.next_power_of_2(blocks * looked_at), COLUMNS),
        num_warps=WARPS,
    )


def _look(search: Sampler | BeamSearch, logits: Tensor, tables: Tables, each: int, block: int) -> Seen:
    """Over the vocabulary, for the best `each` words of every block."""
    sources, hypotheses, vocabulary = logits.shape
    steering, rows, blocks = search.steering, sources * hypotheses, triton.cdiv(vocabulary, block)
    highest, total = (logits.new_empty(rows, blocks, dtype=torch.float32) for _ in range(2))
    best, words = (logits.new_empty(rows, blocks, each, dtype=dtype) for dtype in (torch.float32, torch.int32))
    seen = Seen(highest, total, best, words)
    _over_vocabulary[(rows, blocks)](
        *(logits, tables.kinds, search.written, steering.least, *seen),
        *(vocabulary, hypotheses, logits.stride(0), logits.stride(1), blocks),
        *(each, triton.next_power_of_2(each), block, steering.never is not None or not steering.changes_nothing),
        *(logits.dtype != torch.float32,),
        num_warps=max(1, block // BLOCK),
    )
    return seen


def _bytes(flags: Tensor) -> Tensor:
    return flags.view(torch.uint8)


@triton.jit
def _over_vocabulary(
    logits, kinds, written, least, highest, totals, best, words,
    vocabulary, hypotheses, source_stride, row_stride, blocks,
    each: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, silences: tl.constexpr, half: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    source = (row // hypotheses).to(tl.int64)
    place = tl.arange(0, block)
    word = part * block + place
    inside = word < vocabulary
    at = source * source_stride + (row % hypotheses).to(tl.int64) * row_stride + word
    score = tl.load(logits + at, mask=inside, other=OFF).to(tl.float32)
    top = tl.max(score, 0)
    total = tl.sum(tl.exp2((score - tl.where(top == OFF, 0.0, top)) * LOG2_E), 0)
    where = row.to(tl.int64) * blocks + part
    tl.store(highest + where, top)
    tl.store(totals + where, total)
    if silences:
        early = tl.load(written + source) < tl.load(least + source)
        off = tl.load(kinds + word, mask=inside, other=0) & tl.where(early, NEVER | ENDS, NEVER).to(tl.uint8)
        score = tl.where(off != 0, OFF, score)
    key = _ordered(score, place, half)
    number = tl.arange(0, padded)
    keys = tl.full((padded,), 0, key.dtype)
    if each == 1:
        keys += tl.max(key, 0)
    else:  # in pairs, of which only the better half is looked through
        taken: tl.constexpr = -(2**31) if half else -(2**62)
        one, other = tl.split(tl.reshape(key, (block // 2, 2)))
        better, worse = tl.maximum(one, other), tl.minimum(one, other)
        for turn in range(each):
            first = tl.max(better, 0)
            keys = tl.where(number == turn, first, keys)
            better, worse = tl.where(better == first, worse, better), tl.where(better == first, taken, worse)
    tl.store(best + where * each + number, _score(keys, half), mask=number < each)
    tl.store(words + where * each + number, part * block + ((keys & PLACES) ^ PLACES).to(tl.int32), mask=number < each)


@triton.jit
def _ordered(score, place, half: tl.constexpr):
    """Whole numbers in the order of the scores, the first of equal ones highest.

    The bits of negative numbers stand the other way round. Those of half precision leave the last ones free, for the place.
    """
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # of zeros there are two, and a sum has the positive one
    if half:
        key = (bits ^ ((bits >> 31) & (0x7FFFFFFF - PLACES))) + (place ^ PLACES)
    else:
        key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) * (PLACES + 1) + (place ^ PLACES)
    return key


@triton.jit
def _score(key, half: tl.constexpr):
    if half:
        bits = key - (key & PLACES)
        bits = bits ^ ((bits >> 31) & (0x7FFFFFFF - PLACES))
    else:
        bits = (key >> 13).to(tl.int32)
        bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["given", "room"])
def _write_likeliest(
    highest, totals, best, words, kinds, limits, history, logs, chosen, open, written, stuck, broken,
    blocks, given, room, vocabulary, padded: tl.constexpr,
):  # fmt: skip
    source, part = tl.program_id(0).to(tl.int64), tl.arange(0, padded)
    inside, at = part < blocks, source * blocks + part
    tops = tl.load(highest + at, mask=inside, other=OFF)
    top = tl.max(tops, 0)
    whole = tl.sum(tl.load(totals + at, mask=inside, other=0.0) * tl.where(inside, tl.exp(tops - top), 0.0), 0)
    tl.store(broken, 1, mask=whole != whole)
    scores = tl.load(best + at, mask=inside, other=OFF)
    score = tl.max(scores, 0)
    found = tl.load(words + at, mask=inside, other=vocabulary)
    word = tl.minimum(tl.min(tl.where(scores == score, found, vocabulary), 0), vocabulary - 1).to(tl.int64)
    going, position = tl.load(open + source) != 0, tl.load(written + source)
    ended = (tl.load(kinds + word) & ENDS) != 0
    length = position + going.to(tl.int64)
    going_on = going & (ended == 0) & (length < tl.load(limits + source))
    tl.debug_barrier()
    tl.store(stuck + source, 1, mask=going & (score == OFF) & (whole == whole))
    tl.store(chosen + source, word)
    place = tl.where(going, position, room)  # whoever is done writes nothing where nobody reads
    tl.store(history + source * (given + room + 1) + given + place, tl.where(going, word, -1))
    tl.store(logs + source * (room + 1) + place, (score - top - tl.log(whole)).to(tl.float64))
    tl.store(written + source, length)
    tl.store(open + source, going_on.to(tl.uint8))


@triton.jit(do_not_specialize=["given", "room"])
def _go_on(
    highest, totals, best, found, kinds, power, limits,
    total, history, logs, words, parents, open, written,
    finished_rank, finished_score, finished_words, finished_logs, finished_length, finished_ended, broken,
    blocks, given, room, vocabulary,
    width: tl.constexpr, looked_at: tl.constexpr, n_best: tl.constexpr,
    hypotheses: tl.constexpr, candidates: tl.constexpr, parts: tl.constexpr, places: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Sizes that are powers of two: hypotheses ≥ width, candidates ≥ looked_at, parts ≥ blocks, places ≥ blocks × looked_at."""
    source = tl.program_id(0).to(tl.int64)
    slot, number = tl.arange(0, hypotheses), tl.arange(0, candidates)
    real, row = slot < width, source * width + slot
    top, whole = _normaliser(highest, totals, row, real, blocks, parts)
    tl.store(broken, 1, mask=tl.max((real & (whole != whole)).to(tl.int32), 0) > 0)
    if tl.load(open + source) != 0:
        position, limit = tl.load(written + source), tl.load(limits + source)
        length = position + 1
        before = tl.load(total + row, mask=real, other=OFF)
        rank, chosen = _likeliest(best, before, top, whole, row, real, blocks * looked_at, looked_at, candidates, places)

        # What the best continuations are, (candidates,)
        valid = rank > OFF
        parent = tl.where(valid, chosen // places, 0)
        at = (source * width + parent) * (blocks * looked_at) + chosen % places
        word = tl.minimum(tl.load(found + at, mask=valid, other=0), vocabulary - 1)
        own = parent[None, :] == slot[:, None]  # (hypotheses, candidates)
        log = tl.load(best + at, mask=valid, other=0.0) - _picked(own, top[:, None], 0) - _picked(own, tl.log(whole)[:, None], 0)
        ended = (tl.load(kinds + word) & ENDS) != 0
        over = ended | (length == limit)

        # What is finished: of those before and of the new ones the best, (hypotheses,)
        score = rank / tl.load(power + tl.minimum(length, room))
        finishes = valid & over & (number < width)
        ranked = tl.load(finished_rank + row, mask=real, other=OFF)
        if tl.max(finishes.to(tl.int32), 0) > 0:
            better = finishes[None, :] & (score[None, :] > ranked[:, None])  # of equal ones, what was there stays first
            old_place = slot + tl.sum(better.to(tl.int32), 1)
            new_place = tl.sum((real[:, None] & (ranked[:, None] >= score[None, :])).to(tl.int32), 0) + _before(finishes, number)
            new = finishes[None, :] & (new_place[None, :] == slot[:, None])  # (hypotheses, candidates)
            old = real[None, :] & (old_place[None, :] == slot[:, None])  # (hypotheses, hypotheses)
            is_new = tl.max(new.to(tl.int32), 1) > 0
            was = source * width + _picked(old, slot[None, :], 1)
            ranked = tl.where(is_new, _picked(new, score[None, :], 1), _picked(old, ranked[None, :], 1))
            lengths = tl.where(is_new, length, tl.load(finished_length + was, mask=real, other=0))
            ends = tl.where(is_new, _picked(new, ended.to(tl.int32)[None, :], 1), tl.load(finished_ended + was, mask=real, other=0))
            of = source * width + _picked(new, parent[None, :], 1)
            new_word, new_log = _picked(new, word[None, :], 1), _picked(new, log[None, :], 1)
            tl.debug_barrier()
            tl.store(finished_rank + row, ranked, mask=real)
            tl.store(finished_score + row, ranked, mask=real)
            tl.store(finished_length + row, lengths, mask=real)
            tl.store(finished_ended + row, ends.to(tl.uint8), mask=real)
            for start in range(0, length, columns):
                column = (start + tl.arange(0, columns))[None, :]
                inside = real[:, None] & (column < length)
                here, there = inside & is_new[:, None], inside & (is_new == 0)[:, None]
                text = tl.load(history + of[:, None] * (given + room + 1) + given + column, mask=here & (column < position), other=0)
                text += tl.load(finished_words + was[:, None] * (room + 1) + column, mask=there, other=0)
                scores = tl.load(logs + of[:, None] * (room + 1) + column, mask=here & (column < position), other=0.0)
                scores += tl.load(finished_logs + was[:, None] * (room + 1) + column, mask=there, other=0.0)
                text = tl.where(here & (column == position), new_word[:, None], text)
                scores = tl.where(here & (column == position), new_log[:, None], scores)
                tl.debug_barrier()
                tl.store(finished_words + row[:, None] * (room + 1) + column, text, mask=inside)
                tl.store(finished_logs + row[:, None] * (room + 1) + column, scores, mask=inside)
            tl.debug_barrier()

        # What goes on: the best that are not over, (hypotheses,)
        goes = valid & (over == 0)
        comes = goes[None, :] & (_before(goes, number)[None, :] == slot[:, None]) & real[:, None]  # (hypotheses, candidates)
        next_total = tl.max(tl.where(comes, rank[None, :], OFF), 1)
        next_parent, next_word = _picked(comes, parent[None, :], 1), _picked(comes, word[None, :], 1)
        next_log = _picked(comes, log[None, :], 1)
        hope = tl.max(next_total, 0) / tl.load(power + tl.minimum(limit, room))
        stays = hope > tl.max(tl.where(slot == n_best - 1, ranked, OFF), 0)
        of = source * width + next_parent
        for start in range(0, length, columns):
            column = (start + tl.arange(0, columns))[None, :]
            inside = real[:, None] & (column < length)
            text = tl.load(history + of[:, None] * (given + room + 1) + given + column, mask=inside, other=0)
            scores = tl.load(logs + of[:, None] * (room + 1) + column, mask=inside, other=0.0)
            text = tl.where(column == position, next_word[:, None], text)
            scores = tl.where(column == position, next_log[:, None], scores)
            tl.debug_barrier()
            tl.store(history + row[:, None] * (given + room + 1) + given + column, text, mask=inside)
            tl.store(logs + row[:, None] * (room + 1) + column, scores, mask=inside)
        tl.store(total + row, tl.where(stays, next_total, OFF), mask=real)
        tl.store(words + row, next_word, mask=real)
        tl.store(parents + row, next_parent, mask=real)
        tl.store(open + source, stays.to(tl.uint8))
        tl.store(written + source, position + stays.to(tl.int64))


@triton.jit
def _normaliser(highest, totals, row, real, blocks, parts: tl.constexpr):
    """Of each row: its highest score, and Σ exp(score - highest)."""
    part = tl.arange(0, parts)
    at = row[:, None] * blocks + part[None, :]
    inside = real[:, None] & (part < blocks)[None, :]
    tops = tl.load(highest + at, mask=inside, other=OFF)
    top = tl.max(tops, 1)
    return top, tl.sum(tl.load(totals + at, mask=inside, other=0.0) * tl.where(inside, tl.exp(tops - top[:, None]), 0.0), 1)


@triton.jit
def _likeliest(best, before, top, whole, row, real, count, looked_at: tl.constexpr, candidates: tl.constexpr, places: tl.constexpr):
    """The ranks (candidates,) of the best continuations of all hypotheses, in order, and where each stands: hypothesis × places + place."""
    place, number = tl.arange(0, places), tl.arange(0, candidates)
    inside = real[:, None] & (place < count)[None, :]
    score = tl.load(best + row[:, None] * count + place[None, :], mask=inside, other=OFF)
    log = score - top[:, None] - tl.log(whole)[:, None]
    ranks = before[:, None] + log.to(tl.float64)
    ranks = tl.where(inside & (ranks == ranks), ranks, OFF)
    ranks = tl.reshape(ranks, (ranks.shape[0] * places,))
    everywhere = tl.arange(0, ranks.shape[0])
    rank = tl.full((candidates,), OFF, tl.float64)
    chosen = tl.zeros((candidates,), tl.int32)
    for turn in range(looked_at):
        first, at = tl.max(ranks, 0, return_indices=True)
        rank, chosen = tl.where(number == turn, first, rank), tl.where(number == turn, at, chosen)
        ranks = tl.where(everywhere == at, OFF, ranks)
    return rank, chosen


@triton.jit
def _picked(which, values, axis: tl.constexpr):
    """The one value along the axis that is meant, or 0."""
    return tl.sum(tl.where(which, values, 0), axis)


@triton.jit
def _before(which, number):
    """How many of those that are meant stand before each."""
    return tl.sum((which[:, None] & (number[:, None] < number[None, :])).to(tl.int32), 0)
