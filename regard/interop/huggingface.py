"""Turns a local Hugging Face folder (BERT, GPT-2, T5, Marian, Llama) into a bundle, without the transformers library.

Each architecture says what its config means in ours and where each of our tensors comes from. Tensors that we keep as one (Q, K and V;
a gate and its content) are joined on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.bundle import TOKENIZER, fill, save_bundle
from regard.config import ModelConfig, parse_model
from regard.errors import BundleError, ConversionError, RegardError, nearest
from regard.interop import architectures
from regard.interop.architectures import Part
from regard.models import Network, build
from regard.storage import read_json, read_tensors


@dataclass(frozen=True)
class Architecture:
    """How one family of theirs reads in ours."""

    config: Callable[[dict[str, Any], set[str]], dict[str, Any]]  # their config and tensor names to our settings
    parts: Callable[[dict[str, Any]], Iterator[Part]]  # our settings to where each tensor comes from
    classes: tuple[str, ...]  # of theirs, that we have a counterpart for
    embedding: str
    output: str = "lm_head.weight"  # a copy of the embedding where they are tied, often left out of the file
    prefix: str = ""  # what a model with a head puts before the names of the bare one
    ignored: tuple[str, ...] = ()  # ends of the names of tensors that hold nothing of their own


ARCHITECTURES = {
    "bert": Architecture(
        architectures.bert_config,
        architectures.bert_parts,
        ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification"),
        prefix="bert.",
        embedding="embeddings.word_embeddings.weight",
        output="cls.predictions.decoder.weight",
        ignored=("position_ids", "predictions.decoder.bias", "seq_relationship.weight", "seq_relationship.bias"),
    ),
    "gpt2": Architecture(
        architectures.gpt2_config,
        architectures.gpt2_parts,
        ("GPT2Model", "GPT2LMHeadModel"),
        prefix="transformer.",
        embedding="wte.weight",
        ignored=(".attn.bias", ".attn.masked_bias"),
    ),
    "t5": Architecture(
        architectures.t5_config,
        architectures.t5_parts,
        ("T5Model", "T5ForConditionalGeneration", "T5WithLMHeadModel"),
        embedding="shared.weight",
        ignored=("coder.embed_tokens.weight",),
    ),
    "marian": Architecture(
        architectures.marian_config,
        architectures.marian_parts,
        ("MarianModel", "MarianMTModel"),
        prefix="model.",
        embedding="shared.weight",
        ignored=("embed_positions.weight", "coder.embed_tokens.weight"),
    ),
    "llama": Architecture(
        architectures.llama_config,
        architectures.llama_parts,
        ("LlamaForCausalLM",),
        prefix="model.",
        embedding="embed_tokens.weight",
        ignored=("rotary_emb.inv_freq",),
    ),
}


def import_folder(folder: str | Path, out: str | Path) -> Path:
    """Reads a Hugging Face folder and writes the bundle; the tokenizer comes along where it is a tokenizer.json."""
    folder = Path(folder)
    model = load_folder(folder)
    tokenizer = folder / TOKENIZER
    return save_bundle(model, out, tokenizer=tokenizer if tokenizer.is_file() else None)


def load_folder(folder: str | Path, backend: str = "sdpa") -> Network:
    """Our model with a Hugging Face folder's weights."""
    folder = Path(folder)
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
    classes = theirs.get("architectures") or []
    if classes and not set(map(str, classes)) & set(architecture.classes):
        raise ConversionError(f"{folder / 'config.json'}: a {classes[0]} can't be imported; known: {', '.join(architecture.classes)}")
    try:
        tensors = _bare(read_tensors(folder), architecture)
        config = _config(architecture, theirs, set(tensors), folder)
        with torch.device("meta"):
            model = build(config, backend)
        fill(model, _convert(architecture, config, tensors, folder), folder)
    except BundleError as error:
        raise ConversionError(str(error)) from error
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


def _config(architecture: Architecture, theirs: dict[str, Any], names: set[str], folder: Path) -> ModelConfig:
    try:
        return parse_model(architecture.config(theirs, names))
    except KeyError as error:
        raise ConversionError(f"{folder / 'config.json'} lacks {error}; is it complete?") from error
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise ConversionError(
            f"{folder / 'config.json'} has a value of the wrong kind: {error}; copy it again from where it came"
        ) from error
    except RegardError as error:
        raise ConversionError(f"{folder / 'config.json'}: {error}") from error


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
