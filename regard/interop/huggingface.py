"""Turns a local Hugging Face folder into a bundle that takes raw text, without the transformers library.

Each architecture says what its config means in ours and where each of our tensors comes from. Tensors that we keep as one (Q, K and V;
a gate and its content) are joined on the way. The tokenizer comes along, and of a sentence encoder how it makes one vector of many.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import SOURCE_TOKENIZER, TOKENIZER, default_card, fill, outline, save_bundle
from regard.config import ModelConfig, parse_model
from regard.errors import ConversionError, nearest
from regard.interop.architectures import ARCHITECTURES, Architecture
from regard.interop.folder_tokenizer import read_tokenizers
from regard.interop.parts import reading
from regard.interop.sentences import Sentences
from regard.models import Network
from regard.storage import read_json, read_tensors


def import_folder(folder: str | Path, out: str | Path) -> Path:
    """Reads a Hugging Face folder and writes the bundle, with its tokenizer where the folder has one."""
    sentences = Sentences.read(Path(folder))
    model = load_folder(folder)
    kind = str(read_json(sentences.inner / "config.json")["model_type"])
    found = read_tokenizers(sentences.inner, kind, model.config)
    with tempfile.TemporaryDirectory() as place:
        paths: list[Path | None] = [None, None]
        for number, (name, tokenizer) in enumerate(zip((TOKENIZER, SOURCE_TOKENIZER), found or (), strict=False)):
            if tokenizer is not None:
                paths[number] = Path(place) / name
                sentences.lowered(tokenizer).save(Path(place) / name)
        card = f"{default_card(model)}\nImported from a Hugging Face folder ({kind}).\n"
        return save_bundle(model, out, tokenizer=paths[0], source_tokenizer=paths[1], card=card)


def load_folder(folder: str | Path, backend: str = "sdpa") -> Network:
    """Our model with a Hugging Face folder's weights."""
    sentences = Sentences.read(Path(folder))
    folder = sentences.inner
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is no folder"
        raise ConversionError(f"{folder} {what}; give the folder that save_pretrained() wrote")
    theirs = read_json(folder / "config.json")
    kind = theirs.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        if "kind" in theirs:
            raise ConversionError(f"{folder} is a regard bundle already; there is nothing to import")
        raise ConversionError(f"{folder / 'config.json'}: model_type {kind!r} can't be imported; {nearest(str(kind), ARCHITECTURES)}")
    architecture = ARCHITECTURES[kind]
    with reading(folder):
        classes = theirs.get("architectures") or []
        if classes and not set(map(str, classes)) & set(architecture.classes):
            raise ConversionError(f"{folder / 'config.json'}: a {classes[0]} can't be imported; known: {', '.join(architecture.classes)}")
        tensors = _bare(read_tensors(folder), architecture)
        config = _config(architecture, theirs, set(tensors), sentences)
        model = outline(config, backend)
        fill(model, _convert(architecture, config, tensors, folder), folder)
    return model.eval()


def _bare(tensors: dict[str, Tensor], architecture: Architecture) -> dict[str, Tensor]:
    """Names as the bare model has them, in their present spelling."""

    def name(old: str) -> str:
        new = old.removeprefix(architecture.prefix)
        return new.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

    bare = {name(old): tensor for old, tensor in tensors.items() if not old.endswith(architecture.ignored)}
    embedding, output = bare.get(architecture.embedding), bare.get(architecture.output)
    if embedding is not None and output is not None and torch.equal(embedding, output):
        del bare[architecture.output]
    return bare


def _config(architecture: Architecture, theirs: dict[str, Any], names: set[str], sentences: Sentences) -> ModelConfig:
    file = sentences.inner / "config.json"
    with reading(file):
        try:
            return parse_model(architecture.config(theirs, names) | sentences.settings)
        except KeyError as error:
            raise ConversionError(f"{file} lacks {error}; is it complete?") from error


def _convert(architecture: Architecture, config: ModelConfig, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    left = dict(tensors)
    ours: dict[str, Tensor] = {}
    for part in architecture.parts(config.model_dump()):
        missing = [name for name in part.theirs if name not in left]
        if missing:
            raise ConversionError(f"{folder}: the weights lack '{missing[0]}'; is the folder complete?")
        pieces = [left.pop(name) for name in part.theirs]
        ours[part.ours] = part.convert(pieces)
    if left:
        names = sorted(left)
        raise ConversionError(
            f"{folder}: the weights have '{names[0]}' ({len(names)} such), which has no place in our model; its variant is not known"
        )
    return ours
