"""Sources read so that what becomes of one is the same to the last bit, whatever is read beside it.

A sum has another last bit where it has another length, since padding decides which numbers are added first, and which kernel adds them. In
float32 nobody would know. In int8 such a bit now and then moves a number on to the next whole one, and what follows goes by that. So there
sources that fill the same number of whole steps (`nn.cache`) are read by themselves, and prompts of each length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.data.batch import Tokens
from regard.decoding.products import Int8Product
from regard.models import Generator, LanguageModel, Memory, Seq2Seq, State
from regard.models.state import StackState
from regard.nn.cache import in_whole_steps


def uses_int8(model: nn.Module) -> bool:
    return any(isinstance(vars(module).get("product"), Int8Product) for module in model.modules())


def encode(model: Generator, source: Tokens) -> Memory:
    """`model.encode`, in int8 for those that fill the same number of steps by themselves. Another way to read is that of its definition."""
    if type(model).encode is not Seq2Seq.encode or not uses_int8(model):
        return model.encode(source)
    steps = in_whole_steps(source.lengths)
    tokens = _wide(source, int(steps.max()))
    assert tokens.real is not None
    lengths, context = set(steps.tolist()), model.config.context  # which need not be a whole step
    if len(lengths) == 1 and tokens.ids.shape[1] <= context:
        return model.encode(tokens)
    states = None
    for length in sorted(lengths):
        rows = (steps == length).nonzero().squeeze(1)
        width = min(length, context)
        ids, real = (each.index_select(0, rows)[:, :width] for each in (tokens.ids, tokens.real))
        found = model.encode(Tokens(ids, real, tail=True)).states
        assert found is not None
        states = found.new_zeros(*tokens.ids.shape, found.shape[2]) if states is None else states
        states[rows, :width] = found
    return Memory(tokens, states)


def start(model: Generator, memory: Memory, room: int, hypotheses: int) -> tuple[State, Tensor]:
    """`model.start`, which for a language model is where the prompt is read. Another way to start is that of its definition."""
    if type(model).start is not LanguageModel.start or memory.tokens.real is None or not uses_int8(model):
        return model.start(memory, room, hypotheses)
    longest = memory.tokens.ids.shape[1]
    state, logits = None, None
    for rows, ids in _by_length(memory.tokens, memory.tokens.real):
        # As many slots as the longest one needs, and no more than the context has places.
        own, first = model.start(Memory(Tokens(ids)), min(room, model.config.context - ids.shape[1]), hypotheses)
        assert isinstance(own, StackState)
        if state is None or logits is None:
            count = len(memory.tokens.ids)
            state = own.vacant(count, in_whole_steps(longest + room * hypotheses), longest)
            logits = first.new_empty(count, first.shape[1])
        state.seat(own, rows)
        logits[rows] = first
    assert state is not None
    assert logits is not None
    return state, logits


def _by_length(tokens: Tokens, real: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Which rows have each length, and their ids without padding: (rows of that length, length)."""
    lengths = tokens.lengths
    for length in sorted(set(lengths.tolist())):
        rows = (lengths == length).nonzero().squeeze(1)
        yield rows, tokens.ids[rows][real[rows]].view(len(rows), length)


def _wide(tokens: Tokens, length: int) -> Tokens:
    """Padded on the right, to so many."""
    real = torch.ones_like(tokens.ids, dtype=torch.bool) if tokens.real is None else tokens.real
    if not tokens.tail:
        order = real.logical_not().long().argsort(dim=1, stable=True)
        tokens, real = replace(tokens, ids=tokens.ids.gather(1, order)), real.gather(1, order)
    more = length - tokens.ids.shape[1]
    return Tokens(nn.functional.pad(tokens.ids, (0, more)), nn.functional.pad(real, (0, more)), tail=True)
