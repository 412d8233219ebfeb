"""What a description of a foreign architecture is made of: where each of our tensors comes from, and what their settings mean in ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConversionError, RegardError, out_of_memory, panicked

Config = dict[str, Any]

# What Python, PyTorch and the libraries raise over a value that is not as it should be.
WRONG = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError)
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


@contextmanager
def reading(where: Path) -> Iterator[None]:
    """A file from elsewhere may say anything: what is not as it should be ends with an error that names the file."""
    try:
        yield
    except RegardError as error:
        raise ConversionError(str(error) if str(where) in str(error) else f"{where}: {error}") from error
    except OSError as error:  # also where a name in the file is none that a file can have
        raise ConversionError(
            f"{where}: can't read {error.filename}: {error.strerror}; copy the folder again from where it came"
        ) from error
    except BaseException as error:
        # The tokenizers library has nothing narrower than an Exception, or a panic.
        if not (type(error) is Exception or isinstance(error, WRONG) or panicked(error)) or out_of_memory(error):
            raise
        raise ConversionError(f"{where} has a value of the wrong kind: {error}; copy it again from where it came") from error


@dataclass(frozen=True)
class Part:
    """One of our tensors and those of theirs that it is made of, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False  # theirs is (inputs, outputs)
    flat: bool = False  # theirs has needless dimensions
    skip: int = 0  # so many rows of theirs stand for nothing

    def convert(self, pieces: list[Tensor]) -> Tensor:
        if self.skip:
            pieces = [piece[self.skip :] for piece in pieces]
        if self.transposed:
            pieces = [piece.T for piece in pieces]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return (whole.flatten() if self.flat else whole).contiguous()


@dataclass(frozen=True)
class Architecture:
    """How one family of theirs reads in ours."""

    config: Callable[[Config, set[str]], Config]  # their config and tensor names to our settings
    parts: Callable[[Config], Iterator[Part]]  # our settings to where each tensor comes from
    classes: tuple[str, ...]  # of theirs, that we have a counterpart for
    embedding: str
    output: str = "lm_head.weight"  # a copy of the embedding where they are tied, often left out of the file
    prefix: str = ""  # what a model with a head puts before the names of the bare one
    ignored: tuple[str, ...] = ()  # ends of the names of tensors that hold nothing of their own


def linear(ours: str, *theirs: str, bias: bool = True, transposed: bool = False) -> Iterator[Part]:
    """The weight and bias of a linear map or norm."""
    yield Part(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed)
    if bias:
        yield Part(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))


def activation(name: str, *, gated: bool = False) -> str:
    if name not in ACTIVATIONS:
        raise ConversionError(f"activation {name!r} is not known here; known: {', '.join(ACTIVATIONS)}")
    ours = ACTIVATIONS[name]
    if not gated:
        return ours
    by_gate = {"silu": "swiglu", "gelu": "geglu", "gelu-tanh": "geglu-tanh"}
    if ours not in by_gate:
        raise ConversionError(f"a feed-forward gated by {name!r} is not known here; known: {', '.join(by_gate)}")
    return by_gate[ours]


def tokens(theirs: Config, *, pad: Any = None, start: Any = None, end: Any = None) -> Config:
    """The special tokens a config names, with defaults for what it leaves out."""

    def choose(key: str, default: Any) -> int:
        value = default if theirs.get(key) is None else theirs[key]
        value = value[0] if isinstance(value, list) else value
        return value if value is not None and 0 <= value < theirs["vocab_size"] else 0

    start_token = start if theirs.get("is_encoder_decoder") else choose("bos_token_id", start)
    ends = theirs.get("eos_token_id")
    return {
        "pad_token": choose("pad_token_id", pad),
        "start_token": start_token or 0,
        "end_token": choose("eos_token_id", end),
        "stop_tokens": tuple(ends[1:]) if isinstance(ends, list) else (),
    }


def chosen_labels(theirs: Config) -> list[str]:
    """What a classification head chooses between, in the order of its outputs."""
    labels = theirs.get("id2label") or {}
    return [labels[key] for key in sorted(labels, key=int)]


def only(theirs: Config, key: str, *allowed: Any) -> None:
    if theirs.get(key) not in allowed:
        raise ConversionError(f"{key} = {theirs.get(key)!r} is a variant that is not known here; it must be {allowed[0]!r}")
