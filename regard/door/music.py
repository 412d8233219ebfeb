"""Pieces of music from a language model over events: well-formed whatever it has learned, and as long as wished."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from regard.decoding.grammar import Grammar, Ladder
from regard.decoding.settings import Length
from regard.door.options import Options
from regard.errors import ConfigError, CorpusError, RegardError
from regard.evaluation.piece import FOLLOWS
from regard.text.metre import SIXTEENTHS
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.door import Model

SIGN = "Bar Position_0"  # stands in every song, and in no text
EVENTS = list(FOLLOWS)
START, END, UNKNOWN = range(len(EVENTS), len(EVENTS) + 3)  # the kinds of tokens that are no events
SEVERAL = ("samples", "n_best", "mbr")


def is_music(tokenizer: Tokenizer) -> bool:
    """Whether a model writes music: its words are events."""
    ids = tokenizer.encode(SIGN) if tokenizer.unknown_id is not None else []
    return len(ids) == len(SIGN.split()) and tokenizer.unknown_id not in ids


def grammar_of(tokenizer: Tokenizer, vocabulary: int) -> Grammar | None:
    """What may follow what in a piece of music; None, where the tokenizer is one of text.

    Positions rise within a bar and stay within its beats, and so do the pitches of notes that begin together.
    """
    if not is_music(tokenizer):
        return None
    words = [tuple(word.split("_")) for word in tokenizer.pieces(range(tokenizer.size))]
    words += [("",)] * (vocabulary - len(words))  # what the tokenizer does not know
    kinds = [EVENTS.index(word[0]) if word[0] in EVENTS else START for word in words]
    kinds[tokenizer.end_id] = END
    if tokenizer.unknown_id is not None:
        kinds[tokenizer.unknown_id] = UNKNOWN
    after = [{EVENTS.index(kind) for kind in FOLLOWS[event]} for event in EVENTS]
    after[EVENTS.index("Duration")].add(END)
    follows = (*after, {EVENTS.index("Bar")}, set[int](), {*range(len(EVENTS))})  # after the start, the end, and what is unknown
    positions = Ladder(rungs=_rungs(words, "Position", "Bar"), ceilings=_values(words, "Beats", SIXTEENTHS))
    pitches = Ladder(rungs=_rungs(words, "Pitch", "Position"), ceilings=(-1,) * len(words))
    return Grammar(kinds=tuple(kinds), follows=tuple(tuple(sorted(each)) for each in follows), ladders=(positions, pitches))


def _rungs(words: list[tuple[str, ...]], climbs: str, ground: str) -> tuple[int, ...]:
    values = _values(words, climbs, 1)
    return tuple(0 if word[0] == ground else value + 1 if value >= 0 else -1 for word, value in zip(words, values, strict=True))


def _values(words: list[tuple[str, ...]], kind: str, factor: int) -> tuple[int, ...]:
    return tuple(int(word[1]) * factor if word[0] == kind else -1 for word in words)


def compose(model: Model, primer: str = "", **options: Unpack[Options]) -> str:
    """The events of a piece: those of the primer, and what the model makes of them.

    As long as the model's context has room, or `max_length` events more than the primer has: beyond the context, it goes on from the last
    bars that fit into half of it.
    """
    if not is_music(model.tokenizer):
        raise RegardError(f"{model.name} writes text and no music; choose a model that was trained on MIDI files")
    several = next((name for name in SEVERAL if (options.get(name) or 1) != 1), None)
    if several is not None:
        raise ConfigError(f"{several} asks for several pieces, and a file holds one; leave it out, and take another seed for another piece")
    events = primer.split()
    _check_known(model, primer)
    room = model.config.context - 1
    wanted = Length.parse(str(options.pop("max_length", max(1, room - len(events))))).of(len(events)) + len(events)
    round, ended = 0, False
    while len(events) < wanted and not ended:
        given = events if len(events) < room and round == 0 else _last_bars(events, room // 2)
        options["max_length"] = min(room - len(given), wanted - len(events))
        answer = model.generate(" ".join(given), first=round, **options)
        events += answer.text.split()
        ended, round = answer.ended or not answer.text, round + 1
    return " ".join(events)


def _check_known(model: Model, primer: str) -> None:
    unknown = model.tokenizer.encode(primer).count(model.tokenizer.unknown_id or -1)
    if unknown:
        model.warn(f"{unknown:,} of the primer's {len(primer.split()):,} events never came up when {model.name} was trained")


def _last_bars(events: list[str], most: int) -> list[str]:
    """The last whole bars that have at most so many events."""
    first = max(0, len(events) - most)
    begins = next((place for place in range(first, len(events)) if events[place] == "Bar"), None)
    if begins is None:
        raise CorpusError(f"the last bar has more than {most} events, which the model's context has no room for; leave notes out")
    return events[begins:]
