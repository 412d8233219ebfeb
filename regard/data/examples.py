"""From rows of text to examples of token ids, as the task and the model have them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from regard.data.store import CHUNK, Item, in_chunks
from regard.errors import TrainingError
from regard.recipe import Recipe
from regard.text.corpus import Row
from regard.text.cut import shortened
from regard.text.forgetful import Forgetful
from regard.text.sieve import Sieve
from regard.text.sources import Source, blocks
from regard.text.tokenizer import Frame, Tokenizer

Ids = Sequence[int]


@dataclass(frozen=True)
class Vocabularies:
    """The tokenizer of what is written, and that of what is read, where it is another."""

    target: Tokenizer
    source: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target


@dataclass(frozen=True)
class Maker:
    """Makes the examples of a recipe."""

    recipe: Recipe
    vocabularies: Vocabularies
    labels: tuple[str, ...] = ()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}

    def items(self, source: Source, sieve: Sieve | None = None, segmentations: Segmentations | None = None) -> Iterator[Item | str]:
        """The examples of one source, each as often as there are segmentations; a text says why a row gave none."""
        if self.recipe.one_text:
            yield from self._stream(source)
            return
        for rows in in_chunks(source.rows(), CHUNK, lambda row: sum(map(len, row.texts))):
            written, read = self._encoded(rows, source.tag)
            others = [] if segmentations is None else segmentations.of(rows, source.tag, read=self.recipe.task == "translate")
            for number, row in enumerate(rows):
                reason = self._reason(row, source, sieve, read[number], written[number])
                if reason:
                    yield reason
                elif self.recipe.task in ("lm", "mlm"):
                    yield from self._pieces(written[number])
                else:
                    yield from self._examples(
                        row, read[number], written[number], [(other[0][number], other[1][number]) for other in others]
                    )

    def _encoded(self, rows: Sequence[Row], tag: str | None) -> tuple[list[list[int]], list[list[int]]]:
        written = self.vocabularies.target.encode_batch([row.texts[-1] for row in rows])
        if self.recipe.task != "translate":
            return written, written
        return written, self.vocabularies.source.encode_batch([row.texts[0] for row in rows], tag)

    def _reason(self, row: Row, source: Source, sieve: Sieve | None, read: Ids, written: Ids) -> str | None:
        if not all(text.strip() for text in row.texts):
            return "an empty side" if len(row.texts) > 1 else "empty"
        if sieve is not None and (found := sieve.reason(row, source.file)) is not None:
            return found
        if self.recipe.task == "translate" and not self._fits(read, written):
            return f"longer than {self.recipe.data.max_length} tokens"
        return None

    def _fits(self, read: Ids, written: Ids) -> bool:
        longest = self.recipe.data.max_length
        if self.recipe.kind == "lm":
            return len(read) + 1 + len(written) <= longest
        return max(len(read), len(written)) + 1 <= longest

    def _examples(self, row: Row, read: Ids, written: Ids, others: Sequence[tuple[Ids, Ids]]) -> Iterator[Item]:
        for into, out in others or [(read, written)]:
            if self.recipe.task == "classify":
                yield self._labelled(row, out)
            else:  # a segmentation that is too long gives way to the plain one
                yield self._pair(into, out) if self._fits(into, out) else self._pair(read, written)

    def _pair(self, read: Ids, written: Ids) -> Item:
        source, target = self.vocabularies.source, self.vocabularies.target
        given = source.framed(read, Frame(after=(source.end_id,)))
        answer = target.framed(written, Frame(after=(target.end_id,)))
        if self.recipe.kind == "lm":  # one stack reads the source to its end and goes on with the target
            return Item([*given, *answer], given=len(given))
        return Item([target.start_id, *answer], given)

    def _labelled(self, row: Row, text: Ids) -> Item:
        target = self.vocabularies.target
        if row.texts[0] not in self._numbers:
            raise TrainingError(
                f"{row.file}, line {row.line}: the label {row.texts[0]!r} stands in no training data; correct it or leave it out"
            )
        around = Frame((target.start_id,), (target.end_id,))
        room = self.recipe.data.max_length - len(target.framed((), around))
        return Item(target.framed(shortened(text, room, self.recipe.data.cut), around), label=self._numbers[row.texts[0]])

    def _stream(self, source: Source) -> Iterator[Item]:
        return self._pieces(chain.from_iterable(self.vocabularies.target.encode(block) for block in blocks(source.rows())))

    def _pieces(self, tokens: Iterable[int]) -> Iterator[Item]:
        """A text in pieces. A language model's each begin with the last token of the one before, so that every token is foretold once."""
        target, overlap = self.vocabularies.target, self.recipe.task == "lm"
        size = self.recipe.data.max_length + overlap
        held: list[int] = []
        for token in chain([target.start_id], tokens, [target.end_id]):
            held.append(token)
            if len(held) == size:
                yield Item(held)
                held = held[-1:] if overlap else []
        if len(held) > overlap:
            yield Item(held)


class Segmentations:
    """Several segmentations of every row by tokenizers that forget merges: a function of the rows and the seed."""

    def __init__(self, vocabularies: Vocabularies, share: float, copies: int, seed: int) -> None:
        self.target = Forgetful(vocabularies.target, share)
        self.source = self.target if vocabularies.joint else Forgetful(vocabularies.source, share)
        self.copies = copies
        self.chances = [np.random.Generator(np.random.Philox(key=[seed, 2**62 + copy])) for copy in range(copies)]

    def of(self, rows: Sequence[Row], tag: str | None, *, read: bool) -> list[tuple[list[list[int]], list[list[int]]]]:
        """What is read and what is written, as ids, so many times."""
        written = self.target.words([row.texts[-1] for row in rows])
        source = self.source.words([row.texts[0] for row in rows]) if read else None

        def drawn(chance: np.random.Generator) -> tuple[list[list[int]], list[list[int]]]:
            out = self.target.draw(written, chance)
            return (out if source is None else self.source.draw(source, chance, tag)), out

        with ThreadPoolExecutor(min(self.copies, os.cpu_count() or 1)) as pool:  # each chance is one copy's own: threads can't mix them up
            return list(pool.map(drawn, self.chances))
