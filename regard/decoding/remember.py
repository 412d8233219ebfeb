"""What was verified once is remembered, for the same bundle, code, PyTorch, processor and precision: comparing takes long."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch

import regard
from regard.decoding.ready import Known, WrittenIn
from regard.errors import BundleError
from regard.models import Network
from regard.storage import cache_folder

FOLDER = "verified"
PACKAGES = ("regard.nn", "regard.models", "regard.decoding")  # whose code says what is computed, and how
ISA = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
PAGES, PAGE = 256, 4096  # of a file of weights that are read, evenly apart


class Memory:
    """Of one model of one bundle. A cache that can't be read or written is as good as none."""

    def __init__(self, folder: Path, network: Network, precision: WrittenIn) -> None:
        self.file: Path | None = None
        with suppress(OSError, BundleError):  # nobody knows where home is, say
            self.file = cache_folder() / FOLDER / f"{_key(folder, network, precision)}.json"

    def read(self) -> Known | None:
        with suppress(OSError, ValueError, TypeError):
            if self.file is not None and self.file.is_file():
                found = json.loads(self.file.read_text(encoding="utf-8"))
                return Known(int8=bool(found["int8"]), flat=bool(found["flat"]))
        return None

    def write(self, known: Known) -> None:
        with suppress(OSError):
            if self.file is not None:
                self.file.parent.mkdir(parents=True, exist_ok=True)
                new = self.file.with_suffix(f".{os.getpid()}")
                new.write_text(json.dumps(asdict(known)), encoding="utf-8")
                new.replace(self.file)


def _key(folder: Path, network: Network, precision: WrittenIn) -> str:
    digest = hashlib.sha256()
    for each in (torch.__version__, sys.version, precision, torch.backends.cpu.get_cpu_capability(), _processor(), str(network.dtype)):
        digest.update(f"{each}\n".encode())
    digest.update(repr([os.environ.get(name) for name in ISA]).encode())
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix == ".safetensors":
            digest.update(path.name.encode())
            digest.update(_sampled(path))
    for part in _code(network):
        digest.update(part)
    return digest.hexdigest()[:32]


def _sampled(path: Path) -> bytes:
    """The whole of a small file; of a large one its size, when it was written, and pages of it."""
    about = path.stat()
    if about.st_size <= PAGES * PAGE:
        return path.read_bytes()
    digest = hashlib.sha256(f"{about.st_size} {about.st_mtime_ns}".encode())
    with path.open("rb") as file:
        for page in range(PAGES):
            file.seek(page * (about.st_size - PAGE) // (PAGES - 1))
            digest.update(file.read(PAGE))
    return digest.digest()


@cache
def _processor() -> str:
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n\n")[0].splitlines()
        return "\n".join(line for line in lines if line.startswith(("model name", "flags", "Features")))
    return f"{platform.machine()} {platform.processor()}"


def _code(network: Network) -> Iterator[bytes]:
    """The files of regard that compute, and all functions of theirs and of the model's own types as they are now, patched or not."""
    root = Path(regard.__file__).parent
    modules = sorted(name for name in sys.modules if name.startswith(PACKAGES))
    for package in PACKAGES:
        for path in sorted((root / package.removeprefix("regard.")).glob("*.py")):
            yield path.read_bytes()
    for name in modules:
        yield from _functions(vars(sys.modules[name]), name)
    for kind in dict.fromkeys(base for module in network.modules() for base in type(module).__mro__):
        if not kind.__module__.startswith(("torch", "builtins", "abc", *PACKAGES)):
            yield f"{kind.__module__}.{kind.__qualname__}".encode()
            yield from _functions({kind.__name__: kind}, kind.__module__)


def _functions(names: dict[str, Any], module: str) -> Iterator[bytes]:
    for name, value in sorted(names.items()):
        if isinstance(value, type) and value.__module__ == module:
            yield from _functions({key: each for key, each in vars(value).items() if callable(each)}, module)
        elif isinstance(value, FunctionType):
            yield name.encode()
            yield from _instructions(value.__code__)


def _instructions(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _instructions(each)
        else:
            yield repr(sorted(map(repr, each)) if isinstance(each, frozenset) else each).encode()
