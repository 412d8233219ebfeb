"""The vectors of a text's words, layer by layer: from the row of a table, the same in every text, to what the whole text made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.door.reading import text_ids
from regard.door.sentence import words_of
from regard.door.shown import Short
from regard.errors import RegardError
from regard.nn import record
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.door import Model


@dataclass(frozen=True, repr=False)
class WordVectors(Short):
    """A text's tokens and what each is at every depth."""

    text: str
    tokens: tuple[str, ...]  # as the model reads them, start and end among them
    ids: tuple[int, ...]
    static: Tensor  # (tokens, width): a row of the embedding's table, whatever stands around
    layers: Tensor  # (layers, tokens, width): what comes out of each layer
    tokenizer: Tokenizer

    def of(self, word: str, occurrence: int = 0) -> Tensor:
        """A word at every depth (1 + layers, width): its static vector, then each layer's. One of several tokens is their mean."""
        where = self._places(word)
        if not where:
            raise RegardError(
                f"there is no word {word!r} in {self.text!r}; its tokens are {' '.join(token.strip() for token in self.tokens)}"
            )
        if occurrence >= len(where):
            raise RegardError(
                f"{word!r} stands {len(where)} times in {self.text!r}; count from 0, so occurrence = {occurrence} is too many"
            )
        own = where[occurrence]
        return torch.cat((self.static[None, own], self.layers[:, own])).mean(1)

    def _places(self, word: str) -> list[slice]:
        """Where the tokens of a word stand, with or without the space that some tokenizers take into it."""
        spellings = {tuple(self.tokenizer.encode(spelling)) for spelling in (word, f" {word}")} - {()}
        found = {(start, start + len(ids)) for ids in spellings for start in range(len(self.ids)) if self._reads(start, ids)}
        numbers = [-1, *words_of(self.tokenizer, self.ids), -1]
        # A part of a longer word, as of bankers, is another word.
        whole = [(start, end) for start, end in sorted(found) if numbers[start] != numbers[start + 1] and numbers[end] != numbers[end + 1]]
        return [slice(start, end) for start, end in whole]

    def _reads(self, start: int, ids: Sequence[int]) -> bool:
        return self.ids[start : start + len(ids)] == tuple(ids)


@torch.inference_mode()
def vectors(model: Model, text: str) -> WordVectors:
    encoder = model.encoder
    [ids] = text_ids(model, [text], 0)
    tokens = Tokens(torch.tensor([ids], device=model.device))
    names = [f"encoder.layers.{number}.output" for number in range(encoder.config.layers)]
    with record(encoder, names.__contains__) as taps:
        states = encoder(tokens)
    layers = torch.cat([*(taps[name] for name in names[:-1]), states])  # where norms come first, one more follows the last layer
    static = encoder.embed(tokens.ids)[0]
    return WordVectors(text, tuple(model.tokenizer.pieces(ids)), tuple(ids), static.float().cpu(), layers.float().cpu(), model.tokenizer)
