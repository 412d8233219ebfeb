"""Examples as token ids on disk, read through memory maps: made once for the same files, settings and tokenizer, with checksums."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from regard.data.visits import Groups
from regard.errors import TrainingError
from regard.storage import cached, read_json

FORMAT = 2  # of the files below; a new one makes old caches invisible, and no run that began with them can be resumed
CHUNK = 8192  # rows tokenised at a time
MOST_TEXT = 1 << 25  # characters of them: a token takes some hundred bytes for that time
Ids = npt.NDArray[np.integer[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, one after the other in a flat array."""

    flat: Ids  # (all tokens,), as they lie on disk
    edges: npt.NDArray[np.int64]  # (sequences + 1,)
    mapped: Mapped | None = None

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, index: int) -> Ids:
        return self.tokens[self.edges[index] : self.edges[index + 1]]

    @property
    def tokens(self) -> Ids:
        """All of them, seen to be there still: to touch what was cut off a mapped file ends the process at once."""
        if self.mapped is not None:
            self.mapped.check()
        return self.flat

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.diff(self.edges)


@dataclass(frozen=True)
class Mapped:
    """A file whose bytes are read when they are looked at."""

    path: Path
    map: mmap.mmap

    @classmethod
    def of(cls, path: Path) -> Mapped:
        with path.open("rb") as file:
            return cls(path, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def check(self) -> None:
        """An error, where the file has become shorter."""
        if self.map.size() < len(self.map):
            raise TrainingError(f"{self.path} was cut short while it was read; see what writes there, and go on with --resume")


@dataclass(frozen=True)
class Store:
    """All examples of one split. What they mean (a pair, a text, a labelled text) the task knows."""

    target: Ragged  # what is written or read: always there
    source: Ragged | None = None  # what it is written from
    labels: npt.NDArray[np.int64] | None = None
    given: npt.NDArray[np.int64] | None = None  # of each target, how many tokens are given and need not be foretold
    groups: Groups | None = None  # where the examples of each file begin and end, and how often they are visited
    left_out: dict[str, int] | None = None  # why examples were left out, and how many
    stream: int = 0  # targets are pieces of one text a file, each so many tokens after the last, to be cut anew in every epoch; 0: not so

    def __len__(self) -> int:
        """How many examples there are, however many copies each has."""
        return len(self.target) // (1 if self.groups is None else self.groups.copies)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Of the longer side of each example: what it costs in a batch."""
        lengths = self.target.lengths
        return lengths if self.source is None else np.maximum(lengths, self.source.lengths)


@dataclass(frozen=True)
class Item:
    """One example on its way into a store."""

    target: Sequence[int]
    source: Sequence[int] | None = None
    label: int | None = None
    given: int | None = None


class Writer:
    """Fills the files of a store, example by example."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        self.folder = folder
        self.dtype: type[np.uint16] | type[np.uint32] = np.uint16 if vocabulary <= 2**16 else np.uint32
        self.files: dict[str, IO[bytes]] = {}
        self.edges: dict[str, list[npt.NDArray[np.int64]]] = {}
        self.ends: dict[str, int] = {}
        self.numbers: dict[str, list[int]] = {"labels": [], "given": []}
        self.groups = [0]
        self.count = 0

    def add(self, items: Sequence[Item]) -> None:
        self._sequences("target", [item.target for item in items])
        sources = [item.source for item in items if item.source is not None]
        if sources:
            self._sequences("source", sources)
        self.numbers["labels"] += [item.label for item in items if item.label is not None]
        self.numbers["given"] += [item.given for item in items if item.given is not None]
        self.count += len(items)

    def end_group(self) -> None:
        self.groups.append(self.count)

    def close(self, left_out: dict[str, int], copies: int) -> None:
        for name, file in self.files.items():
            file.close()
            np.save(self.folder / f"{name}.edges.npy", np.concatenate([np.zeros(1, np.int64), *self.edges[name]]))
        for name, numbers in self.numbers.items():
            if numbers:
                np.save(self.folder / f"{name}.npy", np.array(numbers, np.int64))
        about = {"format": FORMAT, "dtype": self.dtype.__name__, "groups": self.groups, "copies": copies, "left_out": left_out}
        (self.folder / "about.json").write_text(json.dumps(about, indent=2) + "\n")

    def _sequences(self, name: str, sequences: Sequence[Sequence[int]]) -> None:
        if name not in self.files:
            self.files[name] = (self.folder / f"{name}.tokens").open("wb")
            self.edges[name], self.ends[name] = [], 0
        lengths = np.fromiter((len(sequence) for sequence in sequences), np.int64, len(sequences))
        flat = np.fromiter((token for sequence in sequences for token in sequence), self.dtype, int(lengths.sum()))
        self.files[name].write(flat.tobytes())
        self.edges[name].append(self.ends[name] + np.cumsum(lengths))
        self.ends[name] += int(lengths.sum())


def open_store(folder: Path) -> Store:
    """A store as it lies on disk; only what is looked at is read."""
    about = read_json(folder / "about.json")

    def ragged(name: str) -> Ragged | None:
        if not (folder / f"{name}.tokens").is_file():
            return None
        edges = np.load(folder / f"{name}.edges.npy")
        if not edges[-1]:  # an empty file can't be mapped
            return Ragged(np.zeros(0, np.uint16), edges)
        mapped = Mapped.of(folder / f"{name}.tokens")
        return Ragged(np.frombuffer(mapped.map, about["dtype"]), edges, mapped)

    target = ragged("target") or Ragged(np.zeros(0, np.uint16), np.zeros(1, np.int64))
    labels, given = (np.load(path) if (path := folder / f"{name}.npy").is_file() else None for name in ("labels", "given"))
    groups = Groups(np.array(about["groups"]), copies=about["copies"])
    return Store(target, ragged("source"), labels, given, groups, about["left_out"])


def cached_store(
    cache: Path, key: str, vocabulary: int, groups: Iterable[Iterable[Item | str]], say: Callable[[str], None], copies: int = 1
) -> Store:
    """The store of that key, made now if it is not there. A group is a file's examples; a text among them says why one was left out.

    With copies, so many items in a row are one example.
    """

    def make(folder: Path) -> None:
        writer, left_out = Writer(folder, vocabulary), dict[str, int]()
        for group in groups:
            for chunk in in_chunks(group, CHUNK):
                writer.add([item for item in chunk if isinstance(item, Item)])
                for reason in (item for item in chunk if isinstance(item, str)):
                    left_out[reason] = left_out.get(reason, 0) + 1
            writer.end_group()
        writer.close(left_out, copies)

    cached(cache / key, make, say)
    return open_store(cache / key)


def content_key(files: Iterable[Path], *settings: Any) -> str:
    """A name for what these files and settings make: another byte in any of them is another name."""
    digest = hashlib.blake2b(json.dumps([FORMAT, *settings], sort_keys=True, default=str).encode(), digest_size=16)
    for path in files:
        parts = sorted(part for part in path.rglob("*") if part.is_file()) if path.is_dir() else [path]  # a folder is what its files are
        for part in parts:
            digest.update(part.relative_to(path).as_posix().encode() if part != path else b"")  # a song's part goes by its name
            with part.open("rb") as file:
                digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def in_chunks(items: Iterable[T], size: int, length: Callable[[T], int] = lambda item: 0) -> Iterator[list[T]]:
    """So many at a time, or fewer where they are long."""
    chunk, total = list[T](), 0
    for item in items:
        chunk.append(item)
        total += length(item)
        if len(chunk) == size or total > MOST_TEXT:
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk
