"""A text too long to be read whole, made shorter."""

from __future__ import annotations

from collections.abc import Sequence

from regard.config import Cut


def shortened(ids: Sequence[int], room: int, cut: Cut) -> Sequence[int]:
    """At most so many tokens of a text: its head, or without its middle its head and its tail, half of the room for each."""
    if len(ids) <= room:
        return ids
    if cut == "end":
        return ids[:room]
    head = -(-room // 2)
    return [*ids[:head], *ids[len(ids) - (room - head) :]]
