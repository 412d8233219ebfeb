"""GPT-2, Llama and its like: what their configs and tensor names mean in ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from regard.errors import ConversionError
from regard.interop.parts import Architecture, Config, Part, activation, linear, only, tokens


def gpt2_config(theirs: Config, names: set[str]) -> Config:
    only(theirs, "scale_attn_weights", True, None)
    only(theirs, "scale_attn_by_inverse_layer_idx", False, None)
    only(theirs, "add_cross_attention", False, None)
    return {
        "kind": "lm",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["n_layer"],
        "width": theirs["n_embd"],
        "heads": theirs["n_head"],
        "feedforward": theirs.get("n_inner") or 4 * theirs["n_embd"],
        "activation": activation(theirs["activation_function"]),
        "norm_place": "before",
        "norm_epsilon": theirs["layer_norm_epsilon"],
        "positions": "learned",
        "context": theirs["n_positions"],
        "embedding_scale": False,
        "tied": "lm_head.weight" not in names,
        "dropout": theirs["resid_pdrop"],
        "attention_dropout": theirs["attn_pdrop"],
        "init": "normal",
        **tokens(theirs, pad=theirs.get("eos_token_id"), start=theirs.get("eos_token_id")),
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


GPT2 = Architecture(
    gpt2_config,
    gpt2_parts,
    ("GPT2Model", "GPT2LMHeadModel"),
    prefix="transformer.",
    embedding="wte.weight",
    ignored=(".attn.bias", ".attn.masked_bias"),
)


def llama_config(theirs: Config, names: set[str]) -> Config:
    only(theirs, "mlp_bias", theirs.get("attention_bias", False), None)
    only(theirs, "partial_rotary_factor", 1.0, None)
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
        "activation": activation(theirs["hidden_act"], gated=True),
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
        **tokens(theirs, start=1, end=2),
    }


def llama_parts(config: Config) -> Iterator[Part]:
    bias, qkv_bias = config["bias"] == "all", config["bias"] != "none"
    yield Part("embed.weight", ("embed_tokens.weight",))
    for i in range(config["layers"]):
        ours, theirs = f"decoder.layers.{i}", f"layers.{i}"
        yield from linear(f"{ours}.attention.project", *(f"{theirs}.self_attn.{part}_proj" for part in "qkv"), bias=qkv_bias)
        yield from linear(f"{ours}.attention.join", f"{theirs}.self_attn.o_proj", bias=bias)
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.input_layernorm", bias=False)
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.mlp.gate_proj", f"{theirs}.mlp.up_proj", bias=bias)
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.mlp.down_proj", bias=bias)
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.post_attention_layernorm", bias=False)
    yield from linear("decoder.norm", "norm", bias=False)
    if not config["tied"]:
        yield Part("deembed.weight", ("lm_head.weight",))


LLAMA = Architecture(
    llama_config,
    llama_parts,
    ("LlamaForCausalLM",),
    prefix="model.",
    embedding="embed_tokens.weight",
    ignored=("rotary_emb.inv_freq",),
)


def qwen2_config(theirs: Config, names: set[str]) -> Config:
    """Llama's, but queries, keys and values have a bias, and nothing else does."""
    only(theirs, "use_sliding_window", False, None)
    only(theirs, "attention_bias", None, True)
    ends = tokens(theirs, start=theirs.get("eos_token_id"))  # the end of one text stands before the next
    return llama_config(theirs | {"attention_bias": False}, names) | {"bias": "qkv", **ends}


QWEN2 = replace(LLAMA, config=qwen2_config, classes=("Qwen2ForCausalLM",))


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
