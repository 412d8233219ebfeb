"""Small GGUF files, written with llama.cpp's own library from Hugging Face models with random weights."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import torch
import transformers as hf
from tokenizers import decoders, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    import gguf

TEXT = """Once upon a time there was a small village by the sea, where 365 people lived. It's said that they'd never seen a ship.
"Where are you going?" asked the girl. "To the market," he said; "we've 12 eggs, 3 hens and 1,024 figs to sell!"
The wind blew from the west, the waves rose, and the old fisherman said: don't go out today. I'll stay, you'll see.
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
Die Häuser waren klein; die Straßen eng. Où est la bibliothèque? ¿Dónde está? 你好，世界。
"""
SENTENCES = [
    "Once upon a time", "the village by the sea", "It's 1969, and they'd 365 eggs.", "  two spaces first", "a\n\nb\tc  d",
    "Straße, naïve café", "你好 🦆 quack", "def f(x):\n    return x + 12345", "", "WHERE ARE YOU GOING?! don't I'LL", "x<|im_end|>y",
]  # fmt: skip
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def byte_level(size: int = 400) -> dict[str, Any]:
    """The tokenizer part of a file: byte-level BPE learned with each digit on its own, as SmolLM's was."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    library.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    library.train_from_iterator(TEXT.splitlines(keepends=True) * 3, trainer)
    vocabulary = library.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return {
        "model": "gpt2", "pre": "smollm", "tokens": tokens, "kinds": [3] * len(special) + [1] * (len(tokens) - len(special)),
        "merges": [" ".join(pair) for pair in json.loads(library.to_str())["model"]["merges"]],
        "bos": 1, "eos": 2, "pad": 2, "chat": CHATML, "library": library,
    }  # fmt: skip


def sentencepieces(size: int = 340) -> dict[str, Any]:
    """The same for SentencePiece's BPE with bytes for what it lacks, as Llama's is; `library` is SentencePiece itself."""
    import sentencepiece

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines() * 3), model_writer=made, vocab_size=size, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98, minloglevel=2,
    )  # fmt: skip
    library = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    ids = range(library.get_piece_size())
    kinds = [2 if library.is_unknown(id) else 3 if library.is_control(id) else 6 if library.is_byte(id) else 1 for id in ids]
    return {
        "model": "llama", "tokens": [library.id_to_piece(id) for id in ids], "kinds": kinds,
        "scores": [library.get_score(id) for id in ids], "bos": 1, "eos": 2, "library": library,
    }  # fmt: skip


def random_model(config: hf.PreTrainedConfig) -> Any:
    torch.manual_seed(1)
    model = hf.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def llama(vocabulary: int, **settings: Any) -> Any:
    shape = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    }  # fmt: skip
    return random_model(hf.LlamaConfig(vocab_size=vocabulary, **(shape | settings)))


def write(path: Path, model: Any, words: dict[str, Any], stored: str = "F32", architecture: str = "llama", **more: Any) -> Path:
    """The file that llama.cpp's converter would write. `more`: further metadata, by its whole name."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    _write_words(writer, words)
    for key, value in more.items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_float32(key, value)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        _write_tensor(writer, name, tensor.numpy(), config, stored, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_words(writer: gguf.GGUFWriter, words: dict[str, Any]) -> None:
    writer.add_tokenizer_model(words["model"])
    if "pre" in words:
        writer.add_tokenizer_pre(words["pre"])
    writer.add_token_list(words["tokens"])
    writer.add_token_types(words["kinds"])
    if "merges" in words:
        writer.add_token_merges(words["merges"])
    if "scores" in words:
        writer.add_token_scores(words["scores"])
    for key, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id), ("pad", writer.add_pad_token_id)):
        if key in words:
            add(words[key])
    if "chat" in words:
        writer.add_chat_template(words["chat"])


def _write_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray[Any, Any], config: Any, stored: str, architecture: str) -> None:
    import gguf
    from gguf.quants import quantize

    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    heads = {".attn_q.": config.num_attention_heads, ".attn_k.": config.num_key_value_heads}
    for part, count in heads.items():
        if part in name and architecture == "llama":  # the two numbers that are turned together stand side by side
            array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    kind = gguf.GGMLQuantizationType[stored]
    if array.ndim == 1 or kind is gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, array.astype(np.float32))
    else:
        writer.add_tensor(name, quantize(array.astype(np.float32), kind), raw_dtype=kind)
