"""One long text a file, cut into pieces elsewhere in every epoch: so that no token always stands at the same place, after the same few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regard.data.store import Store
from regard.data.visits import Indices

Table = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cuts:
    """Where pieces of streams begin, counted in tokens of their text, and where that text lies in the store."""

    begin: Table  # (pieces,)
    text: Table  # (pieces,), the first token of each one's text in the store
    step: int

    def where(self, owners: Table, places: Table) -> Table:
        """Where in the store each place of each piece is found; what follows it there is what follows it in the text."""
        token = self.begin[owners] + places
        # A piece lies there with one token more, the first of the next, so that its last one too has something to foretell.
        return self.text[owners] + token // self.step * (self.step + 1) + token % self.step


def cuts(store: Store, indices: Indices, lengths: Table, shift: float) -> Cuts:
    """The pieces of these numbers, each begun later by a share of a piece; the last of a text ends where the text does."""
    assert store.groups is not None
    edges, files = store.target.edges, store.groups.edges
    file = np.searchsorted(files, indices, side="right") - 1
    first, end = files[file], files[file + 1]
    text = edges[first]
    whole = edges[end] - text - (end - first)  # tokens that are followed by another
    begin = (indices - first) * store.stream + int(shift * store.stream)
    return Cuts(np.minimum(begin, whole - lengths), text, store.stream)
