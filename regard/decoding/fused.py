"""On a GPU, the search of one position as two kernels instead of a hundred small ones: a second speed of `search` and `sampling`.

One goes over the vocabulary, block by block, and keeps what may be chosen of it; the other does the rest for each source. They serve what
most people ask for: the likeliest word, or a beam, with nothing but lengths and tokens that are never chosen to keep to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.nn.backends import HAS_TRITON
from regard.nn.instead import given_up

if TYPE_CHECKING:
    from regard.decoding.rules import Steering
    from regard.decoding.sampling import Sampler
    from regard.decoding.search import BeamSearch

SEARCH = "the search of a position"
NEVER, ENDS = 1, 2  # what a word may be
WIDEST, MOST = 8, 16  # hypotheses of a source, and continuations of each that are looked at
LONGEST = 32 * 8192  # words of a vocabulary


@dataclass(frozen=True)
class Tables:
    """What the kernels look up. Made once for a search, before anything is recorded, and good for any sources that come and go."""

    kinds: Tensor  # (vocabulary,), bytes: NEVER and ENDS
    power: Tensor  # (limit + 1,), length^α in float64, as PyTorch finds it

    @classmethod
    def of(cls, search: Sampler | BeamSearch, vocabulary: int, length_penalty: float) -> Tables:
        steering, device = search.steering, search.history.device
        kinds = torch.zeros(vocabulary, dtype=torch.uint8, device=device)
        if steering.never is not None:
            kinds.index_fill_(0, steering.never, NEVER)
        kinds[list(steering.ends)] |= ENDS
        return cls(kinds, torch.arange(search.limit + 1, dtype=torch.double, device=device) ** length_penalty)


def suits_greedy(search: Sampler, logits: Tensor) -> bool:
    return logits.is_cuda and HAS_TRITON and not given_up(SEARCH) and serves_greedy(search, logits)


def suits_beam(search: BeamSearch, logits: Tensor, weights: Tensor | None) -> bool:
    return logits.is_cuda and HAS_TRITON and not given_up(SEARCH) and weights is None and serves_beam(search, logits)


def serves_greedy(search: Sampler, logits: Tensor) -> bool:
    """Whether the kernels have all that is asked of a lone hypothesis, on whatever device it is."""
    return not search.sampling.temperature and search.tree is None and _simple(search.steering) and _readable(logits)


def serves_beam(search: BeamSearch, logits: Tensor) -> bool:
    """The same for a beam, once all its hypotheses are there: at first there is one, which they all continue."""
    if search.groups > 1 or search.beam.coverage or search.tree is not None or not _simple(search.steering) or not _readable(logits):
        return False
    full = search.history.shape[1] == logits.shape[1] == search.hypotheses
    return full and search.hypotheses <= WIDEST and search.looked_at <= MOST and search.logs.dtype == torch.float32


def _simple(steering: Steering) -> bool:
    """Whether nothing depends on the words written so far, but for how many they are."""
    rules = steering.rules
    free = steering.forced is None and steering.grammar is None and rules.repetition_penalty == 1.0
    return free and not (rules.no_repeat or rules.banned or rules.required)


def _readable(logits: Tensor) -> bool:
    known = logits.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return known and logits.stride(-1) == 1 and logits.shape[-1] <= LONGEST


def greedy(search: Sampler, logits: Tensor) -> None:
    """From the logits (sources, 1, vocabulary) of the next word to the word chosen."""
    from regard.decoding.fused_kernels import write_likeliest  # loads kernels: only where they are used

    if search.tables is None:
        search.tables = Tables.of(search, logits.shape[-1], 0.0)
    write_likeliest(search, logits, search.tables)


def beam(search: BeamSearch, logits: Tensor) -> None:
    """From the logits (sources, hypotheses, vocabulary) of the next word to the words chosen and whose continuations they are."""
    from regard.decoding.fused_kernels import go_on

    if search.tables is None:
        search.tables = Tables.of(search, logits.shape[-1], search.beam.length_penalty)
    go_on(search, logits, search.tables)
