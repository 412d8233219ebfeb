"""A grammar over tokens: what may follow what, and what must rise. With it, what a model writes is well-formed whatever it has learned.

Like every rule, it is a function of the history alone, so there is no state to keep in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from pydantic import model_validator
from torch import Tensor

from regard.config import Settings

OFF = float("-inf")


class Ladder(Settings):
    """Tokens that stand on rungs, and must climb until one leads back to the ground: the positions of a bar, until the next bar."""

    rungs: tuple[int, ...]  # of each token: its rung, from 1 on; 0: it leads back to the ground; -1: it is not on the ladder
    ceilings: tuple[int, ...]  # of each token: the highest rung from then on; -1: it says nothing about that


class Grammar(Settings):
    """Each token is of a kind, and a kind says which kinds may follow."""

    kinds: tuple[int, ...]  # of each token
    follows: tuple[tuple[int, ...], ...]  # of each kind, those that may come next
    ladders: tuple[Ladder, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        size = len(self.kinds)
        if any(len(table) != size for ladder in self.ladders for table in (ladder.rungs, ladder.ceilings)):
            raise ValueError(f"a ladder needs a rung and a ceiling for each of the {size} tokens")
        if not all(0 <= kind < len(self.follows) for kind in (*self.kinds, *(kind for next in self.follows for kind in next))):
            raise ValueError(f"a grammar of {len(self.follows)} kinds has no others; number them from 0")
        return self


@dataclass(frozen=True)
class Grammatical:
    """A grammar made ready for a device."""

    allowed: Tensor  # (vocabulary, vocabulary), whether the second may follow the first
    own: Tensor  # (vocabulary,), each token itself
    rungs: Tensor  # (ladders, vocabulary)
    ceilings: Tensor  # (ladders, vocabulary)

    @classmethod
    def of(cls, grammar: Grammar, device: torch.device | str | None = None) -> Grammatical:
        kinds = torch.tensor(grammar.kinds, device=device)
        pairs = torch.zeros(len(grammar.follows), len(grammar.follows), dtype=torch.bool, device=device)
        for kind, following in enumerate(grammar.follows):
            pairs[kind, list(following)] = True
        tables = ([getattr(ladder, name) for ladder in grammar.ladders] for name in ("rungs", "ceilings"))
        rungs, ceilings = (torch.tensor(table, dtype=torch.long, device=device) for table in tables)
        return cls(pairs[kinds][:, kinds], torch.arange(len(kinds), device=device), rungs, ceilings)

    def turn_off(self, scores: Tensor, history: Tensor) -> None:
        """Turns off, in scores (sources, hypotheses, vocabulary), what may not come next."""
        last = _latest(self.own, history, -1)
        off = ~self.allowed[last.clamp(min=0)] & (last >= 0)[..., None]  # where nothing stands yet, anything may come
        for rungs, ceilings in zip(self.rungs, self.ceilings, strict=True):
            reached, most = _latest(rungs, history, 0), _latest(ceilings, history, len(self.own))
            off |= (rungs > 0) & ((rungs <= reached[..., None]) | (rungs > most[..., None]))
        scores.masked_fill_(off, OFF)


def _latest(table: Tensor, history: Tensor, otherwise: int) -> Tensor:
    """What the table (vocabulary,) says of the latest word that it says something of, 0 or more (sources, hypotheses)."""
    if history.shape[2] == 0:
        return history.new_full(history.shape[:2], otherwise)
    said = table[history.clamp(min=0)].masked_fill(history < 0, -1)
    places = torch.arange(1, history.shape[2] + 1, device=history.device)
    latest = ((said >= 0) * places).amax(-1, keepdim=True)  # 0: none
    found = said.gather(2, (latest - 1).clamp(min=0)).masked_fill(latest == 0, otherwise)
    return found[..., 0]
