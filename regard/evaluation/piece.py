"""Whether music is whole: a MIDI file that a piano can play, in metre from the first bar to the last; events in their order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.text.metre import SIXTEENTHS, Numbers
from regard.text.midi import HIGHEST, LOWEST, Score, read_score

MOST_AT_ONCE = 24  # notes that sound together; the fullest bar of POP909 has 16
FOLLOWS = {
    "Bar": {"Beats"},
    "Beats": {"Position", "Bar"},
    "Position": {"Tempo", "Pitch"},
    "Tempo": {"Pitch", "Position", "Bar"},
    "Pitch": {"Velocity"},
    "Velocity": {"Duration"},
    "Duration": {"Pitch", "Position", "Bar"},
}  # what comes after a kind of event; a piece begins with a Bar and ends after a Duration


def faults_of_events(events: str) -> list[str]:
    """What is wrong with events, each by the number of its word; nothing, where all is well."""
    return list(_faults_of_events(events.split()))


def _faults_of_events(words: list[str]) -> Iterator[str]:
    before, room, position, pitch = "Duration", 0, -1, 0
    if words and words[0] != "Bar":
        yield f"event 1, {words[0]}: a piece begins with a Bar"
    for number, word in enumerate(words, 1):
        kind, _, said = word.partition("_")
        value = int(said) if said.isdecimal() else 0
        if kind not in FOLLOWS:
            yield f"event {number}, {word}: there is no such event"
            continue
        if number > 1 and kind not in FOLLOWS[before]:
            yield f"event {number}, {word}: it may not follow {before}"
        before = kind
        match kind:
            case "Bar":
                position = -1
            case "Beats":
                room = value * SIXTEENTHS
            case "Position":
                if not position < value < room:
                    yield f"event {number}, {word}: after position {position} in a bar of {room} sixteenths"
                position, pitch = value, 0
            case "Pitch":
                if not max(pitch, LOWEST - 1) < value <= HIGHEST:
                    yield f"event {number}, {word}: notes that begin together rise from {LOWEST} to {HIGHEST}, and the last was {pitch}"
                pitch = value
            case "Duration" | "Velocity" if value < 1:
                yield f"event {number}, {word}: it should be 1 or more"
    if words and before != "Duration":
        yield f"event {len(words)}, {words[-1]}: a piece ends with a whole note"


def faults_of_file(content: bytes, name: str = "the piece") -> list[str]:
    """What is wrong with a MIDI file as a piece for piano in sixteenths; nothing, where all is well."""
    return list(_faults_of_file(read_score(content, name)))


def _faults_of_file(score: Score) -> Iterator[str]:
    tracks = [track.notes.numpy() for track in score.tracks if len(track.notes)]
    if not tracks:
        yield "it has no notes"
        return
    start, length, pitch, velocity = (
        np.concatenate([track[key] for track in tracks]).astype(np.int64) for key in ("time", "duration", "pitch", "velocity")
    )
    unit = score.tpq / SIXTEENTHS
    wrong = {
        f"beyond the keys {LOWEST} to {HIGHEST}": (pitch < LOWEST) | (pitch > HIGHEST),
        "without a duration": length <= 0,
        "without a velocity": (velocity < 1) | (velocity > 127),
        "that begin between two sixteenths": start % unit != 0,
        "that end between two sixteenths": (start + length) % unit != 0,
        "before the first bar": start < 0,
    }
    for what, which in wrong.items():
        if which.any():
            yield f"{int(which.sum())} notes {what}, the first at tick {int(start[which].min())}"
    if (most := most_at_once(start, length)) > MOST_AT_ONCE:
        yield f"{most} notes sound at once, which is more than {MOST_AT_ONCE}"
    yield from _faults_of_bars(score, unit)


def _faults_of_bars(score: Score, unit: float) -> Iterator[str]:
    """Every bar must have its whole length: the next metre begins where a bar ends."""
    bar, since = 0.0, 0
    for number, signature in enumerate(sorted(score.time_signatures, key=lambda signature: signature.time)):
        if number and bar and (signature.time - since) % bar != 0:
            yield f"the bar before tick {signature.time} is cut short by a new metre"
        since, bar = signature.time, score.tpq * 4 * signature.numerator / signature.denominator
        if bar % unit != 0:
            yield f"a bar of {signature.numerator}/{signature.denominator} is not made of sixteenths"
    if not bar:
        yield "it says no metre"


def most_at_once(start: Numbers, length: Numbers) -> int:
    """How many notes sound together at most."""
    times = np.concatenate((start, start + length))
    changes = np.repeat((1, -1), len(start))
    order = np.lexsort((changes, times))  # what ends makes room for what begins at the same time
    return int(changes[order].cumsum().max(initial=0))


def bar_lines(score: Score) -> list[int]:
    """Where bars begin, in ticks, up to the end of the last."""
    said = [
        (0, 4, 4),
        *((each.time, each.numerator, each.denominator) for each in sorted(score.time_signatures, key=lambda each: each.time)),
    ]
    end, lines = score.end(), [0]
    for place, (since, numerator, denominator) in enumerate(said):
        until = said[place + 1][0] if place + 1 < len(said) else end
        size = max(1, score.tpq * 4 * numerator // denominator)
        lines += range(since + size, until + size if until == end else until + 1, size)
    return sorted(set(lines))
