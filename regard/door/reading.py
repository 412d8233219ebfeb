"""Labels, missing words and vectors from text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.decoding.many import read_many
from regard.door.results import Choice, Filled, Labelled
from regard.errors import ConfigError, RegardError, nearest

if TYPE_CHECKING:
    from regard.door import Model

MASKED = re.compile(r" ?(?:\[MASK\]|<mask>)")
POOLINGS = ("mean", "first")


def classify(model: Model, texts: list[str], first: int) -> list[Labelled]:
    encoder, labels = model.encoder, model.encoder.config.labels
    assert labels is not None
    rows = read_many(encoder, text_ids(model, texts, first), lambda states, tokens: encoder.classify(states, tokens).softmax(-1))
    found = [dict(zip(labels, row.tolist(), strict=True)) for row in rows]
    return [Labelled(max(chances, key=chances.__getitem__), chances) for chances in found]


def text_ids(model: Model, texts: list[str], first: int) -> list[list[int]]:
    """Each text between start and end token, cut where it is too long."""
    room = model.config.context - 2
    encoded = model.tokenizer.encode_batch(texts)
    for number, ids in enumerate(encoded):
        if len(ids) > room:
            model.warn(f"text {first + number + 1} has {len(ids)} tokens, and {model.name} reads {room}; the rest was left out")
    return [[model.tokenizer.start_id, *ids[:room], model.tokenizer.end_id] for ids in encoded]


def fill(model: Model, texts: list[str], choices: int, first: int) -> list[Filled]:
    encoder, mask = model.encoder, model.tokenizer.mask_id
    ids = [masked_ids(model, text, first + number) for number, text in enumerate(texts)]
    longest = max(map(len, ids), default=0)

    def at_masks(states: Tensor, tokens: object) -> Tensor:
        return torch.nn.functional.pad(states, (0, 0, 0, longest - states.shape[1]))

    states = read_many(encoder, ids, at_masks)
    return [_filled(model, text_ids, row[[place for place, id in enumerate(text_ids) if id == mask]], choices)
            for text_ids, row in zip(ids, states, strict=True)]  # fmt: skip


def masked_ids(model: Model, text: str, number: int) -> list[int]:
    """The tokens of a text with the mask token where it says [MASK], which stands for the space before the word as well."""
    parts = MASKED.split(text)
    if len(parts) == 1:
        raise RegardError(f"text {number + 1} has no [MASK] to fill; write [MASK] where a word is missing: {text[:60]!r}")
    tokenizer = model.tokenizer
    ids: list[int] = [tokenizer.start_id]
    for place, part in enumerate(parts):
        if place:
            ids.append(tokenizer.mask_id)
        if part.strip():
            # A text is encoded as if a space stood before it, which is so after a word that stands for its own space.
            ids += tokenizer.encode(part.removeprefix(" ") if place else part)
    ids.append(tokenizer.end_id)
    if len(ids) > model.config.context:
        raise RegardError(f"text {number + 1} has {len(ids)} tokens and {model.name} reads {model.config.context}; shorten it")
    return ids


@torch.inference_mode()
def _filled(model: Model, ids: list[int], states: Tensor, choices: int) -> Filled:
    tokenizer = model.tokenizer
    logits = model.encoder.fill(states.to(model.device, model.network.dtype)).float()
    logits[:, sorted(tokenizer.special_ids)] = float("-inf")
    best = logits.softmax(-1).topk(min(choices, logits.shape[-1]), -1)
    whole = list(ids)
    for place, id in zip([place for place, id in enumerate(ids) if id == tokenizer.mask_id], best.indices[:, 0].tolist(), strict=True):
        whole[place] = id
    found = [
        tuple(Choice(tokenizer.pieces([id])[0].strip(), chance) for id, chance in zip(row, chances, strict=True))
        for row, chances in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(tokenizer.decode(whole), tuple(found))


def embed(model: Model, texts: list[str], pooling: str | None, normalise: bool, first: int) -> Tensor:
    if pooling is not None and pooling not in POOLINGS:
        raise ConfigError(f"pooling = {pooling!r} is unknown; {nearest(pooling, POOLINGS)}")
    encoder = model.encoder
    if not texts:
        return torch.zeros(0, encoder.config.width)
    vectors = torch.stack(
        read_many(encoder, text_ids(model, texts, first), lambda states, tokens: encoder.vectors(states, tokens, pooling))
    )
    return torch.nn.functional.normalize(vectors, dim=-1) if normalise else vectors
