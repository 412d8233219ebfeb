"""The metre of a piece, heard from its notes: where its sixteenths lie, how many beats a bar has, and where bars begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SIXTEENTHS = 4  # in a beat, which is always a quarter note
BEATS = (2, 3, 4, 5, 6)  # that a bar may have
USUAL = (4, 3)  # what is listened for where a file does not say, or says what its notes contradict
BASS = 52  # the pitch below which notes mark the bars: the left hand strikes them long and on the first beat
NEAR = 0.125  # of a sixteenth, within which a note lies on the grid
Numbers = npt.NDArray[Any]


@dataclass(frozen=True)
class Metre:
    """A grid of sixteenths, and the bars on it."""

    phase: float  # where the grid lies, in sixteenths after the file's own
    beats: int  # of a bar
    first: int  # the line of the grid on which a bar begins, nearest to the file's beginning

    @property
    def bar(self) -> int:
        """How many sixteenths a bar has."""
        return self.beats * SIXTEENTHS

    def lines(self, times: Numbers) -> npt.NDArray[np.int64]:
        """The line of the grid, counted from a bar's beginning, on which each time (in sixteenths of the file) falls."""
        return np.rint(times - self.phase).astype(np.int64) - self.first


def hear_metre(starts: Numbers, lengths: Numbers, pitches: Numbers, said: int | None = None) -> Metre:
    """The metre of notes whose starts and lengths are in sixteenths of the file, which itself says a number of beats, or none.

    What the file says is believed unless its notes contradict it: music that was played to a recording often has a tempo in its file
    but bars that begin anywhere.
    """
    phase = _phase(starts)
    lines = np.rint(starts - phase).astype(np.int64)
    low = pitches < BASS
    weights = np.minimum(lengths, 16) * (low if low.any() else 1)
    heard = {beats: _strengths(lines, weights, beats) for beats in USUAL}
    beats = max(heard, key=lambda beats: heard[beats].max())
    strongest = heard[beats].max()
    if said in BEATS and phase == 0.0 and _strengths(lines, weights, said)[0] >= strongest / 2:
        return Metre(0.0, said, 0)
    return Metre(phase, beats, int(heard[beats].argmax()))


def _phase(starts: Numbers) -> float:
    """How far notes lie after the file's sixteenths on average, as on a circle; nothing where most of them lie on those."""
    if np.mean(np.abs(starts - np.rint(starts)) <= NEAR) >= 0.5:
        return 0.0
    return float(np.angle(np.exp(2j * np.pi * starts).mean()) / (2 * np.pi))


def _strengths(lines: Numbers, weights: Numbers, beats: int) -> Numbers:
    """Of each place in a bar: the weight of the notes that begin there, relative to an even spread."""
    size = beats * SIXTEENTHS
    totals = np.bincount(lines % size, weights, minlength=size)
    return totals * size / totals.sum()
