"""A model on disk: config, weights, tokenizer and card in one folder that can't be mismatched."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import ModelConfig, parse_model, to_json
from regard.errors import BundleError, nearest
from regard.models import Model, build
from regard.presets import PRESETS, preset
from regard.storage import SHARD_BYTES, read_json, read_tensors, replacing, write_tensors

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
CARD = "README.md"


@dataclass(frozen=True)
class Bundle:
    """A model and what belongs to it, as loaded from its folder."""

    folder: Path
    model: Model
    tokenizer: Path | None  # tokenizer.json, where the bundle has one

    @property
    def config(self) -> ModelConfig:
        return self.model.config


def save_bundle(
    model: Model, folder: str | Path, *, tokenizer: Path | None = None, card: str | None = None, shard_bytes: int = SHARD_BYTES
) -> Path:
    """Writes a bundle. A bundle that stands there already is replaced in one step; any other folder with files in it is left alone."""
    folder = Path(folder)
    if folder.exists() and not is_bundle(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise BundleError(f"{folder} exists and is no bundle; choose a new or empty folder")
    with replacing(folder) as new:
        (new / CONFIG).write_text(to_json(model.config), encoding="utf-8")
        write_tensors(new, model.state_dict(), shard_bytes)
        if tokenizer is not None:
            shutil.copyfile(tokenizer, new / TOKENIZER)
        (new / CARD).write_text(card or default_card(model), encoding="utf-8")
    return folder


def load_bundle(
    folder: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, backend: str = "sdpa"
) -> Bundle:
    """Reads a bundle. The model comes back ready to use (dropout off); call `model.train()` to train it on."""
    folder = Path(folder)
    config = read_config(folder)
    tensors = read_tensors(folder)
    with torch.device("meta"):  # no weights are made that would be thrown away
        model = build(config, backend)
    fill(model, tensors, folder)
    tokenizer = folder / TOKENIZER
    return Bundle(folder, model.to(device=device, dtype=dtype).eval(), tokenizer if tokenizer.is_file() else None)


def read_config(folder: Path) -> ModelConfig:
    """A bundle's config, without its weights."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is no folder; give the folder of a bundle")
    if not (folder / CONFIG).is_file():
        raise BundleError(f"{folder} is no bundle: it has no {CONFIG}")
    settings = read_json(folder / CONFIG)
    if "kind" not in settings and ("model_type" in settings or "architectures" in settings):
        raise BundleError(f"{folder} is a Hugging Face model, not a bundle; make one of it with: regard import {folder} OUT")
    return parse_model(settings, where=str(folder / CONFIG))


def find_config(name: str) -> ModelConfig:
    """The config of a preset or of a bundle's folder."""
    if name in PRESETS:
        return preset(name)
    if Path(name).exists():
        return read_config(Path(name))
    raise BundleError(f"{name!r} is neither a preset nor a folder; {nearest(name, PRESETS)}")


def is_bundle(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and "kind" in _settings_or_nothing(folder / CONFIG)


def fill(model: Model, tensors: Mapping[str, Tensor], where: Path | str) -> None:
    """Gives a model its weights; each must be there, in its shape, and none more."""
    wanted = model.state_dict()
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing:
        raise BundleError(f"{where}: the weights lack '{missing[0]}'{_more(missing)}; they belong to another config")
    if extra:
        raise BundleError(f"{where}: the weights have '{extra[0]}'{_more(extra)}, which the config knows nothing of")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise BundleError(f"{where}: '{name}' is {tuple(tensor.shape)} in the weights but {tuple(wanted[name].shape)} by the config")
    model.load_state_dict(dict(tensors), assign=True)


def default_card(model: Model) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    config = model.config
    return f"# A regard bundle\n\nA model of kind `{config.kind}` with {count:,} parameters and a vocabulary of {config.vocabulary:,}.\n"


def _settings_or_nothing(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except BundleError:
        return {}


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
