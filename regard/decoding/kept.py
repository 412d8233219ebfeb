"""Tables that are laid and wait for whoever comes next, so that what a GPU has recorded there is not recorded again for every text."""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

from regard.decoding.runner import Run
from regard.decoding.settings import Method, Rules
from regard.models import Generator
from regard.models.state import StackState

MOST = 12  # of them
BYTES = 2 << 30  # of all their caches
STEP = 32  # tokens: sources of nearly the same length find the same table


class Kind(NamedTuple):
    """What makes one table as good as another."""

    model: Generator
    method: Method
    rules: Rules
    read: int  # tokens of a source
    begun: int  # tokens of a prefix
    seats: int


class Laid(NamedTuple):
    kind: Kind
    weights: tuple[int, ...]  # where they are in memory: what was recorded reads them there
    run: Run


class Kept:
    """Belongs to whoever owns a model. A table is with one thread at a time: taken out while it is in use."""

    def __init__(self) -> None:
        self._laid: list[Laid] = []  # the one used last is the last
        self._lock = Lock()

    def take(self, kind: Kind) -> Run | None:
        """One of this kind, with nobody at it."""
        weights = _weights(kind.model)
        with self._lock:
            for place, laid in enumerate(self._laid):
                if laid.kind == kind and laid.weights == weights:
                    return self._laid.pop(place).run
        return None

    def give(self, kind: Kind, run: Run) -> None:
        """Back, with nobody at it. Those that have not been used for longest are given up where there are too many."""
        with self._lock:
            self._laid.append(Laid(kind, _weights(kind.model), run))
            while len(self._laid) > MOST or sum(_bytes(laid.run) for laid in self._laid) > BYTES:
                self._laid.pop(0)

    def has(self, kind: Kind) -> bool:
        with self._lock:
            return any(laid.kind == kind for laid in self._laid)

    def clear(self) -> None:
        """Gives up all of them, for their memory."""
        with self._lock:
            self._laid.clear()


def roundly(length: int, most: int) -> int:
    """A length that there is room for where so many tokens are wanted."""
    return max(length, min(most, -(-length // STEP) * STEP))


def _weights(model: Generator) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in model.parameters())


def _bytes(run: Run) -> int:
    state = run.state
    assert isinstance(state, StackState)
    tensors = (state.cache.key, state.cache.value, *(each for pair in state.memory or () for each in pair))
    return sum(tensor.nbytes for tensor in tensors)
