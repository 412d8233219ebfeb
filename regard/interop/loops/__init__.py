"""Small programs that go with an export and run it: they need neither regard nor PyTorch.

Each is copied as it stands here, under the name of what it does, beside the tokenizer and a regard.json that says which tokens do what.
"""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

from regard.bundle import SOURCE_TOKENIZER, TOKENIZER
from regard.config import EncoderConfig, LanguageModelConfig, Seq2SeqConfig, Transformer
from regard.interop.original import Original

SETTINGS = "regard.json"
DOES = {"seq2seq": "translate", "lm": "generate", "encoder": "read"}


def write(original: Original, out: Path, library: str) -> None:
    """The program for this kind of model, what it needs to know, and the tokenizers."""
    does = DOES[original.config.kind]
    shutil.copyfile(Path(__file__).parent / f"{library}_{does}.py", out / f"{does}.py")
    (out / SETTINGS).write_text(json.dumps(settings(original), indent=1) + "\n", encoding="utf-8")
    if original.tokenizer is not None:
        (out / TOKENIZER).write_text(original.tokenizer.library_json(), encoding="utf-8")
    if original.source_tokenizer is not None and original.source_tokenizer is not original.tokenizer:
        (out / SOURCE_TOKENIZER).write_text(original.source_tokenizer.library_json(), encoding="utf-8")


def program(library: str, kind: str) -> Any:
    """The same program, here."""
    return importlib.import_module(f"{__name__}.{library}_{DOES[kind]}")


def settings(original: Original) -> dict[str, Any]:
    config = original.config
    assert isinstance(config, Transformer)
    tokenizer, source = original.tokenizer, original.source_tokenizer
    frame = original.frame if source is None or source.frame is None else source.frame
    known: dict[str, Any] = {
        "kind": config.kind,
        "before": frame.before,  # what goes before and after a text that is read
        "after": frame.after,
        "pad": config.pad_token,
        "start": config.start_token,
        "end": [config.end_token, *config.stop_tokens],
        "opening": original.opening,  # what every output begins with
        "never": original.never,  # what is never written
        "context": original.room,
        "tags": {tag: source.tag_id(tag) for tag in source.tags} if source is not None else {},
        "markup": tokenizer is not None and tokenizer.frame is not None,  # names of special tokens in a text are those tokens
    }
    if isinstance(config, Seq2SeqConfig | LanguageModelConfig):
        layers = getattr(config, "decoder_layers", None) or config.layers
        known["cache"] = [layers, config.kv_heads or config.heads, config.key_width]
    if isinstance(config, LanguageModelConfig):
        known["prefix"] = config.mask == "prefix"
    if isinstance(config, EncoderConfig):
        mask = None if tokenizer is None else getattr(getattr(tokenizer, "roles", None), "mask", None)
        if tokenizer is not None and tokenizer.frame is None:
            mask = tokenizer.mask_id
        known |= {"labels": config.labels, "masked_words": config.masked_words, "mask": mask}
    return known
