"""Sentence encoders: what a folder of the sentence-transformers library says beside the Hugging Face model in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import ConversionError
from regard.interop.parts import reading
from regard.storage import read_json
from regard.text.foreign import ForeignTokenizer
from regard.text.library import open_library

MODULES = "modules.json"
POOLINGS = {"cls": "first", "mean": "mean"}


@dataclass(frozen=True)
class Sentences:
    """How one vector is made of a text's many; nothing of the kind for a folder that is no sentence encoder."""

    inner: Path  # the folder of the model itself
    settings: dict[str, Any] = field(default_factory=dict)  # of our config
    lowercase: bool = False  # texts are put into lower case before they are read

    @classmethod
    def read(cls, folder: Path) -> Sentences:
        if not (folder / MODULES).is_file():
            return cls(folder)
        with reading(folder):
            modules = _modules(folder)
            kinds = [kind for kind, _ in modules]
            if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
                strange = next((kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")), ", ".join(kinds))
                raise ConversionError(
                    f"{folder / MODULES}: {strange} has no counterpart here; sentence encoders of a Transformer, Pooling and perhaps "
                    "Normalize can be imported"
                )
            inner = folder / modules[0][1]
            said = read_json(inner / "sentence_bert_config.json") if (inner / "sentence_bert_config.json").is_file() else {}
            settings: dict[str, Any] = {"pooling": _pooling(folder / modules[1][1] / "config.json"), "normalised": "Normalize" in kinds}
            if said.get("max_seq_length"):
                settings["longest_text"] = said["max_seq_length"]
            return cls(inner, settings, bool(said.get("do_lower_case")))

    def lowered(self, tokenizer: ForeignTokenizer) -> ForeignTokenizer:
        """The tokenizer, reading in lower case where the folder asks for it."""
        if not self.lowercase:
            return tokenizer
        content = json.loads(tokenizer.library_json())
        steps = [{"type": "Lowercase"}, *([content["normalizer"]] if content["normalizer"] else [])]
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        return ForeignTokenizer(open_library(json.dumps(content, ensure_ascii=False)), tokenizer.roles)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each part, in their order."""
    try:
        listed = json.loads((folder / MODULES).read_text(encoding="utf-8"))
        return [(str(part["type"]).rpartition(".")[2], str(part["path"])) for part in sorted(listed, key=lambda part: part["idx"])]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConversionError(f"{folder / MODULES} should be a list of parts with idx, path and type; copy it again") from error


def _pooling(path: Path) -> str:
    said = read_json(path)
    modes = [key for key, value in said.items() if key.startswith("pooling_mode_") and value is True]
    names = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    chosen = [str(said["pooling_mode"])] if "pooling_mode" in said else [names.get(mode, mode) for mode in modes]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise ConversionError(
            f"{path}: pooling by {', '.join(chosen) or 'nothing'} is not known here; known: the first token's vector, the mean"
        )
    return POOLINGS[chosen[0]]
