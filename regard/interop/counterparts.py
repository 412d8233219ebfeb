"""Which class of Hugging Face's a model of ours fits into, and what stands in the way where none does.

Where each tensor goes is said by the same lists of parts that imports are read by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from regard.config import EncoderConfig, RotaryScaling, Seq2SeqConfig, Transformer
from regard.interop.architectures import ARCHITECTURES, Part, linear
from regard.interop.original import ExportError
from regard.interop.rewriting import Form, Rewriting, as_halves, as_table, biased, by_head, unscaled

Settings = dict[str, Any]
PLAIN = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu"}
GATED = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu_pytorch_tanh"}
T5_GATED = {"swiglu": "gated-silu", "geglu-tanh": "gated-gelu"}
ONE_VOCABULARY = {"source_vocabulary": (None,)}
EVERY_HEAD = {"kv_heads": (None,), "head_width": (None,), "attention_scale": (None,)}
UNSCALED: Settings = {"embedding_scale": (False,), "logit_scale": (1.0,)}


@dataclass(frozen=True)
class Counterpart:
    """A family of theirs."""

    name: str  # as people know it
    model_type: str
    kind: str  # of ours
    wanted: dict[str, tuple[Any, ...]]  # which values each setting of ours may have
    config: Callable[[Any], Settings]  # our config to theirs
    parts: Callable[[Settings], Iterator[Part]]  # our settings to where each tensor goes
    rewritings: tuple[Rewriting, ...] = ()  # what is said in another way first
    splits_text: bool = False  # AutoTokenizer splits text in this family's own way, whatever the tokenizer's file says

    def obstacles(self, config: Transformer, *, own_words: bool) -> list[str]:
        """What it has no place for. `own_words`: the tokenizer is one of ours."""
        given = _plainly(config).model_dump()
        found = []
        if self.splits_text and own_words:
            found.append(f"AutoTokenizer splits text for {self.name} in a way of its own, and this tokenizer is another")
        for key, allowed in self.wanted.items():
            if given.get(key) not in allowed:
                known = " or ".join(map(_shown, allowed))
                found.append(f"{key} is {_shown(given.get(key))} and must be {known} there")
        if given.get("labels"):  # a head of theirs reads the first vector, through a layer of its own
            wanted = {"pooling": "first", "pooler": True, "pooler_activation": "relu" if self.model_type == "distilbert" else "tanh"}
            found += [f"{key} is {_shown(given[key])} and must be {_shown(value)} to choose labels there"
                      for key, value in wanted.items() if given[key] != value]  # fmt: skip
        return found


def counterpart_of(form: Form, *, own_words: bool) -> tuple[Counterpart, Form]:
    """The one that a model fits into, and the model as it is to be written there. `own_words`: its tokenizer is one of ours."""
    tried: list[tuple[list[str], Counterpart]] = []
    for counterpart in COUNTERPARTS:
        if counterpart.kind == form.config.kind:
            rewritten = _rewritten(form, counterpart)
            obstacles = counterpart.obstacles(rewritten.transformer, own_words=own_words)
            if not obstacles:
                return counterpart, rewritten
            tried.append((obstacles, counterpart))
    if not tried:
        raise ExportError("Hugging Face has no recurrent encoder-decoder, so this model can't be exported there; it runs in regard alone")
    obstacles, nearest = min(tried, key=lambda pair: len(pair[0]))
    raise ExportError(
        f"no model of Hugging Face's is this one; the nearest is {nearest.name}, but {'; '.join(obstacles)}. "
        "Train it so, or export it to onnx, which takes every Transformer"
    )


def _rewritten(form: Form, counterpart: Counterpart) -> Form:
    for rewriting in counterpart.rewritings:
        form = rewriting(form)
    return form


def _plainly(config: Transformer) -> Transformer:
    """With None where a setting says what is the case anyway."""
    standard = config.width // config.heads
    update: Settings = {}
    if config.kv_heads == config.heads:
        update["kv_heads"] = None
    if config.head_width == standard and config.width % config.heads == 0:
        update["head_width"] = None
    if config.attention_scale is not None and abs(config.attention_scale - config.key_width**-0.5) < 1e-9:
        update["attention_scale"] = None
    return config.model_copy(update=update)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else repr(value)


def _tokens(config: Transformer) -> Settings:
    return {
        "vocab_size": config.vocabulary,
        "pad_token_id": config.pad_token,
        "bos_token_id": config.start_token,
        "eos_token_id": [config.end_token, *config.stop_tokens] if config.stop_tokens else config.end_token,
        "tie_word_embeddings": config.tied,
    }


def _bart_config(config: Seq2SeqConfig) -> Settings:
    """What BART, mBART, Pegasus, Marian and Blenderbot call the same."""
    layers = {"encoder_layers": config.layers, "decoder_layers": config.decoder_layers or config.layers}
    heads = {"encoder_attention_heads": config.heads, "decoder_attention_heads": config.heads}
    inner = {"encoder_ffn_dim": config.feedforward, "decoder_ffn_dim": config.feedforward}
    return _tokens(config) | layers | heads | inner | {
        "d_model": config.width,
        "activation_function": PLAIN[config.activation],
        "max_position_embeddings": config.context,
        "scale_embedding": config.embedding_scale,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "decoder_start_token_id": config.start_token,
        "forced_eos_token_id": None,
    }  # fmt: skip


def _marian_config(config: Seq2SeqConfig) -> Settings:
    return _bart_config(config) | {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": config.vocabulary}


def _pegasus_parts(config: Settings) -> Iterator[Part]:
    """Marian's, and a last norm."""
    yield from ARCHITECTURES["marian"].parts(config)
    yield from _last_norms()


def _blenderbot_parts(config: Settings) -> Iterator[Part]:
    """Marian's, with learned positions and a last norm."""
    yield from ARCHITECTURES["marian"].parts(config)
    yield from _last_norms()
    for side in ("encoder", "decoder"):
        yield Part(f"{side}.positions.weight", (f"{side}.embed_positions.weight",))


def _mbart_parts(config: Settings) -> Iterator[Part]:
    """BART's, and a last norm."""
    yield from ARCHITECTURES["bart"].parts(config)
    yield from _last_norms()


def _last_norms() -> Iterator[Part]:
    for side in ("encoder", "decoder"):
        yield from linear(f"{side}.norm", f"{side}.layer_norm")


def _t5_config(config: Seq2SeqConfig) -> Settings:
    return _tokens(config) | {
        "d_model": config.width,
        "d_kv": config.key_width,
        "d_ff": config.feedforward,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers or config.layers,
        "num_heads": config.heads,
        "relative_attention_num_buckets": config.relative_buckets,
        "relative_attention_max_distance": config.relative_distance,
        "dropout_rate": config.dropout,
        "layer_norm_epsilon": config.norm_epsilon,
        "feed_forward_proj": T5_GATED.get(config.activation) or PLAIN[config.activation],
        "decoder_start_token_id": config.start_token,
        "n_positions": config.context,
        "scale_decoder_outputs": config.logit_scale != 1.0,
    }


def _t5_rewriting(form: Form) -> Form:
    """A factor of √width on the way out is T5's own; any other lies in the weights."""
    config = form.transformer
    own = config.tied and not config.embedding_scale and abs(config.logit_scale - config.width**-0.5) < 1e-9
    return form if own else unscaled(form)


def _gpt2_config(config: Transformer) -> Settings:
    return _tokens(config) | {
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.feedforward,
        "activation_function": PLAIN[config.activation],
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.attention_dropout,
        "layer_norm_epsilon": config.norm_epsilon,
    }


def _llama_config(config: Transformer) -> Settings:
    return _tokens(config) | {
        "hidden_size": config.width,
        "intermediate_size": config.feedforward,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads or config.heads,
        "head_dim": config.key_width,
        "hidden_act": GATED[config.activation],
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_epsilon,
        "rope_parameters": {"rope_theta": config.rotary_base, **_rope(config.rotary_scaling)},
        "attention_bias": config.bias == "all",
        "mlp_bias": config.bias == "all",
        "attention_dropout": config.attention_dropout,
    }


def _rope(scaling: RotaryScaling | None) -> Settings:
    if scaling is None:
        return {"rope_type": "default"}
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency,
        "high_freq_factor": scaling.high_frequency,
        "original_max_position_embeddings": scaling.original_context,
    }


def _windowed_config(config: Transformer) -> Settings:
    """Mistral's: a Llama without biases that looks no further than a window."""
    return {key: value for key, value in _llama_config(config).items() if not key.endswith("_bias")} | {"sliding_window": config.window}


def _qwen2_config(config: Transformer) -> Settings:
    theirs = {key: value for key, value in _llama_config(config).items() if not key.endswith("_bias") and key != "head_dim"}
    kind = "full_attention" if config.window is None else "sliding_attention"
    window = {"use_sliding_window": config.window is not None, "sliding_window": config.window, "max_window_layers": 0}
    return theirs | window | {"layer_types": [kind] * config.layers}


def _neox_config(config: Transformer) -> Settings:
    return _tokens(config) | {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feedforward,
        "hidden_act": PLAIN[config.activation],
        "attention_dropout": config.attention_dropout,
        "hidden_dropout": config.dropout,
        "max_position_embeddings": config.context,
        "layer_norm_eps": config.norm_epsilon,
        "use_parallel_residual": False,
        "rope_parameters": {"rope_theta": config.rotary_base, "partial_rotary_factor": 1.0, **_rope(config.rotary_scaling)},
    }


def _neox_parts(config: Settings) -> Iterator[Part]:
    yield Part("embed.weight", ("embed_in.weight",))
    for i in range(config["layers"]):
        ours, theirs = f"decoder.layers.{i}", f"layers.{i}"
        yield from linear(f"{ours}.attention.project", f"{theirs}.attention.query_key_value")
        yield from linear(f"{ours}.attention.join", f"{theirs}.attention.dense")
        yield from linear(f"{ours}.attention_add.norm", f"{theirs}.input_layernorm")
        yield from linear(f"{ours}.feedforward.widen", f"{theirs}.mlp.dense_h_to_4h")
        yield from linear(f"{ours}.feedforward.narrow", f"{theirs}.mlp.dense_4h_to_h")
        yield from linear(f"{ours}.feedforward_add.norm", f"{theirs}.post_attention_layernorm")
    yield from linear("decoder.norm", "final_layer_norm")
    if not config["tied"]:
        yield Part("deembed.weight", ("lm_head.weight",))


def _bert_config(config: EncoderConfig) -> Settings:
    labels = dict(enumerate(config.labels))
    names = {"id2label": labels, "label2id": {label: number for number, label in labels.items()}} if labels else {}
    return _tokens(config) | names | {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feedforward,
        "hidden_act": PLAIN[config.activation],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.context,
        "type_vocab_size": config.token_types or 1,
        "layer_norm_eps": config.norm_epsilon,
    }  # fmt: skip


def _distilbert_config(config: EncoderConfig) -> Settings:
    bert = _bert_config(config)
    names = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim",
             "hidden_act": "activation", "hidden_dropout_prob": "dropout", "attention_probs_dropout_prob": "attention_dropout"}  # fmt: skip
    return {names.get(key, key): value for key, value in bert.items() if key not in ("type_vocab_size", "layer_norm_eps")}


_NO_MORE: Settings = {**EVERY_HEAD, "output_bias": (False,), "window": (None,)}
_BART: Settings = {
    **ONE_VOCABULARY, **EVERY_HEAD, "norm": ("layer",), "norm_epsilon": (1e-5,), "bias": ("all",), "activation": tuple(PLAIN),
    "logit_scale": (1.0,),
}  # fmt: skip
_CAUSAL: Settings = {"mask": ("causal",), "norm_place": ("before",), "embedding_norm": (False,), **UNSCALED}
_LLAMA: Settings = {
    **_CAUSAL, "norm": ("rms",), "positions": ("rotary",), "activation": tuple(GATED), "output_bias": (False,), "attention_scale": (None,),
}  # fmt: skip
_BERT: Settings = {
    **_NO_MORE, **UNSCALED, "norm": ("layer",), "norm_place": ("after",), "bias": ("all",), "positions": ("learned",),
    "embedding_norm": (True,), "activation": tuple(PLAIN),
}  # fmt: skip

COUNTERPARTS = (
    Counterpart(
        "Pegasus", "pegasus", "seq2seq",
        _BART | {"norm_place": ("before",), "positions": ("sinusoidal",), "embedding_norm": (False,)},
        _bart_config, _pegasus_parts, (as_halves,),
    ),
    Counterpart(
        "Blenderbot", "blenderbot", "seq2seq",
        _BART | {"norm_place": ("before",), "positions": ("learned",), "embedding_norm": (False,)},
        _bart_config, _blenderbot_parts,
    ),
    Counterpart(
        "mBART", "mbart", "seq2seq",
        _BART | {"norm_place": ("before",), "positions": ("learned",), "embedding_norm": (True,)},
        _bart_config, _mbart_parts, (as_table,),
    ),
    Counterpart(
        "Marian", "marian", "seq2seq",
        _BART | {"norm_place": ("after",), "positions": ("sinusoidal",), "embedding_norm": (False,)},
        _marian_config, ARCHITECTURES["marian"].parts, (as_halves,),
    ),
    Counterpart(
        "BART", "bart", "seq2seq",
        _BART | {"norm_place": ("after",), "positions": ("learned",), "embedding_norm": (True,)},
        _bart_config, ARCHITECTURES["bart"].parts, (as_table,),
    ),
    Counterpart(
        "T5", "t5", "seq2seq",
        {**ONE_VOCABULARY, "kv_heads": (None,), "attention_scale": (1.0,), "norm": ("rms",), "norm_place": ("before",), "bias": ("none",),
         "positions": ("relative",), "embedding_norm": (False,), "output_bias": (False,), "activation": (*PLAIN, *T5_GATED)},
        _t5_config, ARCHITECTURES["t5"].parts, (_t5_rewriting,),
    ),
    Counterpart(
        "GPT-2", "gpt2", "lm",
        {**_CAUSAL, **_NO_MORE, "norm": ("layer",), "positions": ("learned",), "bias": ("all",), "activation": tuple(PLAIN)},
        _gpt2_config, ARCHITECTURES["gpt2"].parts, (as_table, unscaled),
    ),
    Counterpart(
        "GPT-NeoX", "gpt_neox", "lm",
        {**_CAUSAL, **_NO_MORE, "norm": ("layer",), "positions": ("rotary",), "bias": ("all",), "activation": tuple(PLAIN)},
        _neox_config, _neox_parts, (as_halves, unscaled, by_head),
    ),
    Counterpart(
        "Qwen2", "qwen2", "lm", _LLAMA | {"bias": ("qkv",), "head_width": (None,)},
        _qwen2_config, ARCHITECTURES["qwen2"].parts, (as_halves, unscaled), splits_text=True,
    ),
    Counterpart(
        "Llama", "llama", "lm", _LLAMA | {"bias": ("none", "all"), "window": (None,)},
        _llama_config, ARCHITECTURES["llama"].parts, (as_halves, unscaled, biased),
    ),
    Counterpart(
        "Mistral", "mistral", "lm", _LLAMA | {"bias": ("none",)}, _windowed_config, ARCHITECTURES["llama"].parts, (as_halves, unscaled),
    ),
    Counterpart(
        "BERT", "bert", "encoder",
        _BERT,
        _bert_config, ARCHITECTURES["bert"].parts, (as_table, unscaled),
    ),
    Counterpart(
        "DistilBERT", "distilbert", "encoder",
        {**_BERT, "norm_epsilon": (1e-12,), "token_types": (0,), "activation": ("relu", "gelu")},
        _distilbert_config, ARCHITECTURES["distilbert"].parts, (as_table, unscaled),
    ),
)  # fmt: skip
