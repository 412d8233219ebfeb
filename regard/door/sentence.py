"""Tokens as a trace shows them: which belong to one word, and which could have stood at a place."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from torch import Tensor

from regard.door.trace_types import Output, Sentence, Word
from regard.errors import RegardError
from regard.text.tokenizer import Tokenizer


def sentence(tokenizer: Tokenizer, ids: Sequence[int]) -> Sentence:
    special = tuple(id in tokenizer.special_ids for id in ids)
    return Sentence(tuple(pieces(tokenizer, ids)), tuple(ids), special, tuple(words_of(tokenizer, ids)))


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token stands for; a number in brackets for one that the model has and its tokenizer does not know."""
    return [_piece(tokenizer, id) for id in ids]


def _piece(tokenizer: Tokenizer, id: int) -> str:
    try:
        return tokenizer.pieces([id])[0]
    except RegardError:
        return f"[{id}]"


def words_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The number of the word that each token is part of. Special tokens and punctuation at the end of a word are words of their own."""
    shown = pieces(tokenizer, ids)
    special = [id in tokenizer.special_ids for id in ids]
    starts = [
        place == 0 or special[place] or special[place - 1] or _parted(tokenizer, *ids[place - 1 : place + 1]) for place in range(len(ids))
    ]
    for place, piece in enumerate(shown):
        if _is_mark(piece) and (place + 1 == len(ids) or starts[place + 1]):  # within a word, as in don't, it is part of it
            starts[place] = True
    return [sum(starts[: place + 1]) - 1 for place in range(len(ids))]


def _parted(tokenizer: Tokenizer, before: int, token: int) -> bool:
    """Whether a space stands between two tokens: what the tokenizer itself says when it writes them."""
    first, both = tokenizer.decode([before]), tokenizer.decode([before, token])
    added = both[len(first) :] if both.startswith(first) else ""
    return added[:1].isspace()


def _is_mark(piece: str) -> bool:
    text = piece.strip()
    return bool(text) and all(unicodedata.category(letter)[0] in "PS" for letter in text)


def likeliest(tokenizer: Tokenizer, logits: Tensor, places: Sequence[int], count: int, written: Sequence[int] | None) -> Output:
    """The best words for logits (places, vocabulary), and the ones that were written there."""
    logits = logits.double().cpu()
    normaliser = logits.logsumexp(-1)
    logs = logits - normaliser[:, None]
    entropy = -(logs.exp() * logs.clamp(min=-1e9)).sum(-1)
    best = logits.topk(min(count, logits.shape[1]), -1)

    def word(place: int, id: int, rank: int) -> Word:
        return Word(_piece(tokenizer, id), id, float(logits[place, id]), float(logs[place, id].exp()), rank)

    found = tuple(tuple(word(place, id, rank) for rank, id in enumerate(row)) for place, row in enumerate(best.indices.tolist()))
    chosen = None
    if written is not None:
        chosen = tuple(word(place, id, int((logits[place] > logits[place, id]).sum())) for place, id in enumerate(written))
    return Output(tuple(places), found, chosen, tuple(normaliser.tolist()), tuple(entropy.tolist()))
