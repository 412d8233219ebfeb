"""Traces as they are sent, and what was written lately, so that another look at it need not write it again.

The page asks for one trace in several parts: first the answer and its attention, later the vectors of one layer, then of the next. Writing
takes several times as long as reading what was written; only the latter is done for each part. No more is kept than is said here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from threading import Lock
from typing import Any

from regard.door import Model, Options
from regard.door.trace_making import Decoded, decoded, trace, wanted
from regard.serve.queue import Ask, TooMuchError
from regard.view.trace_json import as_json

MOST_SENT = 16_000_000  # characters of an answer; larger parts are left out
MOST_TEXTS = 64  # whose outputs are kept
MOST_NODES = 50_000  # of all trees together, some 500 bytes each; one tree of more is not kept


class Remembered:
    """The latest outputs with their trees, by everything that they depend on. Several threads may use it."""

    def __init__(self, most_texts: int = MOST_TEXTS, most_nodes: int = MOST_NODES) -> None:
        self._most_texts, self._most_nodes = most_texts, most_nodes
        self._kept: dict[tuple[Any, ...], Decoded] = {}  # the one used last at the end
        self._lock = Lock()

    def decoded(self, model: Model, text: str, to: str | None, verb: str, prefix: str | None, options: Options) -> Decoded:
        """What `decoded` of the library gives, which is the same for the same."""
        key = (model.name, text, to, verb, prefix, *sorted(options.items()))
        with self._lock:
            found = self._kept.get(key)
        found = found or decoded(model, text, to, verb, prefix, options)
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = found
            while len(self._kept) > self._most_texts or self.nodes > self._most_nodes:
                del self._kept[next(iter(self._kept))]
        return found

    @property
    def nodes(self) -> int:
        """How many hypotheses are kept."""
        return sum(len(own.tree.nodes) for own in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)


def documents(model: Model, asks: Sequence[Ask], options: dict[str, Any], remembered: Remembered) -> list[bytes]:
    """The trace of each text. `options`: what of it is wanted, and how words are chosen."""
    return [_document(model, ask, dict(options), remembered) for ask in asks]


def _document(model: Model, ask: Ask, options: Any, remembered: Remembered) -> bytes:
    verb, candidates, positions = (options.pop(name) for name in ("verb", "candidates", "positions"))
    parts, layers, heads = (options.pop(name) for name in ("parts", "layers", "heads"))
    what = wanted(model, parts, layers, heads, None if positions is None else dict(positions), candidates)
    found = trace(model, ask.text, ask.to, verb, ask.prefix, options, what, remembered.decoded)
    document = as_json(found, most=MOST_SENT, remedy="ask for fewer layers")
    content = json.dumps(document, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(content) > 2 * MOST_SENT:
        raise TooMuchError(f"the trace has {len(content) / 1e6:.0f} MB, which is too much to send; ask for fewer parts, layers or heads")
    return content
