"""A bundle for CTranslate2, written through its own specifications straight from our weights: encoder-decoders and language models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import LanguageModelConfig, ModelConfig, Seq2SeqConfig, Transformer
from regard.decoding.many import score_many
from regard.interop import loops
from regard.interop.original import BATCH, CONTINUED, SAME, ExportError, Original, Report, in_batches, largest, needed
from regard.models import LanguageModel, Seq2Seq
from regard.nn.attention import Attention
from regard.nn.embedding import Deembedder, Embedder
from regard.nn.layers import GATED, Block, FeedForward, Stack
from regard.nn.positions import sinusoid

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}
CLOSE = {"float32": 1e-3, "int8": 1.0}  # of log-probabilities: in 8 bits, activations are rounded as well
ALIKE = {"float32": SAME, "int8": 0.5}


def refuse(config: ModelConfig) -> None:
    """An error where CTranslate2 has no such model."""
    needed("ctranslate2")
    if not isinstance(config, Seq2SeqConfig | LanguageModelConfig):
        what = "recurrent models" if config.kind == "rnn" else "encoders with heads"
        raise ExportError(f"CTranslate2 runs encoder-decoders and language models, not {what}; {_instead(config)}")
    obstacles = _obstacles(config)
    if obstacles:
        raise ExportError(f"CTranslate2 has no such model: {'; '.join(obstacles)}. Train it otherwise, or export it to onnx")


def _instead(config: ModelConfig) -> str:
    return "this one stays here" if config.kind == "rnn" else "export it to onnx, which takes it whole"


def _obstacles(config: Transformer) -> list[str]:
    found = []
    if config.positions == "alibi" and isinstance(config, Seq2SeqConfig):
        found.append("its encoder knows no ALiBi (model.positions)")
    if config.rotary_scaling is not None and config.rotary_scaling.kind == "llama3":
        found.append("rotary positions are scaled as in Llama 3 (model.rotary_scaling), which its files tell only in part")
    if config.window is not None:
        found.append("positions see no further than a window (model.window), which it cuts otherwise")
    if isinstance(config, LanguageModelConfig) and config.mask == "prefix":
        found.append("the prompt sees itself in both directions (model.mask = 'prefix'), and there each word sees those before it")
    return found


def write(original: Original, out: Path, precision: str) -> Report:
    """Writes the folder, loads it again, and tries it against the original."""
    ctranslate2 = needed("ctranslate2")
    spec = made(ctranslate2, original)
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(out))
    if original.tokenizer is not None:
        loops.write(original, out, "ctranslate2")
    return _tried(ctranslate2, original, out, precision).checked()


def made(ctranslate2: Any, original: Original) -> Any:
    """Their specification with our weights."""
    specs, config, network = ctranslate2.specs, original.config, original.network
    assert isinstance(network, Seq2Seq | LanguageModel)
    assert isinstance(config, Transformer)
    decoder = specs.transformer_spec.TransformerDecoderSpec(
        getattr(config, "decoder_layers", None) or config.layers,
        config.heads,
        with_encoder_attention=isinstance(config, Seq2SeqConfig),
        alibi=config.positions == "alibi",
        **_shape(ctranslate2, config),
    )
    _set_stack(decoder, network.decoder, config)
    _set_embedding(decoder, network.embed)
    _set_output(decoder, network.deembed, network.embed)
    spec: Any
    if isinstance(network, Seq2Seq):
        encoder = specs.transformer_spec.TransformerEncoderSpec(config.layers, config.heads, **_shape(ctranslate2, config))
        _set_stack(encoder, network.encoder, config)
        _set_embedding(encoder, network.embed_source or network.embed)
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(original.source_names)
        spec.register_target_vocabulary(original.names)
        spec.config.decoder_start_token = original.names[config.start_token]
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(original.names)
    names = original.names
    unknown = None if original.tokenizer is None else original.tokenizer.unknown_id
    spec.config.bos_token, spec.config.eos_token = names[config.start_token], names[config.end_token]
    spec.config.unk_token = names[config.pad_token if unknown is None else unknown]  # it must have one, if only to be never met
    spec.config.layer_norm_epsilon = config.norm_epsilon
    return spec


def _shape(ctranslate2: Any, config: Transformer) -> dict[str, Any]:
    """What their encoders and decoders are told alike."""
    common, attention = ctranslate2.specs.common_spec, ctranslate2.specs.attention_spec
    shape: dict[str, Any] = {
        "pre_norm": config.norm_place == "before",
        "activation": getattr(common.Activation, ACTIVATIONS[GATED.get(config.activation, config.activation)]),
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": config.positions == "relative",
        "ffn_glu": config.activation in GATED,
        "rms_norm": config.norm == "rms",
        "num_heads_kv": config.kv_heads if config.kv_heads != config.heads else None,
        "head_dim": config.head_width,
    }
    if config.positions == "rotary":
        shape |= {"rotary_dim": 0, "rotary_interleave": config.position_layout == "interleaved", "rotary_base": config.rotary_base}
        if config.rotary_scaling is not None:
            shape |= {"rotary_scaling_type": attention.RotaryScalingType.Linear, "rotary_scaling_factor": config.rotary_scaling.factor}
    return shape


def _set_stack(spec: Any, stack: Stack, config: Transformer) -> None:
    if hasattr(spec, "position_encodings") and config.positions != "rotary":
        spec.position_encodings.encodings = _table(stack, config)
    if config.norm_place == "before":
        _set_norm(spec.layer_norm, stack.norm)
    if config.embedding_norm:
        _set_norm(spec.layernorm_embedding, stack.embedding_norm)
    for layer, block in zip(spec.layer, stack.layers, strict=True):
        assert isinstance(block, Block)
        _set_attention(layer.self_attention, block.attention, config)
        _set_norm(layer.self_attention.layer_norm, block.attention_add.norm)
        if config.positions == "relative":
            layer.self_attention.relative_attention_bias = _array(stack.positions.weight)
            layer.self_attention.relative_attention_max_distance = np.int32(config.relative_distance)
        if block.cross is not None and block.cross_add is not None:
            _set_attention(layer.attention, block.cross, config, across=True)
            _set_norm(layer.attention.layer_norm, block.cross_add.norm)
        _set_feedforward(layer.ffn, block.feedforward)
        _set_norm(layer.ffn.layer_norm, block.feedforward_add.norm)


def _table(stack: Stack, config: Transformer) -> Any:
    """A vector for each position: zeros where a model is told of none."""
    if config.positions == "sinusoidal":
        return _array(sinusoid(torch.arange(config.context), config.width, layout=config.position_layout))
    return _array(stack.positions.weight) if config.positions == "learned" else np.zeros((config.context, config.width), np.float32)


def _set_attention(spec: Any, attention: Attention, config: Transformer, *, across: bool = False) -> None:
    weight, bias, queries = attention.project.weight, attention.project.bias, attention.query_rows
    pieces = [slice(None, queries), slice(queries, None)] if across else [slice(None)]
    for linear, rows in zip(spec.linear, pieces, strict=False):
        _set_linear(linear, weight[rows], None if bias is None else bias[rows])
    _set_linear(spec.linear[-1], attention.join.weight, attention.join.bias)
    if config.attention_scale is not None:
        spec.queries_scale = np.float32(config.attention_scale)


def _set_feedforward(spec: Any, feedforward: FeedForward) -> None:
    widen = feedforward.widen
    if feedforward.gated:
        halves = zip(widen.weight.chunk(2), (None, None) if widen.bias is None else widen.bias.chunk(2), strict=True)
        for linear, pair in zip((spec.linear_0, spec.linear_0_noact), halves, strict=True):
            _set_linear(linear, *pair)
    else:
        _set_linear(spec.linear_0, widen.weight, widen.bias)
    _set_linear(spec.linear_1, feedforward.narrow.weight, feedforward.narrow.bias)


def _set_embedding(spec: Any, embedder: Embedder) -> None:
    embeddings = spec.embeddings[0] if isinstance(spec.embeddings, list) else spec.embeddings
    embeddings.weight = _array(embedder.weight)
    spec.scale_embeddings = embedder.scale != 1.0


def _set_output(spec: Any, deembedder: Deembedder, embedder: Embedder) -> None:
    _set_linear(spec.projection, embedder.weight if deembedder.weight is None else deembedder.weight, deembedder.bias)
    if deembedder.scale != 1.0:
        spec.scale_outputs = np.float32(deembedder.scale)


def _set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    spec.weight = _array(weight)
    if bias is not None:
        spec.bias = _array(bias)


def _set_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if hasattr(spec, "beta"):
        spec.beta = _array(norm.bias)


def _array(tensor: Any) -> Any:
    return tensor.detach().float().clone(memory_format=torch.contiguous_format).numpy()  # a copy: theirs is rounded in place


def _tried(ctranslate2: Any, original: Original, folder: Path, precision: str) -> Report:
    if isinstance(original.config, Seq2SeqConfig):
        found = _tried_translator(ctranslate2, original, folder)
    else:
        found = _tried_generator(ctranslate2, original, folder, precision)
    difference, outputs = found
    same, others = original.compare(outputs)
    made = f"a CTranslate2 {'Translator' if isinstance(original.config, Seq2SeqConfig) else 'Generator'} in {precision}"
    return Report(made, len(original.rows), "log-probabilities", difference, CLOSE[precision], same, ALIKE[precision], others)


def _tried_translator(ctranslate2: Any, original: Original, folder: Path) -> tuple[float, list[list[int]]]:
    config = original.config
    assert isinstance(config, Seq2SeqConfig)
    translator = ctranslate2.Translator(str(folder), device="cpu", intra_threads=torch.get_num_threads())
    reads, writes = original.source_names, original.names
    sources = [_named(reads, row) for row in original.rows]
    opening = [_named(writes, original.opening)] * len(sources) if original.opening else None
    found = translator.translate_batch(
        sources,
        opening,
        beam_size=1,
        max_decoding_length=min(config.context, max(map(len, original.written)) + 1),
        **_rules(original, writes),
    )
    outputs = [_numbered(writes, result.hypotheses[0]) for result in found]
    targets = [ids[1:] for ids in original.begun]
    scored = translator.score_batch(sources, [_named(writes, ids) for ids in targets], max_batch_size=BATCH)
    ours = score_many(original.generator, original.rows, [[*ids, config.end_token] for ids in targets])
    return max(_apart(row, result.log_probs) for row, result in zip(ours, scored, strict=True)), outputs


@torch.inference_mode()
def _tried_generator(ctranslate2: Any, original: Original, folder: Path, precision: str) -> tuple[float, list[list[int]]]:
    generator = ctranslate2.Generator(str(folder), device="cpu", intra_threads=torch.get_num_threads())
    names = original.names
    found = generator.generate_batch(
        [_named(names, row) for row in original.rows],
        max_batch_size=BATCH,
        beam_size=1,
        sampling_topk=1,
        max_length=CONTINUED,
        include_prompt_in_result=False,
        **_rules(original, names),
    )
    outputs = [result.sequences_ids[0] for result in found]
    difference = 0.0
    for (rows,) in in_batches(original.rows):
        tokens = original.padded(rows)
        ours = original.network(tokens).log_softmax(-1)
        theirs = torch.from_numpy(np.array(generator.forward_batch(rows, return_log_probs=True)))
        if precision != "float32":  # what is most unlikely is not looked at so closely
            likeliest = ours.argmax(-1, keepdim=True)
            ours, theirs = ours.gather(-1, likeliest), theirs.gather(-1, likeliest)
        difference = max(difference, largest(ours, theirs, tokens.real))
    return difference, outputs


def _rules(original: Original, names: Sequence[str]) -> dict[str, Any]:
    """What is never written, and what ends an output."""
    ends = [original.config.end_token, *original.config.stop_tokens]
    return {"suppress_sequences": [[names[id]] for id in original.never] or None, "end_token": ends}


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    return max(abs(a - b) for a, b in zip(ours, theirs, strict=True))


def _named(names: Sequence[str], ids: Sequence[int]) -> list[str]:
    return [names[id] for id in ids]


def _numbered(names: Sequence[str], tokens: Sequence[str]) -> list[int]:
    numbers = {name: id for id, name in enumerate(names)}
    return [numbers[token] for token in tokens]
