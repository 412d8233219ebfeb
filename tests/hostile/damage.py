"""What may become of a file on its way: bits flip, ends are lost, pieces come twice, and whoever means harm writes numbers of any size."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import re
import struct
from collections.abc import Callable
from typing import Any

import zstandard

Damage = Callable[[random.Random, bytes], bytes]
WHOLE = [0, -1, 1, 2, 255, 256, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)]
WRITTEN = [*map(str, WHOLE), "1e308", "1e999", "-0.0", "0.5", "NaN", "Infinity", "-Infinity", "nan", "inf", "9" * 400, "9" * 5000]
VALUES: list[Any] = [
    *WHOLE, 0.5, -0.0, 1e308, float("nan"), float("inf"), 10**400, None, True, False, "", "a", "\x00", "\ud800", "ﷺ", "a" * 5000, [], {},
    [0], [None], [[]], {"a": 1}, {"": {}}, ["a"] * 300,
]  # fmt: skip


def bytes_damaged(chance: random.Random, content: bytes) -> bytes:
    """One to three wounds anywhere."""
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        content = chance.choice(WOUNDS)(chance, content)
    return content


def _place(chance: random.Random, content: bytes) -> int:
    """Anywhere, but half of the time near the beginning, where most formats say how long the rest is."""
    return chance.randrange(1 + (min(len(content), 64) if chance.random() < 0.5 else len(content)))


def _flip(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 8))):
        if changed:
            changed[min(_place(chance, content), len(changed) - 1)] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance: random.Random, content: bytes) -> bytes:
    return content[: _place(chance, content)]


def _gap(chance: random.Random, content: bytes) -> bytes:
    start = _place(chance, content)
    return content[:start] + content[start + chance.choice((1, 4, 8, 100)) :]


def _twice(chance: random.Random, content: bytes) -> bytes:
    start, length = _place(chance, content), chance.choice((1, 8, 50, 1000))
    return content[: start + length] + content[start : start + length] * chance.choice((1, 1, 20)) + content[start + length :]


def _run(chance: random.Random, content: bytes) -> bytes:
    start = _place(chance, content)
    return (
        content[:start]
        + chance.choice((b"\0", b"\xff", b"\x80", b"[", b"{", b"\t", b"9", b"a", b'"')) * chance.choice((1, 10, 5000))
        + content[start:]
    )


def _number(chance: random.Random, content: bytes) -> bytes:
    """A number in 1 to 8 bytes in place of what stood there."""
    start, size, number = _place(chance, content), chance.choice((1, 2, 4, 8)), chance.choice(WHOLE)
    order = chance.choice(("little", "little", "big"))
    made = (number % (1 << 8 * size)).to_bytes(size, order)
    if chance.random() < 0.2:
        made = struct.pack("<f", chance.choice((float("nan"), float("inf"), -float("inf"), 1e38)))
    return content[:start] + made + content[start + len(made) :]


def _digits(chance: random.Random, content: bytes) -> bytes:
    """A number in writing in place of another."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?([eE]-?\d+)?", content))
    if not found:
        return _number(chance, content)
    one = chance.choice(found)
    return content[: one.start()] + chance.choice(WRITTEN).encode() + content[one.end() :]


WOUNDS: tuple[Damage, ...] = (_flip, _cut, _gap, _twice, _run, _number, _digits)


def tree_damaged(chance: random.Random, tree: Any) -> Any:
    """The same tree of JSON, but for a value somewhere: another, gone, twice, or in another's place."""
    if not isinstance(tree, dict | list) or not tree or chance.random() < 0.15:
        return chance.choice((chance.choice(VALUES), [tree], {"a": tree}))
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))
    at = chance.randrange(len(items))
    key, value = items[at]
    match chance.randrange(10):
        case 0:
            del items[at]
        case 1:
            items.insert(at, (f"{key}2", value))
        case 2:
            items[at] = (chance.choice(items)[0], value)
        case 3:
            items[at] = (key, chance.choice(items)[1])
        case 4 if isinstance(value, list):
            items[at] = (key, value * chance.choice((2, 50)))
        case _:
            items[at] = (key, tree_damaged(chance, value))
    return dict(items) if isinstance(tree, dict) else [value for _, value in items]


def json_damaged(chance: random.Random, content: bytes) -> bytes:
    made = json.dumps(tree_damaged(chance, json.loads(content)), ensure_ascii=chance.random() < 0.5, separators=(",", ":"))
    return made.encode("utf-8", "surrogatepass")


def header_damaged(chance: random.Random, content: bytes) -> bytes:
    """A safetensors file whose list of tensors is whole JSON and says something else."""
    length = int.from_bytes(content[:8], "little")
    header = json_damaged(chance, content[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


PACKING: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]] = {
    ".gz": (lambda content: gzip.compress(content, mtime=0), gzip.decompress),
    ".xz": (lzma.compress, lzma.decompress),
    ".zst": (zstandard.ZstdCompressor().compress, zstandard.ZstdDecompressor().decompress),
    ".bz2": (bz2.compress, bz2.decompress),
}


def packed_damaged(ending: str) -> Damage:
    """What is in a packed file is damaged, and the packing is whole."""
    pack, unpack = PACKING[ending]
    return lambda chance, content: pack(bytes_damaged(chance, unpack(content)))
