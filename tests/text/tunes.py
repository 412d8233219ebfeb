"""Small pieces of music as MIDI files, put together byte by byte as the standard has them, so that no library of ours has a hand in it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

Note = tuple[int, int, int, int]  # start and length in ticks, pitch, velocity
WALTZ = [(bar * 12 + place, length, pitch) for bar in range(8) for place, length, pitch in ((0, 12, 40 + bar % 3), (4, 3, 64), (8, 3, 67))]
MARCH = [(bar * 16 + place, length, pitch) for bar in range(8) for place, length, pitch in ((0, 12, 40 + bar % 4), (6, 2, 64), (10, 4, 67))]


def ticks(notes: Iterable[tuple[int, int, int]], unit: int = 120, late: int = 0) -> list[Note]:
    """Notes in sixteenths as notes in ticks, all of them later by so many."""
    return [(start * unit + late, length * unit, pitch, 80) for start, length, pitch in notes]


def midi_file(notes: Sequence[Note], beats: int | None = 4, tempo: float | None = 120.0, channel: int = 0, division: int = 480) -> bytes:
    """A MIDI file of one track."""
    events: list[tuple[int, int, bytes]] = []
    if tempo is not None:
        events.append((0, 0, b"\xff\x51\x03" + round(60e6 / tempo).to_bytes(3, "big")))
    if beats is not None:
        events.append((0, 0, bytes((0xFF, 0x58, 4, beats, 2, 24, 8))))
    for start, length, pitch, velocity in notes:
        events.append((start, 2, bytes((0x90 | channel, pitch, velocity))))
        events.append((start + length, 1, bytes((0x80 | channel, pitch, 0))))  # an end before a beginning at the same time
    track, now = b"", 0
    for time, _, event in sorted(events):
        track += _variable(time - now) + event
        now = time
    track += b"\x00\xff\x2f\x00"
    return b"MThd" + struct.pack(">IHHH", 6, 0, 1, division) + b"MTrk" + struct.pack(">I", len(track)) + track


def _variable(number: int) -> bytes:
    parts = [number & 0x7F]
    while number := number >> 7:
        parts.append(number & 0x7F | 0x80)
    return bytes(reversed(parts))


MARCH_FILE = midi_file(ticks(MARCH))
WALTZ_FILE = midi_file(ticks(WALTZ), beats=3, tempo=100)
