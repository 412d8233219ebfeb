"""Which characters of a text those of its translation come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from regard.door.results import Written

if TYPE_CHECKING:
    from regard.door import Model

Spans = list[tuple[int, int]]


@dataclass(frozen=True)
class Aligned:
    """Of one pass: where its tokens stand in the text and in the translation, and how much each looked at each."""

    sources: Spans
    targets: Spans
    weights: Tensor  # (targets, sources)


def aligned(model: Model, text: str, answer: Written) -> list[Aligned] | None:
    """Of a translation with its attention, part by part; None where a model looks at nothing, as a recurrent one may."""
    found, read, written = [], 0, 0
    for part in answer.parts or (answer,):
        own = part.part or text
        if part.alignment is None:
            return None
        read = text.index(own, read)
        written = answer.text.index(part.text, written)
        sources = model.source_tokenizer.offsets(own)
        after = 1 if model.source_tokenizer.frame is None else len(model.source_tokenizer.frame.after)
        first = len(part.source) - after - len(sources)  # a tag stands before the text
        targets = _places(model, part)
        weights = part.alignment[: len(targets), first : first + len(sources)]
        found.append(Aligned(_moved(sources, read), _moved(targets, written), weights))
        read, written = read + len(own), written + len(part.text)
    return found


def _moved(spans: Spans, by: int) -> Spans:
    return [(begin + by, end + by) for begin, end in spans]


def _places(model: Model, answer: Written) -> Spans:
    """Where each token stands in what was written: by how much text there is with it and without."""
    texts = model.tokenizer.decode_batch([answer.ids[:count] for count in range(1, len(answer.ids) + 1)])
    ends = [min(len(text), len(answer.text)) for text in texts]
    return list(zip([0, *ends[:-1]], ends, strict=True))
