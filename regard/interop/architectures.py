"""What the configs and tensor names of other libraries' models mean in ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConversionError

Config = dict[str, Any]

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Part:
    """One of our tensors and those of theirs that it is made of, one below the other."""

    ours: str
    theirs: tuple[str, ...]
    transposed: bool = False  # theirs is (inputs, outputs)
    flat: bool = False  # theirs has needless dimensions

    def convert(self, pieces: list[Tensor]) -> Tensor:
        if self.transposed:
            pieces = [piece.T for piece in pieces]
        whole = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        return (whole.flatten() if self.flat else whole).contiguous()


def linear(ours: str, *theirs: str, bias: bool = True, transposed: bool = False) -> Iterator[Part]:
    """The weight and bias of a linear map or norm."""
    yield Part(f"{ours}.weight", tuple(f"{name}.weight" for name in theirs), transposed)
    if bias:
        yield Part(f"{ours}.bias", tuple(f"{name}.bias" for name in theirs))


def bert_config(theirs: Config, names: set[str]) -> Config:
    _only(theirs, "position_embedding_type", "absolute", None)
    _only(theirs, "is_decoder", False, None)
    labels = theirs.get("id2label") or {}
    classifier = "classifier.weight" in names
    return {
        "kind": "encoder",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["num_hidden_layers"],
        "width": theirs["hidden_size"],
        "heads": theirs["num_attention_heads"],
        "feedforward": theirs["intermediate_size"],
        "activation": _activation(theirs["hidden_act"]),
        "norm_epsilon": theirs["layer_norm_eps"],
        "positions": "learned",
        "context": theirs["max_position_embeddings"],
        "embedding_scale": False,
        "embedding_norm": True,
        "token_types": theirs["type_vocab_size"],
        "masked_words": "cls.predictions.bias" in names,
        "pooler": "pooler.dense.weight" in names,
        "pooling": "first",
        "labels": [labels[key] for key in sorted(labels, key=int)] if classifier else [],
        "tied": "cls.predictions.decoder.weight" not in names,
        "dropout": theirs["hidden_dropout_prob"],
        "attention_dropout": theirs["attention_probs_dropout_prob"],
        "init": "normal",
        **_tokens(theirs, start=101, end=102),
    }


def bert_parts(config: Config) -> Iterator[Part]:
    yield Part("embed.weight", ("embeddings.word_embeddings.weight",))
    yield Part("token_types.weight", ("embeddings.token_type_embeddings.weight",))
    yield Part("encoder.positions.weight", ("embeddings.position_embeddings.weight",))
    yield from linear("encoder.embedding_norm", "embeddings.LayerNorm")
    for i in range(config["layers"]):
        ours, theirs = f"encoder.layers.{i}", f"encoder.layer.{i}"
        yield from linear(f"{ours}.attention.project", *(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")))
        yield from linear(f"{ours}.attention.join", f"{theirs}.attention.output.dense")
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.attention.output.LayerNorm")
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.intermediate.dense")
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.output.dense")
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.output.LayerNorm")
    if config["pooler"]:
        yield from linear("pooler", "pooler.dense")
    if config["masked_words"]:
        yield from linear("masked_words.dense", "cls.predictions.transform.dense")
        yield from linear("masked_words.norm", "cls.predictions.transform.LayerNorm")
        yield Part("masked_words.deembed.bias", ("cls.predictions.bias",))
        if not config["tied"]:
            yield Part("masked_words.deembed.weight", ("cls.predictions.decoder.weight",))
    if config["labels"]:
        yield from linear("classifier", "classifier")


def gpt2_config(theirs: Config, names: set[str]) -> Config:
    _only(theirs, "scale_attn_weights", True, None)
    _only(theirs, "scale_attn_by_inverse_layer_idx", False, None)
    _only(theirs, "add_cross_attention", False, None)
    return {
        "kind": "lm",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["n_layer"],
        "width": theirs["n_embd"],
        "heads": theirs["n_head"],
        "feedforward": theirs.get("n_inner") or 4 * theirs["n_embd"],
        "activation": _activation(theirs["activation_function"]),
        "norm_place": "before",
        "norm_epsilon": theirs["layer_norm_epsilon"],
        "positions": "learned",
        "context": theirs["n_positions"],
        "embedding_scale": False,
        "tied": "lm_head.weight" not in names,
        "dropout": theirs["resid_pdrop"],
        "attention_dropout": theirs["attn_pdrop"],
        "init": "normal",
        **_tokens(theirs, pad=theirs.get("eos_token_id"), start=theirs.get("eos_token_id")),
    }


def gpt2_parts(config: Config) -> Iterator[Part]:
    yield Part("embed.weight", ("wte.weight",))
    yield Part("decoder.positions.weight", ("wpe.weight",))
    for i in range(config["layers"]):
        ours, theirs = f"decoder.layers.{i}", f"h.{i}"
        yield from linear(f"{ours}.attention.project", f"{theirs}.attn.c_attn", transposed=True)
        yield from linear(f"{ours}.attention.join", f"{theirs}.attn.c_proj", transposed=True)
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.ln_1")
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.mlp.c_fc", transposed=True)
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.mlp.c_proj", transposed=True)
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.ln_2")
    yield from linear("decoder.norm", "ln_f")
    if not config["tied"]:
        yield Part("deembed.weight", ("lm_head.weight",))


def t5_config(theirs: Config, names: set[str]) -> Config:
    gated, _, plain = theirs["feed_forward_proj"].rpartition("-")
    activation = "geglu-tanh" if (gated, plain) == ("gated", "gelu") else _activation(plain, gated=gated == "gated")
    scaled = theirs.get("scale_decoder_outputs", theirs.get("tie_word_embeddings", True))  # the older spelling says both in one
    return {
        "kind": "seq2seq",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["num_layers"],
        "decoder_layers": theirs.get("num_decoder_layers"),
        "width": theirs["d_model"],
        "heads": theirs["num_heads"],
        "head_width": theirs["d_kv"],
        "attention_scale": 1.0,
        "feedforward": theirs["d_ff"],
        "activation": activation,
        "bias": "none",
        "norm": "rms",
        "norm_place": "before",
        "norm_epsilon": theirs["layer_norm_epsilon"],
        "positions": "relative",
        "relative_buckets": theirs["relative_attention_num_buckets"],
        "relative_distance": theirs.get("relative_attention_max_distance", 128),
        "context": theirs.get("n_positions") or 4096,  # relative positions have no end; this is what we promise
        "embedding_scale": False,
        "tied": "lm_head.weight" not in names,
        "logit_scale": theirs["d_model"] ** -0.5 if scaled else 1.0,
        "dropout": theirs["dropout_rate"],
        "init": "normal",
        **_tokens(theirs, start=theirs.get("pad_token_id", 0)),
    }


def t5_parts(config: Config) -> Iterator[Part]:
    yield Part("embed.weight", ("shared.weight",))
    for side, layers in (("encoder", config["layers"]), ("decoder", config["decoder_layers"] or config["layers"])):
        yield Part(f"{side}.positions.weight", (f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",))
        for i in range(layers):
            ours, theirs = f"{side}.layers.{i}", f"{side}.block.{i}.layer"
            kinds = [("attention", "SelfAttention"), ("cross", "EncDecAttention")]
            for number, (kind, name) in enumerate(kinds[: 1 if side == "encoder" else 2]):
                yield from linear(f"{ours}.{kind}.project", *(f"{theirs}.{number}.{name}.{part}" for part in "qkv"), bias=False)
                yield from linear(f"{ours}.{kind}.join", f"{theirs}.{number}.{name}.o", bias=False)
                yield from linear(f"{ours}.{kind}_add.norm", f"{theirs}.{number}.layer_norm", bias=False)
            last = f"{theirs}.{1 if side == 'encoder' else 2}"
            inner = ("wi_0", "wi_1") if "glu" in config["activation"] else ("wi",)
            yield from linear(f"{ours}.feedforward.widen", *(f"{last}.DenseReluDense.{part}" for part in inner), bias=False)
            yield from linear(f"{ours}.feedforward.narrow", f"{last}.DenseReluDense.wo", bias=False)
            yield from linear(f"{ours}.feedforward_add.norm", f"{last}.layer_norm", bias=False)
        yield from linear(f"{side}.norm", f"{side}.final_layer_norm", bias=False)
    if not config["tied"]:
        yield Part("deembed.weight", ("lm_head.weight",))


def marian_config(theirs: Config, names: set[str]) -> Config:
    _only(theirs, "normalize_before", False, None)
    _only(theirs, "share_encoder_decoder_embeddings", True, None)
    _only(theirs, "decoder_attention_heads", theirs["encoder_attention_heads"])
    _only(theirs, "decoder_ffn_dim", theirs["encoder_ffn_dim"])
    return {
        "kind": "seq2seq",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["encoder_layers"],
        "decoder_layers": theirs["decoder_layers"],
        "width": theirs["d_model"],
        "heads": theirs["encoder_attention_heads"],
        "feedforward": theirs["encoder_ffn_dim"],
        "activation": _activation(theirs["activation_function"]),
        "norm_place": "after",
        "positions": "sinusoidal",
        "position_layout": "halves",
        "context": theirs["max_position_embeddings"],
        "embedding_scale": theirs["scale_embedding"],
        "tied": "lm_head.weight" not in names,
        "output_bias": "final_logits_bias" in names,
        "dropout": theirs["dropout"],
        "attention_dropout": theirs["attention_dropout"],
        "activation_dropout": theirs["activation_dropout"],
        **_tokens(theirs, start=theirs["decoder_start_token_id"]),
    }


def marian_parts(config: Config) -> Iterator[Part]:
    yield Part("embed.weight", ("shared.weight",))
    for side, layers in (("encoder", config["layers"]), ("decoder", config["decoder_layers"] or config["layers"])):
        for i in range(layers):
            name = f"{side}.layers.{i}"
            kinds = [("attention", "self_attn"), ("cross", "encoder_attn")]
            for ours, theirs in kinds[: 1 if side == "encoder" else 2]:
                yield from linear(f"{name}.{ours}.project", *(f"{name}.{theirs}.{part}_proj" for part in "qkv"))
                yield from linear(f"{name}.{ours}.join", f"{name}.{theirs}.out_proj")
                yield from linear(f"{name}.{ours}_add.norm", f"{name}.{theirs}_layer_norm")
            yield from linear(f"{name}.feedforward.widen", f"{name}.fc1")
            yield from linear(f"{name}.feedforward.narrow", f"{name}.fc2")
            yield from linear(f"{name}.feedforward_add.norm", f"{name}.final_layer_norm")
    if config["output_bias"]:
        yield Part("deembed.bias", ("final_logits_bias",), flat=True)
    if not config["tied"]:
        yield Part("deembed.weight", ("lm_head.weight",))


def llama_config(theirs: Config, names: set[str]) -> Config:
    _only(theirs, "mlp_bias", theirs.get("attention_bias", False), None)
    _only(theirs, "partial_rotary_factor", 1.0, None)
    rope = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    return {
        "kind": "lm",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["num_hidden_layers"],
        "width": theirs["hidden_size"],
        "heads": theirs["num_attention_heads"],
        "kv_heads": theirs.get("num_key_value_heads"),
        "head_width": theirs.get("head_dim"),
        "feedforward": theirs["intermediate_size"],
        "activation": _activation(theirs["hidden_act"], gated=True),
        "bias": "all" if theirs.get("attention_bias") else "none",
        "norm": "rms",
        "norm_place": "before",
        "norm_epsilon": theirs["rms_norm_eps"],
        "positions": "rotary",
        "position_layout": "halves",
        "context": theirs["max_position_embeddings"],
        "rotary_base": rope.get("rope_theta") or theirs.get("rope_theta", 10000.0),
        "rotary_scaling": _rotary_scaling(rope),
        "embedding_scale": False,
        "tied": "lm_head.weight" not in names,
        "dropout": 0.0,
        "attention_dropout": theirs.get("attention_dropout") or 0.0,
        "init": "normal",
        **_tokens(theirs, start=1, end=2),
    }


def llama_parts(config: Config) -> Iterator[Part]:
    bias = config["bias"] == "all"
    yield Part("embed.weight", ("embed_tokens.weight",))
    for i in range(config["layers"]):
        ours, theirs = f"decoder.layers.{i}", f"layers.{i}"
        yield from linear(f"{ours}.attention.project", *(f"{theirs}.self_attn.{part}_proj" for part in "qkv"), bias=bias)
        yield from linear(f"{ours}.attention.join", f"{theirs}.self_attn.o_proj", bias=bias)
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.input_layernorm", bias=False)
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj", bias=bias)
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.mlp.down_proj", bias=bias)
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.post_attention_layernorm", bias=False)
    yield from linear("decoder.norm", "norm", bias=False)
    if not config["tied"]:
        yield Part("deembed.weight", ("lm_head.weight",))


def _rotary_scaling(rope: Config) -> Config | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    if kind == "linear":
        return {"kind": "linear", "factor": rope["factor"]}
    if kind == "llama3":
        return {
            "kind": "llama3",
            "factor": rope["factor"],
            "low_frequency": rope["low_freq_factor"],
            "high_frequency": rope["high_freq_factor"],
            "original_context": rope["original_max_position_embeddings"],
        }
    raise ConversionError(f"rope_type = {kind!r} is not known here; known: default, linear, llama3")


def _activation(name: str, *, gated: bool = False) -> str:
    if name not in ACTIVATIONS:
        raise ConversionError(f"activation {name!r} is not known here; known: {', '.join(ACTIVATIONS)}")
    ours = ACTIVATIONS[name]
    if not gated:
        return ours
    by_gate = {"silu": "swiglu", "gelu": "geglu", "gelu-tanh": "geglu-tanh"}
    if ours not in by_gate:
        raise ConversionError(f"a feed-forward gated by {name!r} is not known here; known: {', '.join(by_gate)}")
    return by_gate[ours]


def _tokens(theirs: Config, *, pad: int | None = None, start: int | None = None, end: int | None = None) -> Config:
    """The special tokens a config names, with defaults for what it leaves out."""

    def choose(key: str, default: int | None) -> int:
        value = theirs.get(key)
        value = value[0] if isinstance(value, list) else value
        value = default if value is None else value
        return value if value is not None and value < theirs["vocab_size"] else 0

    start_token = start if theirs.get("is_encoder_decoder") else choose("bos_token_id", start)
    return {"pad_token": choose("pad_token_id", pad), "start_token": start_token or 0, "end_token": choose("eos_token_id", end)}


def _only(theirs: Config, key: str, *allowed: Any) -> None:
    if theirs.get(key) not in allowed:
        raise ConversionError(f"{key} = {theirs.get(key)!r} is a variant that is not known here; it must be {allowed[0]!r}")
