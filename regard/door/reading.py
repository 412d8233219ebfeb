"""Labels, missing words and vectors from text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.config import EncoderConfig
from regard.data.batch import Tokens
from regard.decoding.many import read_many
from regard.door.results import Choice, Filled, Labelled
from regard.errors import ConfigError, RegardError, ShapeError, nearest
from regard.limits import MOST_CHOSEN_AMONG, within
from regard.text.cut import shortened
from regard.text.tokenizer import Frame, Tokenizer

if TYPE_CHECKING:
    from regard.door import Model

MASKED = re.compile(r"\[MASK\]|<mask>")
POOLINGS = ("mean", "first")


def classify(model: Model, texts: list[str], first: int) -> list[Labelled]:
    encoder = model.encoder
    labels = encoder.config.labels
    assert labels is not None
    rows = read_many(encoder, text_ids(model, texts, first), lambda states, tokens: encoder.classify(states, tokens).softmax(-1))
    found = [dict(zip(labels, row.tolist(), strict=True)) for row in rows]
    return [Labelled(max(chances, key=chances.__getitem__), chances) for chances in found]


def text_ids(model: Model, texts: list[str], first: int) -> list[list[int]]:
    """Each text between start and end token, cut where it is too long."""
    tokenizer, config = model.tokenizer, model.config
    assert isinstance(config, EncoderConfig)
    around = Frame((tokenizer.start_id,), (tokenizer.end_id,))
    room = config.room - len(tokenizer.framed((), around))
    encoded = tokenizer.encode_batch(texts)
    for number, ids in enumerate(encoded):
        if len(ids) > room:
            model.warn(f"{model.place(first + number)}: {len(ids)} tokens, and {model.name} reads {room}; the rest was left out")
    return [tokenizer.framed(shortened(ids, room, config.cut), around) for ids in encoded]


def fill(model: Model, texts: list[str], choices: int, first: int) -> list[Filled]:
    within("choices", choices, "how many words to give for each place", 1, MOST_CHOSEN_AMONG)
    parts = [around_masks(model, text, first + number) for number, text in enumerate(texts)]
    ids = [masked_ids(model, own, first + number) for number, own in enumerate(parts)]
    states = states_at_masks(model, ids)
    return [_filled(model, own, row, choices) for own, row in zip(parts, states, strict=True)]


def around_masks(model: Model, text: str, number: int) -> list[str]:
    """What stands before, between and after the places that say [MASK]."""
    parts = MASKED.split(text)
    if len(parts) == 1:
        raise RegardError(f"{model.place(number)}: there is no [MASK] to fill; write [MASK] where a word is missing: {text[:60]!r}")
    return parts


def masked_ids(model: Model, parts: list[str], number: int) -> list[int]:
    """The tokens of a text, with the mask token between its parts."""
    tokenizer = model.tokenizer
    if tokenizer.frame is not None:  # one from elsewhere knows its mask by name, and what to do with the spaces around it
        [name] = tokenizer.pieces([tokenizer.mask_id])
        ids = tokenizer.frame.put(tokenizer.encode(name.join(parts)))
    else:
        ids = _joined_by_masks(tokenizer, _without_spaces(tokenizer, parts))
    if len(ids) > model.config.context:
        raise ShapeError(f"{model.place(number)}: {len(ids)} tokens, and {model.name} reads {model.config.context}; shorten it")
    return ids


def _without_spaces(tokenizer: Tokenizer, parts: list[str]) -> list[str]:
    """The parts without the space before each mask, where it is within the word that is missing."""
    return [part.removesuffix(" ") for part in parts[:-1]] + parts[-1:] if tokenizer.spaced else parts


def _joined_by_masks(tokenizer: Tokenizer, parts: list[str]) -> list[int]:
    ids = [tokenizer.start_id, *tokenizer.encode(parts[0])]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *_following(tokenizer, part)]
    return [*ids, tokenizer.end_id]


def _following(tokenizer: Tokenizer, part: str) -> list[int]:
    """The tokens of a text that goes on from another. Over bytes, a text on its own is encoded as if a space stood before it."""
    if not tokenizer.spaced or not part:
        return tokenizer.encode(part)
    if part[0].isspace():
        return tokenizer.encode(part.removeprefix(" "))
    return tokenizer.encode(f"\n{part}")[2:]  # a space and a line break are a token each before anything else


@torch.inference_mode()
def states_at_masks(model: Model, texts: list[list[int]]) -> list[Tensor]:
    """The states (masks, width) of the masked places of each text, and of no others: all of them would be too much to keep."""
    mask = model.tokenizer.mask_id
    counts = [text.count(mask) for text in texts]
    most = max(counts, default=0)

    def at_masks(states: Tensor, tokens: Tokens) -> Tensor:
        places = (tokens.ids == mask).long().argsort(dim=1, descending=True, stable=True)[:, :most]
        found = states.gather(1, places[:, :, None].expand(-1, -1, states.shape[2]))
        return torch.nn.functional.pad(found, (0, 0, 0, most - found.shape[1]))

    rows = read_many(model.encoder, texts, at_masks)
    return [row[:count].to(model.device, model.network.dtype) for row, count in zip(rows, counts, strict=True)]


@torch.inference_mode()
def _filled(model: Model, parts: list[str], states: Tensor, choices: int) -> Filled:
    tokenizer = model.tokenizer
    logits = model.encoder.fill(states).float()[:, : tokenizer.size]
    logits[:, sorted(tokenizer.special_ids)] = float("-inf")
    best = logits.softmax(-1).topk(min(choices, tokenizer.size - len(tokenizer.special_ids)), -1)
    words = [tokenizer.pieces(row) for row in best.indices.tolist()]
    parts = _without_spaces(tokenizer, parts)
    text = parts[0] + "".join(own[0] + part for own, part in zip(words, parts[1:], strict=True))
    if not parts[0] and tokenizer.spaced:
        text = text.removeprefix(" ")  # of the first word
    found = [tuple(Choice(word.strip(), chance) for word, chance in zip(own, row, strict=True))
             for own, row in zip(words, best.values.tolist(), strict=True)]  # fmt: skip
    return Filled(text, tuple(found))


def embed(model: Model, texts: list[str], pooling: str | None, normalise: bool | None, first: int) -> Tensor:
    if pooling is not None and pooling not in POOLINGS:
        raise ConfigError(f"pooling = {pooling!r} is unknown; {nearest(pooling, POOLINGS)}")
    encoder = model.encoder
    if not texts:
        return torch.zeros(0, encoder.config.width)
    vectors = torch.stack(
        read_many(encoder, text_ids(model, texts, first), lambda states, tokens: encoder.vectors(states, tokens, pooling))
    )
    unit = encoder.config.normalised if normalise is None else normalise
    return torch.nn.functional.normalize(vectors, dim=-1) if unit else vectors
