"""Faults in music are found, and only faults."""

from __future__ import annotations

import pytest

pytest.importorskip("miditok", reason="needs the extra music")

from regard.evaluation.piece import bar_lines, faults_of_events, faults_of_file, most_at_once
from regard.text.midi import read_score, to_events
from tests.text.tunes import MARCH, MARCH_FILE, WALTZ_FILE, midi_file, ticks

WHOLE = (
    "Bar Beats_3 Position_2 Tempo_88 Pitch_60 Velocity_63 Duration_4 Pitch_64 Velocity_63 Duration_4 "
    "Position_11 Pitch_60 Velocity_7 Duration_1"
)


def test_whole_music_has_no_faults() -> None:
    assert faults_of_events(WHOLE) == []
    for tune in (MARCH_FILE, WALTZ_FILE):
        assert faults_of_file(tune) == []
        assert faults_of_events(to_events(tune, "tune")) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Bar Beats_3", "Beats_3", "event 1, Beats_3: a piece begins with a Bar"),
        ("Position_11", "Position_12", "event 11, Position_12: after position 2 in a bar of 12 sixteenths"),
        ("Position_11", "Position_2", "event 11, Position_2: after position 2 in a bar of 12 sixteenths"),
        ("Pitch_64", "Pitch_60", "event 8, Pitch_60: notes that begin together rise from 21 to 108, and the last was 60"),
        ("Pitch_64", "Pitch_109", "event 8, Pitch_109: notes that begin together rise from 21 to 108, and the last was 60"),
        ("Velocity_63 Duration_4 Pitch_64", "Duration_4 Pitch_64", "event 6, Duration_4: it may not follow Pitch"),
        ("Duration_1", "", "event 13, Velocity_7: a piece ends with a whole note"),
        ("Duration_1", "Duration_0", "event 14, Duration_0: it should be 1 or more"),
        ("Tempo_88", "Rest_8", "event 4, Rest_8: there is no such event"),
    ],
)
def test_faults_of_events(old: str, new: str, fault: str) -> None:
    assert fault in faults_of_events(WHOLE.replace(old, new, 1))


@pytest.mark.parametrize(
    ("notes", "beats", "fault"),
    [
        ([(0, 480, 20, 80)], 4, "1 notes beyond the keys 21 to 108, the first at tick 0"),
        ([(480, 480, 109, 80)], 4, "1 notes beyond the keys 21 to 108, the first at tick 480"),
        ([(0, 480, 60, 80), (130, 110, 62, 80)], 4, "1 notes that begin between two sixteenths, the first at tick 130"),
        ([(0, 490, 60, 80)], 4, "1 notes that end between two sixteenths, the first at tick 0"),
        ([(0, 480, pitch, 80) for pitch in range(30, 63)], 4, "33 notes sound at once, which is more than 24"),
        ([(0, 480, 60, 80)], None, "it says no metre"),
        ([], 4, "it has no notes"),
    ],
)
def test_faults_of_files(notes: list[tuple[int, int, int, int]], beats: int | None, fault: str) -> None:
    assert faults_of_file(midi_file(notes, beats=beats)) == [fault]


def test_a_metre_that_begins_within_a_bar() -> None:
    import symusic

    score = symusic.Score.from_midi(MARCH_FILE)
    score.time_signatures.append(symusic.TimeSignature(1920 + 480, 3, 4))
    assert faults_of_file(score.dumps_midi()) == ["the bar before tick 2400 is cut short by a new metre"]


def test_how_many_notes_sound_together() -> None:
    import numpy as np

    assert most_at_once(np.array([0, 0, 4, 4]), np.array([4, 8, 4, 1])) == 3
    assert most_at_once(np.array([0, 4, 8]), np.array([4, 4, 4])) == 1


def test_bar_lines() -> None:
    import symusic

    score = read_score(midi_file(ticks(MARCH)), "tune")
    assert bar_lines(score) == list(range(0, 9 * 1920, 1920))
    score.time_signatures.append(symusic.TimeSignature(3840, 3, 4))
    assert bar_lines(score)[:6] == [0, 1920, 3840, 3840 + 1440, 3840 + 2880, 3840 + 4320]
