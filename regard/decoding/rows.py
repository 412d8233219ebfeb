"""What every search is made of: tensors with a row for each source. Sources may leave, and others take their places."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from torch import Tensor
from torch.nn import functional as F

from regard.decoding.rules import Steering
from regard.nn.cache import ALL

if TYPE_CHECKING:
    from regard.decoding.fused import Tables
    from regard.decoding.search import Hypothesis
    from regard.decoding.tree import Tree


class Search(ABC):
    """Chooses words, for a batch of sources at once."""

    rows: ClassVar[tuple[str, ...]]  # the names of its tensors
    hypotheses: int  # of each source
    steering: Steering
    tree: Tree | None  # told of everything that is looked at
    limit: int  # words that there is room for
    given: int  # words of the history that were there before the first
    history: Tensor  # (sources, hypotheses, given + limit + 1), -1 where nothing stands
    logs: Tensor  # (sources, …, limit + 1), log-probabilities of what was written
    written: Tensor  # (sources,), how many words
    words: Tensor  # (sources, hypotheses), those chosen last
    parents: Tensor | None  # (sources, hypotheses), whose continuations they are, where that can change
    open: Tensor  # (sources,), whether anything is still to come
    broken: Tensor  # (), whether any score was not a number
    tables: Tables | None = None  # what kernels look up, where there are some

    @abstractmethod
    def advance(self, logits: Tensor, weights: Tensor | None = None, real: Tensor | None = None) -> None:
        """From the logits (sources, hypotheses, vocabulary) of the next word to the words chosen."""

    @abstractmethod
    def results(self, sources: Tensor) -> list[list[Hypothesis]]:
        """What was found for these sources, best first; nothing where the rules leave nothing to write."""

    def keep(self, sources: Tensor) -> None:
        """Only these sources are left."""
        for name in self.rows:
            setattr(self, name, getattr(self, name).index_select(0, sources))
        self.steering = self.steering.keep(sources)

    @abstractmethod
    def vacate(self, places: Tensor) -> None:
        """Nothing is written at these places (sources,) any more."""

    def seat(self, new: Self, places: Tensor, rows: Tensor | slice = ALL) -> None:
        """The sources of another search, which has begun, or these of its rows, take these places; nothing moves."""
        apart = {"history": (self.given - new.given, -1), "logs": (0, 0)}
        for name in self.rows:
            put(getattr(self, name), getattr(new, name)[rows], places, *apart.get(name, ()))
        self.steering.seat(new.steering, places, rows)
        self.broken |= new.broken


def put(table: Tensor, new: Tensor, places: Tensor, start: int | None = None, empty: int = 0) -> None:
    """New rows at these places of a table. Where one may be longer than they are, they `start` there, and the rest is empty."""
    if start is not None:
        new = F.pad(new, (start, table.shape[-1] - start - new.shape[-1]), value=empty)
    table.index_copy_(0, places, new)


def write_at(table: Tensor, places: Tensor, words: Tensor) -> Tensor:
    """A table (sources, …, n, length), with the words (sources, …, n) written at each source's own place (sources,)."""
    return table.scatter_(-1, places.view(-1, *[1] * (table.dim() - 1)).expand(*words.shape, 1), words[..., None])
