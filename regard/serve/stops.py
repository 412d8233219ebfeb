"""Where an output ends because it says something that was named as its end."""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What stands before the one that is complete first, and whether there was one."""
    found = min(((place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0), default=None)
    return (text, False) if found is None else (text[: found[1]], True)


class Stops:
    """The same for text that comes in pieces: what may be the beginning of an end is held back until it is known."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.met = stops, False
        self._held = ""

    def take(self, piece: str) -> str:
        """What may be said now."""
        self._held, self.met = cut(self._held + piece, self.stops)
        safe = len(self._held) if self.met else len(self._held) - self._doubtful()
        said, self._held = self._held[:safe], self._held[safe:]
        return said

    def rest(self) -> str:
        """What was held back, where nothing more comes."""
        return self._held

    def _doubtful(self) -> int:
        """How many of the last characters may begin an end."""
        longest = max(map(len, self.stops), default=1) - 1
        sizes = range(min(longest, len(self._held)), 0, -1)
        return next((size for size in sizes if any(stop.startswith(self._held[-size:]) for stop in self.stops)), 0)
