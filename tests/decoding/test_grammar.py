"""A grammar turns off just what may not come next, in every way of decoding."""

from __future__ import annotations

import random

import pytest
import torch
from pydantic import ValidationError

from regard.decoding.grammar import Grammar, Grammatical, Ladder

# Words: 0 start, 1 bar, 2 short bar, 3 to 6 places one to four, 7 note, 8 end.
KINDS = (0, 1, 1, 2, 2, 2, 2, 3, 4)
FOLLOWS = ((1,), (1, 2), (3,), (1, 2, 4), ())
PLACES = Ladder(rungs=(-1, 0, 0, 1, 2, 3, 4, -1, -1), ceilings=(-1, 4, 2, -1, -1, -1, -1, -1, -1))
GRAMMAR = Grammar(kinds=KINDS, follows=FOLLOWS, ladders=(PLACES,))


def allowed_by_hand(history: list[int]) -> set[int]:
    """The same, said in words: read the history from its beginning and keep count."""
    if not history:
        return set(range(9))
    place, most = 0, 4
    for word in history:
        if word in (1, 2):
            place, most = 0, {1: 4, 2: 2}[word]
        elif 3 <= word <= 6:
            place = word - 2
    return {
        word for word in range(9) if KINDS[word] in FOLLOWS[KINDS[history[-1]]] and not (3 <= word <= 6 and not place < word - 2 <= most)
    }


def test_just_what_may_not_come_next_is_off() -> None:
    chance = random.Random(0)
    histories = [[chance.randrange(9) for _ in range(length)] for length in (0, 1, 1, 2, 3, 5, 8, 13, 21) for _ in range(8)]
    longest = max(map(len, histories))
    padded = torch.tensor([[-1] * (longest - len(history) - pad) + history + [-1] * pad for history in histories for pad in [0]])
    scores = torch.zeros(len(histories), 1, 9)
    Grammatical.of(GRAMMAR).turn_off(scores, padded[:, None])
    for history, row in zip(histories, scores[:, 0], strict=True):
        assert {word for word in range(9) if row[word] == 0} == allowed_by_hand(history)


def test_room_after_the_history_changes_nothing() -> None:
    history = torch.tensor([[[0, 2, 3, 7]]])
    wide = torch.cat((history, history.new_full((1, 1, 6), -1)), -1)
    one, other = torch.zeros(1, 1, 9), torch.zeros(1, 1, 9)
    ready = Grammatical.of(GRAMMAR)
    ready.turn_off(one, history)
    ready.turn_off(other, wide)
    assert torch.equal(one, other)
    assert one[0, 0].isfinite().nonzero().flatten().tolist() == [1, 2, 4, 8]


def test_a_grammar_that_does_not_fit_together() -> None:
    with pytest.raises(ValidationError, match="a rung and a ceiling for each of the 9 tokens"):
        Grammar(kinds=KINDS, follows=FOLLOWS, ladders=(Ladder(rungs=(1, 2), ceilings=(-1, -1)),))
    with pytest.raises(ValidationError, match="a grammar of 5 kinds has no others"):
        Grammar(kinds=(5,), follows=FOLLOWS)
