"""A tokenizer that comes from anywhere is tried before it is used: in a process that may die of it, once."""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from pathlib import Path

import tokenizers

import regard
from regard.errors import BundleError
from regard.storage import cache_folder
from regard.worker import StoppedError, Worker

FOLDER = "tried"
SECONDS = 30.0  # a vocabulary of 256,000 takes one or two
MEMORY = 2 << 30
IDLE = 10.0  # seconds that a next one is waited for: several models are often loaded together
OWN = Path(regard.__file__).parent  # what comes with regard is trusted as its code is

_worker = Worker("regard.text.trial_work", SECONDS, MEMORY, IDLE)
_tried: set[str] = set()  # by this process, where no cache can be written


def refuse_untrusted(path: Path, content: str) -> None:
    """An error, where the tokenizer that a file holds kills, hangs, fails or takes all memory when it reads a text."""
    if OWN in path.resolve().parents:
        return
    versions = f"{regard.__version__} {tokenizers.__version__} {platform.platform()}\n"
    key = hashlib.sha256((versions + content).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if key in _tried or _remembered(key):
        return
    try:
        wrong = _worker.ask(json.dumps(content))
    except StoppedError as stopped:
        raise BundleError(f"the tokenizer {path} {stopped} when it was tried; don't trust it") from stopped
    if wrong is not None:
        raise BundleError(f"{path}: {wrong}")
    _tried.add(key)
    with suppress(OSError, BundleError):
        folder = cache_folder() / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / key).touch()


def _remembered(key: str) -> bool:
    with suppress(OSError, BundleError):
        return (cache_folder() / FOLDER / key).is_file()
    return False
