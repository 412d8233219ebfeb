"""Texts that are written from one by one, each whenever it comes: what decoding is asked for, and what is made of what it finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from regard.decoding.rules import nothing_left
from regard.decoding.search import Hypothesis
from regard.decoding.settings import Beam, Rules
from regard.decoding.table import Asked, comes_and_goes
from regard.door.options import Options, chosen
from regard.door.parts import Part, check_unsplit, in_parts, joined, numbers_of, split_of
from regard.door.results import Written
from regard.door.writing import (
    CONTINUED,
    DRAWN,
    language,
    own_rules,
    prefixes_of,
    prompt_ids,
    spellings,
    written,
)
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.door import Model

Verb = Literal["translate", "generate"]


@dataclass(frozen=True)
class AskedOfPart(Asked):
    """A part of a text, which knows what it is a part of."""

    part: Part | None = None


class OneByOne:
    """What `Model.translate` and `Model.generate` do with many texts, for one at a time, with the same options for all."""

    def __init__(self, model: Model, verb: Verb, options: Options, *, attention: bool = False) -> None:
        self.verb, self.attention = verb, attention
        if verb == "generate":
            check_unsplit(options)
        self.split = split_of(model, options)
        default, limits = (Beam(), Rules()) if verb == "translate" else (DRAWN, CONTINUED)
        self.method, self.rules = chosen(options, default, own_rules(model, limits), lambda word: spellings(model.tokenizer, word))
        self.possible = comes_and_goes(model.writer, self.method)  # or else they must begin together

    def asked(self, model: Model, text: str | list[int], number: int, to: str | None, prefix: str | None) -> list[Asked]:
        """What decoding is asked for: a part of the text each; nothing, where there is no text to translate."""
        if self.verb == "generate":
            return [Asked(ids, number) for ids in prompt_ids(model, [text])]
        assert isinstance(text, str)
        [parts] = in_parts(model, [text], language(model, to), 0, self.split)
        [begun] = prefixes_of(model, prefix, [parts]) or [[[] for _ in parts]]
        each = zip(parts, numbers_of(number, len(parts)), begun, strict=True)
        return [AskedOfPart(part.ids, own, given, part=part) for part, own, given in each]

    def written(self, model: Model, asked: Sequence[Asked], found: Sequence[Sequence[Hypothesis]]) -> Written:
        """The text made of what was found for its parts."""
        pairs = zip(asked, found, strict=True)
        answers = [written(model, part.ids, hypotheses, self.attention, 0, self.rules) for part, hypotheses in pairs]
        return joined(answers, [each.part for each in asked if isinstance(each, AskedOfPart) and each.part is not None])

    def nothing(self) -> ConfigError:
        """What is wrong where none of the texts that someone asked about has an output."""
        return ConfigError(nothing_left(self.rules))
