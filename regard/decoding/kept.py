"""Tables that are laid and wait for whoever comes next, so that what a GPU has recorded there is not recorded again for every text."""

from __future__ import annotations

from threading import Lock
from typing import NamedTuple

import torch

from regard.decoding.runner import Run
from regard.decoding.settings import Method, Rules
from regard.models import Generator
from regard.models.state import StackState

MOST = 12  # of them
SHARE, BYTES = 8, 2 << 30  # of a GPU's memory, an eighth for all of them; elsewhere so many bytes
LEAST, STEP, STEPS = 32, 32, 128  # tokens: sources of nearly the same length find the same table


class Kind(NamedTuple):
    """What makes one table as good as another."""

    model: Generator
    weights: tuple[object, ...]  # where they are in memory, and as what: what was recorded reads them there
    method: Method
    rules: Rules
    read: int  # tokens of a source
    begun: int  # tokens of a prefix
    seats: int


class Laid(NamedTuple):
    kind: Kind
    run: Run
    bytes: int


class Kept:
    """Belongs to whoever owns a model. A table is with one thread at a time: taken out while it is in use."""

    def __init__(self) -> None:
        self._laid: list[Laid] = []  # the one used last is the last
        self._lock = Lock()

    @property
    def kinds(self) -> list[Kind]:
        with self._lock:
            return [laid.kind for laid in self._laid]

    def take(self, kind: Kind) -> Run | None:
        """One of this kind, with nobody at it."""
        with self._lock:
            for place, laid in enumerate(self._laid):
                if laid.kind == kind:
                    return self._laid.pop(place).run
        return None

    def give(self, kind: Kind, run: Run) -> None:
        """Back, with nobody at it. Those that have not been used for longest are given up where there are too many."""
        room, size = _room(kind.model.device), _bytes(run)
        if size > room:
            return
        with self._lock:
            self._laid.append(Laid(kind, run, size))
            while len(self._laid) > MOST or sum(laid.bytes for laid in self._laid) > room:
                self._laid.pop(0)

    def clear(self) -> None:
        """Gives up all of them, for their memory."""
        with self._lock:
            self._laid.clear()


def roundly(length: int, most: int, least: int = LEAST) -> int:
    """A length that there is room for where so many tokens are wanted: in steps at first, then in powers of two."""
    steps = -(-length // STEP) * STEP if STEP < length <= STEPS else 1 << (length - 1).bit_length()
    return max(length, min(most, max(least, steps)))


def weights_of(model: Generator) -> tuple[object, ...]:
    return (model.dtype, *(parameter.data_ptr() for parameter in model.parameters()))


def _room(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).total_memory // SHARE if device.type == "cuda" else BYTES


def _bytes(run: Run) -> int:
    """Of its cache, and of the logits that a recorded position works with."""
    state = run.state
    assert isinstance(state, StackState)
    tensors = (state.cache.key, state.cache.value, *(each for pair in state.memory or () for each in pair))
    return sum(tensor.nbytes for tensor in tensors) + 2 * 4 * run.search.words.numel() * run.model.config.vocabulary
