"""Music as text: MIDI files to words for events (a bar, a position, a note's pitch, velocity and duration), and back to files.

A song is one line, such as "Bar Beats_4 Position_0 Tempo_88 Pitch_66 Velocity_119 Duration_2 …". Positions and durations are in sixteenths,
and a bar has four to a beat, so what is written is always in metre. All instruments but drums become one piano.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np

from regard.errors import CorpusError, RegardError, installing, nearest
from regard.text.metre import BEATS, SIXTEENTHS, Metre, Numbers, hear_metre

Score = Any  # symusic's, which is made by a factory that no checker can follow
MIDI = (".mid", ".midi")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
LOWEST, HIGHEST = 21, 108  # the keys of a piano
LONGEST = 8  # beats that a note lasts at most
VELOCITIES, TEMPOS, SLOWEST, FASTEST = 16, 24, 40, 180
LONGEST_SONG = 1 << 25  # bytes
MOST_BARS = 1 << 14  # from the first note to the last: two notes far apart, a few bytes in a file, would be millions of events
TICKS = 480  # of a beat, in files that are written
PARTS = ("test", "dev", *["train"] * 8)  # a song belongs to one of them by the hash of its name
BEYOND = "beyond the piano"
# What an archive's library raises over bytes that are not as they should be; RuntimeError where it is locked.
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, LZMAError, RuntimeError, OverflowError, ValueError)


class Song(NamedTuple):
    """A song as events, and where it was found."""

    events: str
    file: str


def is_midi(path: Path | None) -> bool:
    """Whether a file is one piece of music, by its name."""
    return path is not None and path.suffix.lower() in MIDI


def holds_music(path: Path) -> bool:
    """Whether there is music at a path: a MIDI file, an archive (which holds nothing else that we read), or a folder of MIDI files."""
    if path.is_dir():
        return any(is_midi(file) for file in path.rglob("*"))
    return is_midi(path) or path.name.lower().endswith(ARCHIVES)


def songs(path: Path, transpose: tuple[int, int] = (0, 0), parts: Container[str] = PARTS) -> Iterator[Song]:
    """Every song of a file, a folder or an archive that belongs to one of the parts, in all keys from so many semitones lower to higher.

    A key in which a note would lie beyond the piano is left out.
    """
    found = False
    for name, content in _files(path):
        found = True
        if part_of(name) in parts:
            file = str(path) if is_midi(path) else f"{path}, {name}"
            events = _remembered(content, file)
            for step in range(transpose[0], transpose[1] + 1):
                moved = transposed(events, step)
                if moved is not None:
                    yield Song(moved, file)
    if not found:
        raise CorpusError(f"{path} holds no MIDI file (.mid); is it the right one?")


def part_of(name: str) -> str:
    """Whether a song is for train (8 in 10), dev or test (1 in 10 each): by its file's name alone, wherever that lies."""
    digest = hashlib.blake2b(Path(name).name.encode(), digest_size=8).digest()
    return PARTS[int.from_bytes(digest) % len(PARTS)]


def transposed(events: str, step: int) -> str | None:
    """The same music so many semitones higher; None where that is beyond the piano."""
    higher = _higher(step)
    words = [higher.get(word, word) for word in events.split(" ")]
    return None if BEYOND in words else " ".join(words)


@cache
def _higher(step: int) -> dict[str, str]:
    """What each pitch becomes."""
    inside = range(LOWEST, HIGHEST + 1)
    return {f"Pitch_{pitch}": f"Pitch_{pitch + step}" if pitch + step in inside else BEYOND for pitch in inside}


def read_midi(path: Path) -> str:
    """The events of one MIDI file."""
    try:
        return to_events(path.read_bytes(), str(path))
    except OSError as error:
        raise CorpusError(f"can't read {path}: {error.strerror}") from error


def to_events(content: bytes, name: str) -> str:
    """The events of a MIDI file's content, with bars as its notes have them; `name` is what an error calls it."""
    score = read_score(content, name)
    if score.tpq < 1:
        raise CorpusError(f"{name} says that a beat has no time; copy it again from where it came, or take it out")
    notes = _notes(score, name)
    unit = score.tpq / SIXTEENTHS
    starts, lengths = notes["time"] / unit, notes["duration"] / unit
    metre = hear_metre(starts, lengths, notes["pitch"], _beats_said(score))
    lines = metre.lines(starts)
    begin = int(lines.min()) // metre.bar * metre.bar  # silence before the first bar is no music
    if (bars := (int(lines.max()) - begin) // metre.bar) >= MOST_BARS:
        raise CorpusError(f"{name} has a note after {bars:,} bars, many hours in; take it out")
    durations = np.clip(np.rint(lengths), 1, LONGEST * SIXTEENTHS).astype(np.int64)
    struck = _each_key_once(lines - begin, durations, notes["pitch"], notes["velocity"])
    tempos = _tempos(score, metre, begin, last=int(struck["time"].max()))
    return " ".join(_spelling()[token] for token in _tokens(struck, tempos, metre.beats))


def to_midi(events: str) -> bytes:
    """A MIDI file of these events; a note that is cut short at their end is left out."""
    words = events.split()
    tokens = {word: token for token, word in _spelling().items()}
    strange = next((word for word in words if word not in tokens), None)
    if strange is not None:
        raise CorpusError(f"{strange!r} is no event of music; {nearest(strange, tokens)}")
    return _to_file([tokens[word] for word in words])


def vocabulary() -> tuple[str, ...]:
    """Every event that there is."""
    return tuple(_spelling().values())


def read_score(content: bytes, name: str) -> Score:
    """A MIDI file as the library has it."""
    with_libraries()
    import symusic

    try:
        return symusic.Score.from_midi(content)
    except RuntimeError as error:
        why = str(error).removeprefix("MiniMidi: ").partition(": iostream")[0]
        raise CorpusError(f"{name} is no MIDI file, or damaged ({why}); copy it again from where it came, or take it out") from None


def with_libraries() -> None:
    """An error that says what to install, where the libraries for MIDI are not there."""
    missing = next((name for name in ("symusic", "miditok") if find_spec(name) is None), None)
    if missing is not None:
        raise RegardError(f"MIDI files are read with {missing}, which is not here; {installing('music')}")


@lru_cache(maxsize=2048)
def _remembered(content: bytes, name: str) -> str:
    """The same songs are read for the vocabulary, for training and for validation."""
    return to_events(content, name)


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name and content of every MIDI file at a path, in the order of names."""
    try:
        if is_midi(path):
            yield path.name, _read(path.open("rb"), path.name)
        elif path.is_dir():
            for file in sorted(file for file in path.rglob("*") if is_midi(file) and _is_song(file.name)):
                yield (name := str(file.relative_to(path))), _read(file.open("rb"), name)
        elif path.name.lower().endswith(".zip"):
            with zipfile.ZipFile(path) as packed:
                for name in sorted(filter(_is_song, packed.namelist())):
                    yield name, _read(packed.open(name), name)
        else:
            yield from _unpacked(path)
    except DAMAGED as error:
        raise CorpusError(f"{path} is damaged or cut short ({error}); copy it again from where it came") from error
    except OSError as error:
        raise CorpusError(f"can't read {path}: {error.strerror or error}") from error


def _read(file: IO[bytes], name: str) -> bytes:
    """A song, unless it is too long for one: a packed file may hold anything."""
    with file:
        content = file.read(LONGEST_SONG + 1)
    if len(content) > LONGEST_SONG:
        raise CorpusError(f"{name} is far too long for a song; take it out")
    return content


def _unpacked(path: Path) -> Iterator[tuple[str, bytes]]:
    """Those of a tar; small files, so they are held in memory until they are in order."""
    with tarfile.open(path, tarinfo=_Member) as packed:
        held = {}
        for member in packed:
            if member.isfile() and _is_song(member.name):
                content = packed.extractfile(member)
                assert content is not None
                held[member.name] = _read(content, member.name)
    yield from sorted(held.items())


class _Member(tarfile.TarInfo):
    """One of a tar's: what is said about it is read into memory, so that it may not be of any length."""

    ABOUT = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in cls.ABOUT and not 0 <= member.size <= LONGEST_SONG:
            raise tarfile.HeaderError("what it says about a file has no end")
        return member


def _is_song(name: str) -> bool:
    return is_midi(Path(name)) and not Path(name).name.startswith("._")  # which some systems put beside every file


def _notes(score: Score, name: str) -> dict[str, Numbers]:
    """The notes of all instruments but drums that a piano has."""
    played = [track.notes.numpy() for track in score.tracks if not track.is_drum and len(track.notes)]
    if played:
        notes = {key: np.concatenate([track[key] for track in played]) for key in ("time", "duration", "pitch", "velocity")}
        there = (notes["pitch"] >= LOWEST) & (notes["pitch"] <= HIGHEST) & (notes["velocity"] > 0)
        if there.any():
            return {key: values[there] for key, values in notes.items()}
    raise CorpusError(f"{name} has no notes that a piano could play; take it out")


def _beats_said(score: Score) -> int | None:
    """The beats of a bar, in quarters, that a file claims for all of it; None where it changes, or bars are not made of quarters."""
    said = {signature.numerator * 4 / signature.denominator for signature in score.time_signatures if signature.denominator}
    beats = said.pop() if len(said) == 1 else None
    return int(beats) if beats is not None and beats in BEATS else None


def _each_key_once(starts: Numbers, durations: Numbers, pitches: Numbers, velocities: Numbers) -> dict[str, Numbers]:
    """One note a key at a time: the longest of those that begin together, until the key is struck again. In order of time and pitch."""
    order = np.lexsort((-durations, pitches, starts))
    starts, durations, pitches, velocities = (values[order] for values in (starts, durations, pitches, velocities))
    fresh = np.ones(len(starts), bool)
    fresh[1:] = (np.diff(starts) != 0) | (np.diff(pitches) != 0)
    starts, durations, pitches, velocities = (values[fresh] for values in (starts, durations, pitches, velocities))
    by_key = np.lexsort((starts, pitches))
    until_next = np.where(np.diff(pitches[by_key]) == 0, np.diff(starts[by_key]), durations.max())
    durations[by_key[:-1]] = np.minimum(durations[by_key[:-1]], until_next)
    return {"time": starts, "duration": durations, "pitch": pitches, "velocity": velocities}


def _tempos(score: Score, metre: Metre, begin: int, last: int) -> dict[int, float]:
    """The tempo (beats a minute) from each line of the grid on; the one that holds at the beginning is at 0."""
    unit = score.tpq / SIXTEENTHS
    found = {0: 120.0}
    for tempo in sorted(score.tempos, key=lambda tempo: tempo.time):
        line = int(metre.lines(np.array(tempo.time / unit))) - begin
        if line <= last:
            found[max(0, line)] = tempo.qpm
    return found


@cache
def _remi() -> Any:
    """The library's tokenizer: REMI (Huang and Yang 2020)."""
    with_libraries()
    from miditok import REMI, TokenizerConfig

    return REMI(
        TokenizerConfig(
            pitch_range=(LOWEST, HIGHEST),
            use_pitchdrum_tokens=False,
            beat_res={(0, LONGEST): SIXTEENTHS},
            num_velocities=VELOCITIES,
            special_tokens=["PAD"],
            use_tempos=True,
            num_tempos=TEMPOS,
            tempo_range=(SLOWEST, FASTEST),
            log_tempos=True,
            use_time_signatures=True,
            time_signature_range={4: list(BEATS)},
            encode_ids_split="no",
        )
    )


@cache
def _spelling() -> dict[str, str]:
    """Each of the library's tokens as one plain word: "Duration_1.2.4" (beats, parts, parts a beat) is "Duration_6"."""
    return {token: _word(*token.split("_")) for token in _remi().vocab if token != "PAD_None"}


def _word(kind: str, value: str) -> str:
    match kind:
        case "Bar":
            return kind
        case "TimeSig":
            return f"Beats_{value.partition('/')[0]}"
        case "Tempo":
            return f"Tempo_{float(value):.0f}"
        case "Duration":
            beats, parts, _ = value.split(".")
            return f"Duration_{int(beats) * SIXTEENTHS + int(parts)}"
    return f"{kind}_{value}"


def _tokens(notes: dict[str, Numbers], tempos: dict[int, float], beats: int) -> Iterable[str]:
    from symusic import Note, Tempo, TimeSignature, Track
    from symusic import Score as Sheet

    track: Any = Track("Piano", 0, False)
    track.notes = Note.from_numpy(*(notes[key].astype(np.int32) for key in ("time", "duration")),
                                  *(notes[key].astype(np.int8) for key in ("pitch", "velocity")))  # fmt: skip
    score: Score = Sheet(SIXTEENTHS)
    score.tracks.append(track)
    score.tempos.extend(Tempo(line, tempo) for line, tempo in tempos.items())
    score.time_signatures.append(TimeSignature(0, beats, 4))
    return _remi().encode(score)[0].tokens


def _to_file(tokens: Sequence[str]) -> bytes:
    from miditok import TokSequence
    from symusic import Note

    score = _remi().decode([TokSequence(tokens=list(tokens))])
    if not score.tracks or not score.tracks[0].notes:
        raise CorpusError("these events hold no whole note (Pitch, Velocity, Duration), so there is nothing to play")
    notes = score.tracks[0].notes.numpy()
    struck = _each_key_once(*(notes[key].astype(np.int64) for key in ("time", "duration", "pitch", "velocity")))
    score.tracks[0].notes = Note.from_numpy(*(values.astype(notes[key].dtype) for key, values in struck.items()))
    score.tracks[0].name = "Piano"
    return score.resample(TICKS).dumps_midi()
