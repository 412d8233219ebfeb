"""A text in the parts that a model reads one at a time, and what was written for them as one answer.

A model that was trained on sentences reads a text of several sentence by sentence; any model reads a text that is too long for it in parts
that fit. No part knows of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Literal, get_args

from regard.door.options import Options
from regard.door.results import NOTHING, Written
from regard.errors import ConfigError, ShapeError, nearest
from regard.models import LanguageModel
from regard.text.sentences import sentences
from regard.text.split import split_long
from regard.text.tokenizer import Frame

if TYPE_CHECKING:
    from regard.door import Model

Split = Literal["sentences", "length", "none"]
MOST_PARTS = 1 << 20  # of a text; so many numbers that chance goes by are its own


@dataclass(frozen=True)
class Part:
    """What a model reads at once of a text."""

    ids: list[int]
    text: str
    space: str  # what stands after it in the text; nothing after the last


Parts = list[list[Part]]  # of each text


def split_of(model: Model, options: Options) -> Split:
    """Where texts are split: as asked for, or as the model was trained. A required word is required of a text, not of each sentence."""
    asked = options.get("split")
    if asked is None:
        return "length" if options.get("require") else model.config.split or "length"
    if asked not in get_args(Split):
        raise ConfigError(f"split = {asked!r} is unknown; {nearest(str(asked), get_args(Split))}")
    return asked


def check_unsplit(options: Options) -> None:
    """Only what is translated is read in parts."""
    if options.get("split") is not None:
        raise ConfigError("split is for texts to be translated; leave it out")


def in_parts(model: Model, texts: list[str], tags: str | Sequence[str | None] | None, first: int, split: Split) -> Parts:
    """Each text in parts that each fit the model; no part for a text of nothing. `tags`: one for all, or each its own."""
    each = [tags] * len(texts) if tags is None or isinstance(tags, str) else tags
    if len(each) != len(texts):
        raise ConfigError(f"{len(each)} languages for {len(texts)} texts; give one for all, or each its own")
    pieces = [_pieces(text, split) for text in texts]
    own_tags = [tag for tag, own in zip(each, pieces, strict=True) for _ in own]
    encoded = iter(_tagged(model, [text for own in pieces for text, _ in own], own_tags))
    found: Parts = []
    for number, (own, tag) in enumerate(zip(pieces, each, strict=True), first):
        what = "a sentence of {} tokens" if len(own) > 1 else "{} tokens"
        fitting = (_fitting(model, text, space, next(encoded), tag, number, what, split) for text, space in own)
        found.append(list(chain.from_iterable(fitting)))
    return found


def _pieces(text: str, split: Split) -> list[tuple[str, str]]:
    """A text's sentences, each with the space after it, or the text as it is."""
    if not text.strip():
        return []
    places = sentences(text) if split == "sentences" else []
    if len(places) < 2:
        return [(text, "")]
    after = [text[end:begin] or " " for (_, end), (begin, _) in pairwise(places)]
    return [(text[begin:end], space) for (begin, end), space in zip(places, [*after, ""], strict=True)]


def _fitting(model: Model, text: str, space: str, ids: list[int], tag: str | None, number: int, what: str, split: Split) -> list[Part]:
    """A sentence or a text in parts that fit: one where it is not too long."""
    read, around = model.source_tokenizer, Frame(after=(model.config.end_token,))
    # One stack holds what it writes as well as what it reads: half of its context for each.
    context = model.config.context // 2 if isinstance(model.network, LanguageModel) else model.config.context
    room = context - len(read.framed((), around))  # the end token takes a place
    if len(ids) <= room:
        return [Part(read.framed(ids, around), text, space)]
    too_long = f"{model.place(number)}: {what.format(len(ids))}, and {model.name} reads {room} at once; "
    if split == "none":
        raise ShapeError(f"{too_long}shorten it, or have it split")
    texts = split_long(text, lambda part: len(read.encode(part, tag)) <= room)
    encoded = read.encode_batch(texts, tag)
    model.warn(f"{too_long}it was translated in {len(encoded)} parts")
    spaces = [*_between(text, texts), space]
    return [Part(read.framed(part, around), own, after) for part, own, after in zip(encoded, texts, spaces, strict=True)]


def _between(text: str, parts: Sequence[str]) -> Iterator[str]:
    """What stands between the parts of a text; a space where nothing does."""
    end = text.index(parts[0]) + len(parts[0])
    for part in parts[1:]:
        begin = text.index(part, end)
        yield text[end:begin] or " "
        end = begin + len(part)


def _tagged(model: Model, texts: list[str], tags: Sequence[str | None]) -> list[list[int]]:
    """The tokens of each text after its tag; those with the same tag at once."""
    read, different = model.source_tokenizer, list(dict.fromkeys(tags))
    if len(different) == 1:
        return read.encode_batch(texts, different[0])
    found: dict[int, list[int]] = {}
    for tag in different:
        own = [index for index, other in enumerate(tags) if other == tag]
        found |= zip(own, read.encode_batch([texts[index] for index in own], tag), strict=True)
    return [found[index] for index in range(len(texts))]


def numbers_of(number: int, parts: int) -> list[int]:
    """What chance goes by: the number of the text, and for further parts of it numbers of their own."""
    return [number if place == 0 else (number + 1) * MOST_PARTS + place - 1 for place in range(parts)]


def joined(answers: Sequence[Written], parts: Sequence[Part]) -> Written:
    """What was written for the parts of a text, one after the other, and so their alternatives. What each looked at stays with the part."""
    if len(answers) < 2:
        return answers[0] if answers else NOTHING
    ranked = zip(*(answer.alternatives for answer in answers), strict=False)  # as many as every part has
    best, *others = (_one_after_the_other(each, parts) for each in (answers, *ranked))
    return replace(best, alternatives=tuple(others)) if others else best


def _one_after_the_other(answers: Sequence[Written], parts: Sequence[Part]) -> Written:
    return Written(
        "".join(answer.text + part.space for answer, part in zip(answers, parts, strict=True)),
        tuple(token for answer in answers for token in answer.tokens),
        tuple(id for answer in answers for id in answer.ids),
        tuple(log for answer in answers for log in answer.log_probabilities),
        sum(answer.score for answer in answers),
        all(answer.ended for answer in answers),
        tuple(token for answer in answers for token in answer.source),
        parts=tuple(replace(answer, part=part.text, alternatives=()) for answer, part in zip(answers, parts, strict=True)),
    )
