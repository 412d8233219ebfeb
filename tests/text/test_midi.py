"""MIDI files to events and back, from files, folders and archives."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("miditok", reason="needs the extra music")

from regard.data.store import content_key
from regard.errors import ConfigError, CorpusError, RegardError, installing
from regard.evaluation.piece import faults_of_events, faults_of_file
from regard.recipe import DataFile, parse_recipe
from regard.text.corpus import find, read_rows
from regard.text.midi import part_of, read_score, songs, to_events, to_midi, transposed, vocabulary
from regard.text.sources import sources_of
from tests.text.tunes import MARCH, MARCH_FILE, WALTZ, WALTZ_FILE, midi_file, ticks


def packed(folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / "songs.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_a_file_as_events() -> None:
    notes = [(0, 480, 60, 64), (0, 960, 64, 100), (240, 120, 67, 1), (1920, 240, 60, 127), (3840 + 1800, 120, 72, 80)]
    assert to_events(midi_file(notes, tempo=88), "tune").split() == [
        *("Bar", "Beats_4", "Position_0", "Tempo_88", "Pitch_60", "Velocity_63", "Duration_4", "Pitch_64", "Velocity_103", "Duration_8"),
        *("Position_2", "Pitch_67", "Velocity_7", "Duration_1"),
        *("Bar", "Beats_4", "Position_0", "Pitch_60", "Velocity_127", "Duration_2"),
        *("Bar", "Beats_4", "Position_15", "Pitch_72", "Velocity_79", "Duration_1"),
    ]


def test_events_as_a_file() -> None:
    content = to_midi(
        "Bar Beats_3 Position_4 Tempo_100 Pitch_60 Velocity_63 Duration_4 Bar Beats_3 Position_0 Pitch_61 Velocity_79 Duration_12"
    )
    score = read_score(content, "made")
    assert content.startswith(b"MThd")
    assert [(note.time, note.duration, note.pitch, note.velocity) for note in score.tracks[0].notes] == [
        (480, 480, 60, 63),
        (3 * 480, 3 * 480, 61, 79),
    ]
    assert [(sign.numerator, sign.denominator) for sign in score.time_signatures] == [(3, 4)]
    assert [(tempo.time, round(tempo.qpm)) for tempo in score.tempos][-1] == (480, 100)


notes_of_a_bar = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 32), st.integers(21, 108), st.integers(1, 127)), max_size=12)


@given(st.lists(notes_of_a_bar, min_size=1, max_size=5), st.floats(41, 178))
@settings(max_examples=40, deadline=None)
def test_there_and_back_again(bars: list[list[tuple[int, int, int, int]]], tempo: float) -> None:
    """What is written is read as it was, whatever the notes: keys struck twice, notes over bar lines, clusters."""
    bass = [(bar * 1920, 1920, 21, 100) for bar in range(len(bars))]  # says where bars begin
    notes = [((bar * 16 + at) * 120, length * 120, pitch, loud) for bar, own in enumerate(bars) for at, length, pitch, loud in own]
    strong = [note for note in notes if note[2] >= 52]
    events = to_events(midi_file([*bass, *strong], tempo=tempo), "tune")
    assert faults_of_events(events) == []
    content = to_midi(events)
    assert faults_of_file(content) == []
    assert to_events(content, "again") == events


def test_a_key_is_struck_once_at_a_time() -> None:
    """Two hands on one key: the longer of two notes that begin together, until the key is struck again."""
    import symusic

    score: Any = symusic.Score(480)
    score.time_signatures.append(symusic.TimeSignature(0, 4, 4))
    for notes in ([(0, 1920, 60, 80)], [(0, 240, 60, 90), (960, 480, 60, 70)]):
        track: Any = symusic.Track()
        track.notes.extend(symusic.Note(*note) for note in notes)
        score.tracks.append(track)
    assert to_events(score.dumps_midi(), "tune").split()[4:] == [
        *("Pitch_60", "Velocity_79", "Duration_8", "Position_8", "Pitch_60", "Velocity_71", "Duration_4"),
    ]


@pytest.mark.parametrize("late", [0, 40, 120, 1960, 5 * 480 + 77])
@pytest.mark.parametrize(("tune", "beats"), [(MARCH, 4), (WALTZ, 3)], ids=["march", "waltz"])
def test_bars_begin_where_the_music_has_them(tune: list[tuple[int, int, int]], beats: int, late: int) -> None:
    """As in POP909: a tempo, beats of one, and a beginning anywhere."""
    wanted = to_events(midi_file(ticks(tune), beats=beats), "tune")
    assert f"Beats_{beats}" in wanted
    assert to_events(midi_file(ticks(tune, late=late), beats=1), "late") == wanted


def test_the_file_is_believed_where_its_notes_don_t_contradict_it() -> None:
    upbeat = [(0, 2, 67), *((start + 16, length, pitch) for start, length, pitch in MARCH)]
    assert to_events(midi_file(ticks(upbeat), beats=2), "tune").startswith("Bar Beats_2 Position_0 Tempo_122 Pitch_67")


def test_tempos_and_drums_and_other_divisions() -> None:
    late = to_events(midi_file(ticks(MARCH, unit=24), division=96), "tune")
    assert late == to_events(MARCH_FILE, "tune")
    with pytest.raises(CorpusError, match=r"drums\.mid has no notes that a piano could play; take it out"):
        to_events(midi_file(ticks(MARCH), channel=9), "drums.mid")
    assert "Tempo_122" in to_events(midi_file(ticks(MARCH), tempo=None), "tune")  # what a file without one means


def test_other_keys() -> None:
    events = to_events(MARCH_FILE, "tune")
    higher = transposed(events, 5)
    assert higher == to_events(midi_file([(start, length, pitch + 5, loud) for start, length, pitch, loud in ticks(MARCH)]), "higher")
    assert higher is not None
    assert transposed(higher, -5) == events
    assert transposed(events, -19) is not None
    assert transposed(events, -20) is None  # its lowest note is 40, a piano's 21


@pytest.mark.parametrize(
    "content", [b"", b"no music at all, only text", MARCH_FILE[:60], MARCH_FILE[:-2]], ids=["empty", "text", "cut", "end"]
)
def test_a_broken_file(content: bytes) -> None:
    with pytest.raises(
        CorpusError, match=r"tune\.mid is no MIDI file, or damaged \(.+\); copy it again from where it came, or take it out"
    ):
        to_events(content, "tune.mid")


def test_a_file_without_notes() -> None:
    with pytest.raises(CorpusError, match=r"tune\.mid has no notes"):
        to_events(midi_file([]), "tune.mid")


def test_events_that_are_none() -> None:
    with pytest.raises(CorpusError, match="'Pitch_600' is no event of music; did you mean 'Pitch_60'"):
        to_midi("Bar Beats_4 Position_0 Pitch_600")
    with pytest.raises(CorpusError, match="no whole note"):
        to_midi("Bar Beats_4 Position_0 Pitch_60 Velocity_63")


def test_songs_of_a_file_a_folder_and_archives(tmp_path: Path) -> None:
    files = {f"some/{number}.mid": MARCH_FILE if number % 2 else WALTZ_FILE for number in (3, 1, 2)}
    folder = tmp_path / "songs"
    (folder / "some").mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    tar = packed(tmp_path, {**files, "README": b"what this is", "some/._1.mid": b"of another system"})
    with zipfile.ZipFile(tmp_path / "songs.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    wanted = [to_events(files[name], "") for name in sorted(files)]
    for path in (folder, tar, tmp_path / "songs.zip"):
        assert [song.events for song in songs(find(str(path)))] == wanted
        assert [row.texts[0] for row in read_rows(DataFile(path=str(path)), "lm")] == wanted
    assert [song.events for song in songs(folder / "some" / "1.mid")] == wanted[:1]
    assert next(songs(tar)).file == f"{tar}, some/1.mid"
    assert len(list(songs(tar, (-5, 6)))) == 36


def test_a_song_is_always_for_the_same(tmp_path: Path) -> None:
    names = [f"{number:03}.mid" for number in range(1, 910)]
    parts = {name: part_of(name) for name in names}
    counts = {part: list(parts.values()).count(part) for part in ("train", "dev", "test")}
    assert counts == {"train": 721, "dev": 97, "test": 91}  # of POP909, as docs/music.md has it
    assert all(part_of(f"elsewhere/{name}") == part for name, part in parts.items())
    tar = packed(tmp_path, dict.fromkeys(names[:40], MARCH_FILE))
    read = {
        part: [row.file[-7:] for row in read_rows(DataFile(path=str(tar), only={"part": (part,)}), "lm")]
        for part in ("train", "dev", "test")
    }
    assert read == {part: [name for name in names[:40] if parts[name] == part] for part in read}
    without = read_rows(DataFile(path=str(tar), without={"part": ("train",)}), "lm")
    assert {row.file[-7:] for row in without} == {*read["dev"], *read["test"]}


def test_a_folder_is_known_by_its_files_and_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "songs"
    (folder / "v1.0").mkdir(parents=True)
    (folder / "v1.0" / "1.mid").write_bytes(MARCH_FILE)
    keys = [content_key([folder])]
    (folder / "v1.0" / "1.mid").rename(folder / "v1.0" / "2.mid")
    keys.append(content_key([folder]))
    (folder / "v1.0" / "2.mid").write_bytes(WALTZ_FILE)
    keys += [content_key([folder]), content_key([folder])]
    assert len(set(keys)) == 3


def test_archives_that_are_no_good(tmp_path: Path) -> None:
    tar = packed(tmp_path, {"notes.txt": b"no music"})
    with pytest.raises(CorpusError, match="holds no MIDI file"):
        list(songs(tar))
    tar = packed(tmp_path, {"a.mid": MARCH_FILE, "b.mid": MARCH_FILE[:50]})
    with pytest.raises(CorpusError, match=r"songs\.tar\.gz, b\.mid is no MIDI file, or damaged"):
        list(songs(tar))
    whole = packed(tmp_path, {"a.mid": MARCH_FILE}).read_bytes()
    tar.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CorpusError, match=r"songs\.tar\.gz is damaged or cut short"):
        list(songs(tar))
    tar.write_bytes(gzip.compress(b"not a tar"))
    with pytest.raises(CorpusError, match=r"songs\.tar\.gz is damaged or cut short"):
        list(songs(tar))
    (tmp_path / "none").mkdir()
    with pytest.raises(CorpusError, match="is a folder; name a file in it"):
        find(str(tmp_path / "none"))


def test_what_a_recipe_may_ask_of_music(tmp_path: Path) -> None:
    tar = str(packed(tmp_path, {"a.mid": MARCH_FILE}))
    plain = {"task": "lm", "data": {"train": [{"path": tar}]}, "tokenizer": {"kind": "word"}}
    train, _ = sources_of(parse_recipe(plain), None)
    assert next(train[0].rows()).texts[0].startswith("Bar Beats_4")
    with pytest.raises(ConfigError, match=r"is music, which is learned by its events; set tokenizer\.kind = 'word'"):
        sources_of(parse_recipe(plain | {"tokenizer": {"kind": "bpe"}}), None)
    with pytest.raises(ConfigError, match="a song in one key could be learned and in another be validated on"):
        sources_of(parse_recipe(plain | {"data": {"train": [{"path": tar, "transpose": [-5, 6]}]}}), None)
    text = tmp_path / "text.txt"
    text.write_text("hello\n")
    with pytest.raises(ConfigError, match=r"transpose is for music, and .*text\.txt is none"):
        sources_of(parse_recipe(plain | {"data": {"train": [{"path": str(text), "transpose": [-5, 6]}]}}), None)
    with pytest.raises(CorpusError, match="music is for the task lm; translate needs text"):
        list(read_rows(DataFile(path=tar), "translate"))
    with pytest.raises(CorpusError, match="songs have no column composer; only and without go by part"):
        list(read_rows(DataFile(path=tar, only={"composer": ("Bach",)}), "lm"))


@pytest.mark.parametrize("missing", ["symusic", "miditok"])
def test_without_the_libraries(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RegardError, match=re.escape(f"read with {missing}, which is not here; {installing('music')}")):
        to_events(MARCH_FILE, "tune.mid")


def test_events_are_words_of_their_own() -> None:
    events = vocabulary()
    assert (
        len(set(events)) == len(events) == 1 + 88 + 16 + 32 + 24 + 24 + 5
    )  # bar, pitches, velocities, durations, positions, tempos, beats
    assert all(event.replace("_", "").isalnum() for event in events)


def test_real_songs() -> None:
    root = os.environ.get("REGARD_DATA")
    if not root or not (path := Path(root) / "music" / "pop909-midi.tar.gz").is_file():
        pytest.skip("needs POP909; say where the data is with REGARD_DATA")
    for number, song in enumerate(songs(path, parts={"dev"})):
        assert faults_of_events(song.events) == []
        if number % 20 == 0:
            content = to_midi(song.events)
            assert faults_of_file(content) == []
            assert to_events(content, song.file) == song.events
