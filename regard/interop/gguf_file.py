"""What stands in a GGUF file: its metadata, and where its tensors lie, read in one walk by the published format.

What a header claims is held against the size of the file before it is believed, and no tensor is looked at. The gguf library's own reader
takes 49 bytes for an array of 2^62 numbers and reads on until no memory is left.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from regard.errors import ConversionError, installing

MAGIC = b"GGUF"
VERSIONS = (2, 3)
TEXT, ARRAY = 8, 9  # types of a value; the others are numbers
NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
MOST_VALUES = 1 << 23  # in a header, tensors among them; the largest vocabularies need a sixth
LONGEST_HEADER = 1 << 28  # bytes; the largest vocabularies need a tenth
MOST_DIMENSIONS = 4


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in the file."""

    kind: Any  # the library's GGMLQuantizationType
    shape: tuple[int, ...]  # the numbers of a row first, as the file has it
    data: np.ndarray[Any, np.dtype[np.uint8]]  # rows of bytes


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Stored]]:
    """The metadata and the tensors of a file; these stay on disk until they are asked for."""
    if find_spec("gguf") is None:
        raise ConversionError(f"a GGUF file is read with the gguf library, which is missing; {installing('interop')}")
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if magic == MAGIC else None
    except OSError as error:
        raise ConversionError(f"can't read {path}: {error.strerror}; give a GGUF file") from error
    if content is None:
        raise ConversionError(f"{path} is no GGUF file: it begins with {magic!r} instead of {MAGIC!r}; copy it again from where it came")
    try:
        return _read(content)
    except ValueError as error:
        raise ConversionError(f"{path} is cut off or damaged ({error}); copy it again from where it came") from error


def _read(content: mmap.mmap) -> tuple[dict[str, Any], dict[str, Stored]]:
    header = _Header(content)
    version = header.number("<u4")
    if version not in VERSIONS:
        swapped = int(version).to_bytes(4, "little") in [known.to_bytes(4, "big") for known in VERSIONS]
        what = "it was written for machines of the other byte order" if swapped else f"its version is {version}"
        raise ValueError(f"{what}, and known are the versions {' and '.join(map(str, VERSIONS))} in little-endian")
    tensors, keys = header.number("<u8"), header.number("<u8")
    metadata: dict[str, Any] = {}
    for _ in range(header.claimed(keys, 13)):
        key = header.text()
        if key in metadata:
            raise ValueError(f"it says {key!r} twice")
        metadata[key] = header.value(header.number("<u4"))
    claims = [_Claim.read(header) for _ in range(header.claimed(tensors, 24))]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment = {alignment!r} should be a power of two")
    begin = -(-header.place // alignment) * alignment
    return metadata, _located(content, claims, begin)


class _Header:
    """The bytes of a header, taken one after the other: never more than there are, or than any model needs."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self.place = content, len(MAGIC)
        self._end = min(len(content), LONGEST_HEADER)
        self._values = 0

    def claimed(self, count: int, least: int) -> int:
        """A number of things that follow, if so many, of at least so many bytes each, can follow."""
        self._values += count
        if count * least > self._end - self.place or self._values > MOST_VALUES:
            raise ValueError(f"{count:,} values are claimed where {self._end - self.place:,} bytes are left for them")
        return count

    def number(self, form: str) -> Any:
        return self._numbers(form, 1)[0]

    def text(self) -> str:
        length = self.number("<u8")
        return self._take(length).decode()

    def value(self, kind: int) -> Any:
        """A number, a text, or a list of either."""
        if kind == TEXT:
            return self.text()
        if kind == ARRAY:
            inner, count = self.number("<u4"), self.number("<u8")
            if inner == TEXT:
                return [self.text() for _ in range(self.claimed(count, 8))]
            return self._numbers(self._form(inner), count)
        return self.number(self._form(kind))

    def _form(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ValueError(f"a value is of type {kind}, which is not known")
        return NUMBERS[kind]

    def _numbers(self, form: str, count: int) -> list[Any]:
        each = np.dtype(form).itemsize
        return np.frombuffer(self._take(self.claimed(count, each) * each), form).tolist()

    def _take(self, length: int) -> bytes:
        if length > self._end - self.place:
            raise ValueError(f"{length:,} bytes are claimed where {self._end - self.place:,} are left")
        self.place += length
        return self._content[self.place - length : self.place]


@dataclass(frozen=True)
class _Claim:
    """What a header says of one tensor."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int  # from where tensors begin

    @classmethod
    def read(cls, header: _Header) -> _Claim:
        name, dimensions = header.text(), header.number("<u4")
        if dimensions > MOST_DIMENSIONS:
            raise ValueError(f"{name!r} is claimed to have {dimensions} dimensions")
        return cls(name, tuple(header.number("<u8") for _ in range(dimensions)), header.number("<u4"), header.number("<u8"))


def _located(content: mmap.mmap, claims: list[_Claim], begin: int) -> dict[str, Stored]:
    """Each tensor's bytes, which must lie in the file, and none over another's."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    found: dict[str, Stored] = {}
    spans = []
    for claim in claims:
        if claim.kind not in GGML_QUANT_SIZES:
            raise ValueError(f"{claim.name!r} is stored in a way that is not known ({claim.kind})")
        kind = GGMLQuantizationType(claim.kind)
        block, size = GGML_QUANT_SIZES[kind]
        row = claim.shape[0] if claim.shape else 1
        if row % block or not all(claim.shape):
            raise ValueError(f"{claim.name!r} of shape {claim.shape} can't be stored as {kind.name}")
        length, start = prod(claim.shape) // block * size, begin + claim.offset
        if start + length > len(content):
            raise ValueError(f"{claim.name!r} ends at byte {start + length:,} of {len(content):,}")
        if claim.name in found:
            raise ValueError(f"it has {claim.name!r} twice")
        data = np.frombuffer(content, np.uint8, length, start).reshape(*claim.shape[:0:-1], row // block * size)
        found[claim.name] = Stored(kind, claim.shape, data)
        spans.append((start, start + length, claim.name))
    for (_, end, name), (start, _, next_name) in pairwise(sorted(spans)):
        if start < end:
            raise ValueError(f"{name!r} and {next_name!r} lie in the same bytes")
    return found
