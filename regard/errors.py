"""Errors for people: what was wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class RegardError(Exception):
    """Anything regard can explain. The command line prints its message and exits with 1."""


class ConfigError(RegardError):
    """A setting is unknown, out of range, or at odds with another."""


class MaskError(RegardError):
    """A mask of the wrong kind or shape for the attention that was asked to use it."""


class ShapeError(RegardError):
    """A tensor does not have the shape or type that the model needs."""


class CacheError(RegardError):
    """A decoding cache is too small or used with the wrong rows."""


class CorpusError(RegardError):
    """A data file is missing, broken, or not of the form that the task needs."""


class TrainingError(RegardError):
    """Training can't start or go on."""


class BundleError(RegardError):
    """A folder is not a bundle, or one of its files is damaged."""


class ConversionError(RegardError):
    """A model from elsewhere can't be turned into a bundle."""


class RegardWarning(UserWarning):
    """What a person should know, and what stops nothing."""


def out_of_memory(error: BaseException) -> bool:
    """Whether a GPU, a CPU or Python had too little memory; PyTorch has an error of its own for the first alone."""
    told = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return told or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def panicked(error: BaseException) -> bool:
    """Whether a library written in Rust gave up; Python takes that for no Exception."""
    return type(error).__name__ == "PanicException"


@contextmanager
def given_up_without_memory() -> Iterator[None]:
    """What is done within is left undone, if memory does not suffice."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise


def installing(extra: str) -> str:
    """The command that installs an extra: from the code of regard, since no package index has it."""
    code = Path(__file__).parent.parent
    if (code / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{code}[{extra}]')}"
    return f"pip install '.[{extra}]' in the folder of its code"


SHOWN = 80  # letters of a value in a message


def shown(value: object) -> str:
    """A value as it was given, as far as a message has room for it."""
    try:
        found = repr(value)
    except (ValueError, RecursionError):  # Python writes no number of more than 4,300 digits, and nothing nested as deep as its stack
        return "a number of thousands of digits" if isinstance(value, int) else f"a {type(value).__name__} that can't be shown"
    return found if len(found) <= SHOWN else f"{found[:SHOWN]}… ({len(found):,} letters)"


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say of an unknown name: the closest known one, or the list of all."""
    known = sorted(known)
    close = difflib.get_close_matches(name[:SHOWN], known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"known: {', '.join(known[:30])}{' …' if len(known) > 30 else ''}"
