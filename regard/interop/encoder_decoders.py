"""T5, Marian and BART: what their configs and tensor names mean in ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from regard.interop.parts import Architecture, Config, Part, activation, linear, only, tokens


def t5_config(theirs: Config, names: set[str]) -> Config:
    gated, _, plain = theirs["feed_forward_proj"].rpartition("-")
    inner = "geglu-tanh" if (gated, plain) == ("gated", "gelu") else activation(plain, gated=gated == "gated")
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
        "activation": inner,
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
        **tokens(theirs, start=theirs.get("pad_token_id", 0)),
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


T5 = Architecture(
    t5_config,
    t5_parts,
    ("T5Model", "T5ForConditionalGeneration", "T5WithLMHeadModel"),
    embedding="shared.weight",
    ignored=("coder.embed_tokens.weight",),
)


def marian_config(theirs: Config, names: set[str]) -> Config:
    only(theirs, "normalize_before", False, None)
    only(theirs, "share_encoder_decoder_embeddings", True, None)
    only(theirs, "decoder_attention_heads", theirs["encoder_attention_heads"])
    only(theirs, "decoder_ffn_dim", theirs["encoder_ffn_dim"])
    return {
        "kind": "seq2seq",
        "vocabulary": theirs["vocab_size"],
        "layers": theirs["encoder_layers"],
        "decoder_layers": theirs["decoder_layers"],
        "width": theirs["d_model"],
        "heads": theirs["encoder_attention_heads"],
        "feedforward": theirs["encoder_ffn_dim"],
        "activation": activation(theirs["activation_function"]),
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
        **tokens(theirs, start=theirs["decoder_start_token_id"]),
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


MARIAN = Architecture(
    marian_config,
    marian_parts,
    ("MarianModel", "MarianMTModel"),
    prefix="model.",
    embedding="shared.weight",
    ignored=("embed_positions.weight", "coder.embed_tokens.weight"),
)

BART_SKIPPED = 2  # positions that fairseq counts before the first, and BART has kept


def bart_config(theirs: Config, names: set[str]) -> Config:
    only(theirs, "add_final_layer_norm", False, None)
    return marian_config(theirs, names) | {"positions": "learned", "embedding_norm": True, "init": "normal"}


def bart_parts(config: Config) -> Iterator[Part]:
    """Marian's, with learned positions and a norm on the embeddings."""
    yield from marian_parts(config)
    for side in ("encoder", "decoder"):
        yield Part(f"{side}.positions.weight", (f"{side}.embed_positions.weight",), skip=BART_SKIPPED)
        yield from linear(f"{side}.embedding_norm", f"{side}.layernorm_embedding")


BART = replace(
    MARIAN, config=bart_config, parts=bart_parts, classes=("BartModel", "BartForConditionalGeneration"),
    ignored=("coder.embed_tokens.weight",),
)  # fmt: skip
