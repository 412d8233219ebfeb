"""Where training stood, on disk: whole or not at all, with checksums, and without pickle.

step-N/  model.safetensors (weights) · state.safetensors and state.json (all else) · SHA256SUMS
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.errors import BundleError, TrainingError, out_of_memory
from regard.storage import damage, read_json, read_tensors, replacing, write_sums, write_tensors

STATE = "state.json"
STATE_TENSORS = "state.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """One step's checkpoint; weights and state are read when they are asked for."""

    step: int
    folder: Path
    score: float | None = None
    passing: bool = False  # taken because training was stopped, not because it was time

    def weights(self) -> dict[str, Tensor]:
        return read_tensors(self.folder)

    def state(self) -> dict[str, Any]:
        path = self.folder / STATE_TENSORS
        try:
            # Copies, because kernels round differently where a tensor is not aligned, and tensors in a file are not.
            tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
        except (SafetensorError, OSError) as error:
            raise TrainingError(f"can't read {path}: {error}; resume from an earlier checkpoint") from error
        with self.understood():
            return dict(_unpacked(read_json(self.folder / STATE)["state"], tensors))

    @contextmanager
    def understood(self) -> Iterator[None]:
        """For whoever takes the state apart: an error in words, where it is whole and yet not what a training of ours has written."""
        try:
            yield
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            if out_of_memory(error):
                raise
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise TrainingError(
                f"{self.folder} is whole, but no checkpoint of this training ({reason}); move it away and resume from another"
            ) from error

    def damage(self) -> str | None:
        """Which file is not as it was written, and in what way; None: all are."""
        return damage(self.folder)


class Checkpoints:
    """The checkpoints of a run: the last `keep`, and besides them those with the best scores. One process writes them."""

    def __init__(self, folder: Path, keep: int, keep_best: int = 1) -> None:
        self.folder, self.keep, self.keep_best = folder, keep, keep_best

    def save(
        self, step: int, weights: Mapping[str, Tensor], state: dict[str, Any], *, score: float | None = None, passing: bool = False
    ) -> Path:
        """Writes the checkpoint of a step and then removes those that are no longer kept. A higher score is better.

        One in passing is kept only until the next: a run that was stopped and resumed has the same others as one that was not.
        The state may hold dicts (with keys of text or numbers), lists and tuples of tensors, numbers, text, True, False and None.
        """
        tensors: dict[str, Tensor] = {}
        packed = _packed({"step": step, "score": score, "passing": passing, "state": state}, tensors, "")
        self._tidy()
        path = self.folder / f"step-{step}"
        with replacing(path) as new:
            write_tensors(new, _apart(weights))
            save_file(_apart(tensors), new / STATE_TENSORS)
            (new / STATE).write_text(json.dumps(packed, allow_nan=False), encoding="utf-8")
            write_sums(new)
        self._prune(step)
        return path

    def all(self) -> list[Checkpoint]:
        """Every checkpoint, the oldest first, damaged ones too."""
        if not self.folder.is_dir():
            return []
        places = {_step(name): path for name, path in [*self._set_aside(), *((path.name, path) for path in self.folder.glob("step-*/"))]}
        return [Checkpoint(step, path, *_marks(path)) for step, path in sorted(places.items()) if step >= 0]

    def newest(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that is whole. `warn` is told of each damaged one, and of what is used instead."""
        return _first_whole(self.all()[::-1], warn)

    def best(self, warn: Callable[[str], None]) -> Checkpoint | None:
        """The checkpoint with the highest score (of equal ones the first) that is whole; None where none has a score."""
        return _first_whole(_by_score(self.all()), warn)

    def _prune(self, step: int) -> None:
        """Later checkpoints stay: they are another attempt's, or damaged and yet to be replaced, and count for nothing here."""
        present = [checkpoint for checkpoint in self.all() if checkpoint.step <= step]
        regular = [checkpoint for checkpoint in present if not checkpoint.passing]
        kept = {checkpoint.step for checkpoint in [*regular[-self.keep :], *present[-1:], *_by_score(present)[: self.keep_best]]}
        for checkpoint in present:
            if checkpoint.step not in kept:
                # First out of sight, so that a half-removed one is never taken for a checkpoint.
                with suppress(OSError):
                    checkpoint.folder.rename(self.folder / f".{checkpoint.folder.name}.removed")
        self._tidy()

    def _tidy(self) -> None:
        """Removes what interrupted saves and removals left behind. Only who saves may do so: to others, a save under way looks the same."""
        for name, path in self._set_aside():
            with suppress(OSError):
                path.rename(self.folder / name)
        for path in self.folder.glob(".step-*"):
            shutil.rmtree(path, ignore_errors=True)

    def _set_aside(self) -> list[tuple[str, Path]]:
        """Checkpoints, by name, that were moved out of the way for new ones of the same step, which then never came."""
        found = [(path.name.split(".")[1], path) for path in self.folder.glob(".step-*.old/")]
        return [(name, path) for name, path in found if not (self.folder / name).exists()]


def _first_whole(checkpoints: list[Checkpoint], warn: Callable[[str], None]) -> Checkpoint | None:
    damages = []
    found = None
    for checkpoint in checkpoints:
        damage = checkpoint.damage()
        if damage is None:
            found = checkpoint
            break
        damages.append(damage)
    instead = "and no other checkpoint is whole" if found is None else f"{found.folder.name} is used instead"
    for damage in damages:
        warn(f"{damage}; {instead}")
    return found


def _by_score(checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    scored = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None and not math.isnan(checkpoint.score)]
    return sorted(scored, key=lambda checkpoint: (-(checkpoint.score or 0.0), checkpoint.step))


def _step(name: str) -> int:
    """-1: no checkpoint's folder."""
    matched = re.fullmatch(r"step-(\d+)", name)
    return int(matched[1]) if matched else -1


def _marks(folder: Path) -> tuple[float | None, bool]:
    """The score of a checkpoint, and whether it was taken in passing."""
    try:
        record = read_json(folder / STATE)
    except BundleError:
        return None, False
    score = _unpacked(record.get("score"), {})
    return float(score) if isinstance(score, int | float) else None, record.get("passing") is True


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, none sharing memory with another, which safetensors refuses to write."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        place = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return result


def _packed(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """A value as JSON; what JSON has no word for becomes {"$kind": …}, and tensors go into `tensors`."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}{where}"  # the number makes it unique, the place is for people
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise TrainingError(f"a checkpoint's state can't have the key {key!r} at '{where[1:]}'; use text or whole numbers")
        entries = {key: _packed(entry, tensors, f"{where}.{key}") for key, entry in value.items()}
        plain = all(isinstance(key, str) and not key.startswith("$") for key in entries)
        return entries if plain else {"$dict": [[key, entry] for key, entry in entries.items()]}
    if isinstance(value, list | tuple):
        items = [_packed(item, tensors, f"{where}.{index}") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if value is None or type(value) in (bool, int, str):
        return value
    kind = type(value).__name__
    raise TrainingError(f"a checkpoint's state can't hold a value of type {kind} at '{where[1:]}'; make it a tensor, number or text")


def _unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case {"$tensor": name}:
            return tensors[name]
        case {"$dict": entries}:
            return {key: _unpacked(entry, tensors) for key, entry in entries}
        case {"$tuple": items}:
            return tuple(_unpacked(item, tensors) for item in items)
        case {"$float": text}:
            return float(text)
        case dict():
            return {key: _unpacked(entry, tensors) for key, entry in value.items()}
        case list():
            return [_unpacked(item, tensors) for item in value]
    return value
