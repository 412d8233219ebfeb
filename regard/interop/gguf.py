"""Turns a GGUF file of a Llama-type model, as llama.cpp keeps them, into a bundle: weights, tokenizer and chat template.

Quantised weights become plain numbers again. Everything else (shapes, the vocabulary, who ends a turn) is in the file's metadata.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.bundle import TOKENIZER, default_card, fill, outline, save_bundle
from regard.config import LanguageModelConfig, RotaryScaling, parse_model
from regard.errors import ConversionError, nearest
from regard.interop.gguf_file import Stored, read_file
from regard.interop.parts import Part, linear, reading
from regard.interop.vocabularies import SPLITTINGS, Kind, Pieces, over_bytes, sentencepiece
from regard.models import Network
from regard.nn.positions import frequencies, slowed
from regard.storage import Precision
from regard.text.foreign import ForeignTokenizer, Roles

ARCHITECTURES = ("llama", "qwen2")
# What llama.cpp takes for the end of a turn or of a text by its name, where a file does not say so.
ENDS = ("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<EOT>", "</s>")
SETTINGS = ("rope_freqs.weight",)  # tensors that say how, not what


@dataclass(frozen=True)
class Gguf:
    """What a file holds: its metadata, and its tensors as they are stored."""

    path: Path
    metadata: dict[str, Any]
    stored: dict[str, Stored]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def setting(self, key: str, default: Any = None) -> Any:
        """A value of the model's shape; without a default it must be there."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ConversionError(f"{self.path} lacks {self.architecture}.{key} in its metadata; is it complete?")
        return value

    def word(self, key: str, default: Any = None) -> Any:
        """A value of the tokenizer."""
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def tensor(self, name: str) -> Tensor:
        """As plain numbers in float32."""
        from gguf.quants import dequantize

        stored = self.stored.get(name)
        if stored is None:
            raise ConversionError(f"{self.path}: the weights lack '{name}'; is the file complete?")
        try:
            return torch.from_numpy(np.array(dequantize(stored.data, stored.kind), dtype=np.float32))
        except NotImplementedError as error:
            raise ConversionError(
                f"{self.path}: '{name}' is stored as {stored.kind.name}, which can't be turned back into plain numbers; "
                "take a file in another quantisation"
            ) from error


def import_gguf(file: str | Path, out: str | Path, precision: Precision | None = None) -> Path:
    """Reads a GGUF file and writes the bundle."""
    gguf = read_gguf(Path(file))
    tokenizer, network = read_tokenizer(gguf), to_network(gguf)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TOKENIZER
        tokenizer.save(path)
        return save_bundle(network, out, tokenizer=path, card=_card(gguf, network), precision=precision)


def read_gguf(path: Path) -> Gguf:
    """The file, opened and looked through; tensors stay on disk until they are asked for."""
    metadata, stored = read_file(path)
    gguf = Gguf(path, metadata, stored)
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise ConversionError(f"{path} is one of {parts} parts of a model; join them first, with llama-gguf-split --merge")
    if gguf.architecture not in ARCHITECTURES:
        raise ConversionError(
            f"{path}: a GGUF file of architecture {gguf.architecture!r} can't be imported; known: {', '.join(ARCHITECTURES)}"
        )
    return gguf


def to_network(gguf: Gguf, backend: str = "sdpa") -> Network:
    """Our model with the file's weights."""
    with reading(gguf.path):
        config = parse_model(_settings(gguf))
        network = outline(config, backend)
        assert isinstance(config, LanguageModelConfig)
        fill(network, _tensors(gguf, config), gguf.path)
    return network.eval()


def _settings(gguf: Gguf) -> dict[str, Any]:
    heads, width = int(gguf.setting("attention.head_count")), int(gguf.setting("embedding_length"))
    head_width = int(gguf.setting("attention.key_length", width // max(1, heads)))
    _only(gguf, "rope.dimension_count", head_width)
    _only(gguf, "attention.value_length", head_width)
    _only(gguf, "expert_count", 0)
    _only(gguf, "attention.clamp_kqv", 0.0)
    context = int(gguf.setting("context_length"))
    window = int(gguf.setting("attention.sliding_window", 0))
    vocabulary = int(gguf.stored["token_embd.weight"].shape[1]) if "token_embd.weight" in gguf.stored else 0
    return {
        "kind": "lm",
        "vocabulary": vocabulary or int(gguf.setting("vocab_size")),
        "layers": gguf.setting("block_count"),
        "width": width,
        "heads": heads,
        "kv_heads": gguf.setting("attention.head_count_kv", heads),
        "head_width": head_width,
        "feedforward": gguf.setting("feed_forward_length"),
        "activation": "swiglu",
        "bias": _bias(gguf),
        "norm": "rms",
        "norm_place": "before",
        "norm_epsilon": gguf.setting("attention.layer_norm_rms_epsilon"),
        "positions": "rotary",
        "position_layout": "halves",
        "context": context,
        "rotary_base": gguf.setting("rope.freq_base", 10000.0),
        "rotary_scaling": _scaling(gguf, head_width),
        "window": window if 0 < window < context else None,
        "embedding_scale": False,
        "tied": "output.weight" not in gguf.stored,
        "dropout": 0.0,
        "init": "normal",
        **_tokens(gguf),
    }


def _only(gguf: Gguf, key: str, allowed: Any) -> None:
    if gguf.setting(key, allowed) != allowed:
        raise ConversionError(
            f"{gguf.path}: {gguf.architecture}.{key} = {gguf.setting(key)!r} is a variant that is not known here; it must be {allowed!r}"
        )


def _bias(gguf: Gguf) -> str:
    if "blk.0.attn_output.bias" in gguf.stored:
        return "all"
    return "qkv" if "blk.0.attn_q.bias" in gguf.stored else "none"


def _scaling(gguf: Gguf, head_width: int) -> dict[str, Any] | None:
    """How rotary frequencies are slowed: all by one factor, or each by its own, as in Llama 3.1."""
    if "rope_freqs.weight" in gguf.stored:
        return _each_slowed(gguf, head_width)
    kind = gguf.setting("rope.scaling.type", "none")
    factor = float(gguf.setting("rope.scaling.factor", gguf.setting("rope.scale_linear", 1.0)))
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"kind": "linear", "factor": factor}
    raise ConversionError(f"{gguf.path}: rotary frequencies are scaled by {kind!r}, which is not known here; known: none, linear")


def _each_slowed(gguf: Gguf, head_width: int) -> dict[str, Any]:
    """The file has what each frequency is divided by; a config has the rule that gives it."""
    divisors = gguf.tensor("rope_freqs.weight")
    scaling = RotaryScaling(kind="llama3", factor=max(1.0, float(divisors.max())))
    speed = frequencies(head_width, float(gguf.setting("rope.freq_base", 10000.0)), divisors.device, torch.float32)
    if divisors.shape != speed.shape or not torch.allclose(speed / divisors, slowed(speed, scaling), rtol=1e-4, atol=0.0):
        raise ConversionError(
            f"{gguf.path}: 'rope_freqs.weight' slows rotary frequencies in a way that is not Llama 3.1's; take another file"
        )
    return scaling.model_dump()


def _tokens(gguf: Gguf) -> dict[str, Any]:
    """The start, the padding, and all that may end a text or a turn."""
    end = gguf.word("eos_token_id", 2)
    texts, kinds = gguf.word("tokens", []), gguf.word("token_type", [])
    named = [id for id, (text, kind) in enumerate(zip(texts, kinds, strict=False)) if kind == Kind.CONTROL and text in ENDS]
    given = [gguf.word(key) for key in ("eot_token_id", "eom_token_id")]
    stops = sorted({*named, *(id for id in given if id is not None)} - {end})
    return {
        "pad_token": gguf.word("padding_token_id", end),
        "start_token": gguf.word("bos_token_id", end),
        "end_token": end,
        "stop_tokens": stops,
    }


def _tensors(gguf: Gguf, config: LanguageModelConfig) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    left = set(gguf.stored) - set(SETTINGS)
    for part in _parts(config):
        found[part.ours] = part.convert([_turned(gguf, name, config) for name in part.theirs])
        left -= set(part.theirs)
    if left:
        name = min(left)
        raise ConversionError(
            f"{gguf.path}: the weights have '{name}' ({len(left)} such), which has no place in our model; its variant is not known"
        )
    return found


def _turned(gguf: Gguf, name: str, config: LanguageModelConfig) -> Tensor:
    """A tensor as our layout of rotary positions wants it.

    For Llama, llama.cpp puts the two numbers that are turned together side by side; ours, as Hugging Face's, has the first numbers of all
    pairs in one half of a head and the second in the other.
    """
    tensor = gguf.tensor(name)
    if gguf.architecture != "llama" or not re.search(r"\.attn_[qk]\.", name):
        return tensor
    heads = config.heads if ".attn_q." in name else config.kv_heads or config.heads
    return from_pairs(tensor, heads)


def from_pairs(rows: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys (heads × width, …) from pairs that stand side by side to pairs that stand in two halves."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)


def _parts(config: LanguageModelConfig) -> Iterator[Part]:
    every = config.bias == "all"
    yield Part("embed.weight", ("token_embd.weight",))
    for i in range(config.layers):
        ours, theirs = f"decoder.layers.{i}", f"blk.{i}"
        yield from linear(f"{ours}.attention.project", *(f"{theirs}.attn_{part}" for part in "qkv"), bias=config.bias != "none")
        yield from linear(f"{ours}.attention.join", f"{theirs}.attn_output", bias=every)
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.attn_norm", bias=False)
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.ffn_gate", f"{theirs}.ffn_up", bias=every)
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.ffn_down", bias=every)
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.ffn_norm", bias=False)
    yield from linear("decoder.norm", "output_norm", bias=False)
    if not config.tied:
        yield Part("deembed.weight", ("output.weight",))


def read_tokenizer(gguf: Gguf) -> ForeignTokenizer:
    """The tokenizer that the metadata describes, and the chat template with it."""
    kind, texts = gguf.word("model"), gguf.word("tokens")
    if not texts:
        raise ConversionError(f"{gguf.path} has no vocabulary in its metadata; take a file with its tokenizer")
    with reading(gguf.path):
        roles = _tokens(gguf)
        pieces = Pieces(texts, gguf.word("token_type", ()), gguf.word("scores", ()), gguf.word("merges", ()))
        if kind == "gpt2":
            name = str(gguf.word("pre", "default"))
            starts = gguf.word("add_bos_token", name in SPLITTINGS and SPLITTINGS[name].starts)
            first = roles["start_token"] if starts else None
            library = over_bytes(pieces, name, space_first=gguf.word("add_space_prefix", False), start=first)
        elif kind == "llama":
            first = roles["start_token"] if gguf.word("add_bos_token", True) else None
            library = sentencepiece(pieces, space_first=gguf.word("add_space_prefix", True), start=first)
        else:
            raise ConversionError(f"a tokenizer of kind {kind!r} can't be imported; {nearest(str(kind), ('gpt2', 'llama'))}")
        chat = gguf.metadata.get("tokenizer.chat_template")
        return ForeignTokenizer(library, Roles(roles["pad_token"], roles["start_token"], roles["end_token"], chat=chat))


def _card(gguf: Gguf, network: Network) -> str:
    name = gguf.metadata.get("general.name", gguf.path.stem)
    stored = sorted({tensor.kind.name for tensor in gguf.stored.values()})
    lines = [
        f"# {name}",
        "",
        f"{default_card(network).splitlines()[-1]} Imported from `{gguf.path.name}`, a GGUF file whose weights are {', '.join(stored)}.",
    ]
    for key, what in (("license", "Licence"), ("organization", "Made by")):
        if value := gguf.metadata.get(f"general.{key}"):
            lines += ["", f"{what}: {value}."]
    return "\n".join(lines) + "\n"
