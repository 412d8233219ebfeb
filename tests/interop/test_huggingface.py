"""The strongest oracle there is: other people's models with random weights, imported, give the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from regard.bundle import load_bundle
from regard.data.batch import Tokens
from regard.errors import ConversionError
from regard.interop.huggingface import import_folder
from regard.models import Encoder, LanguageModel, Seq2Seq
from tests.closeness import assert_close

SHAPE = {"vocab_size": 61, "pad_token_id": 0}

LLAMA_SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 96,
}  # fmt: skip
LONGER = {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MODELS: dict[str, Any] = {
    "bert": lambda: hf.BertForMaskedLM(_bert()),
    "bert-bare": lambda: hf.BertModel(_bert()),
    "bert-labels": lambda: hf.BertForSequenceClassification(_bert(num_labels=3, id2label={0: "no", 1: "maybe", 2: "yes"})),
    "roberta": lambda: hf.RobertaForMaskedLM(_roberta()),
    "roberta-bare": lambda: hf.RobertaModel(_roberta(type_vocab_size=2)),
    "roberta-labels": lambda: hf.RobertaForSequenceClassification(_roberta(num_labels=3, id2label={0: "no", 1: "maybe", 2: "yes"})),
    "distilbert": lambda: hf.DistilBertForMaskedLM(_distilbert()),
    "distilbert-bare": lambda: hf.DistilBertModel(_distilbert(sinusoidal_pos_embds=True)),
    "distilbert-labels": lambda: hf.DistilBertForSequenceClassification(
        _distilbert(num_labels=3, id2label={0: "no", 1: "maybe", 2: "yes"})
    ),
    "gpt2": lambda: hf.GPT2LMHeadModel(_gpt2()),
    "t5": lambda: hf.T5ForConditionalGeneration(_t5()),
    "t5-gated": lambda: hf.T5ForConditionalGeneration(_t5(feed_forward_proj="gated-gelu", num_decoder_layers=3)),
    "marian": lambda: hf.MarianMTModel(_marian(activation_function="swish", scale_embedding=True)),
    "marian-relu": lambda: hf.MarianMTModel(_marian(activation_function="relu", decoder_layers=1)),
    "bart": lambda: hf.BartForConditionalGeneration(_bart()),
    "bart-scaled": lambda: hf.BartForConditionalGeneration(_bart(scale_embedding=True, decoder_layers=1, activation_function="relu")),
    "qwen2": lambda: hf.Qwen2ForCausalLM(_qwen2()),
    "qwen2-tied": lambda: hf.Qwen2ForCausalLM(_qwen2(tie_word_embeddings=True)),
    "llama": lambda: hf.LlamaForCausalLM(_llama()),
    "llama-tied": lambda: hf.LlamaForCausalLM(_llama(tie_word_embeddings=True, head_dim=12, attention_bias=True, mlp_bias=True)),
    "llama-long": lambda: hf.LlamaForCausalLM(_llama(rope_parameters=LONGER | {"original_max_position_embeddings": 32})),
    "llama-linear": lambda: hf.LlamaForCausalLM(_llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0})),
}


def _gpt2() -> hf.GPT2Config:
    return hf.GPT2Config(**SHAPE, n_embd=32, n_layer=2, n_head=4, n_positions=96, bos_token_id=1, eos_token_id=2)


def _bert(**settings: Any) -> hf.BertConfig:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 96}
    return hf.BertConfig(**SHAPE, **shape, **settings)


def _roberta(**settings: Any) -> hf.RobertaConfig:
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 98}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return hf.RobertaConfig(vocab_size=61, **ids, **shape, **settings)


def _distilbert(**settings: Any) -> hf.DistilBertConfig:
    return hf.DistilBertConfig(**SHAPE, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=96, **settings)


def _t5(**settings: Any) -> hf.T5Config:
    return hf.T5Config(
        **SHAPE, **({"d_model": 32, "d_kv": 12, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0} | settings)
    )


def _marian(**settings: Any) -> hf.MarianConfig:
    shape = {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 0, "eos_token_id": 2,
        "forced_eos_token_id": None, "max_position_embeddings": 96,
    }  # fmt: skip
    return hf.MarianConfig(**SHAPE, **(shape | settings))


def _bart(**settings: Any) -> hf.BartConfig:
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    return hf.BartConfig(**(_marian().to_dict() | ids | {"activation_function": "gelu", "forced_eos_token_id": 2} | settings))


def _qwen2(**settings: Any) -> hf.Qwen2Config:
    return hf.Qwen2Config(**SHAPE, **(LLAMA_SHAPE | {"eos_token_id": 2, "bos_token_id": None} | settings))


def _llama(**settings: Any) -> hf.LlamaConfig:
    return hf.LlamaConfig(**SHAPE, **(LLAMA_SHAPE | settings))


def saved(name: str, folder: Path) -> Any:
    """A model of theirs with every weight random, so that no two tensors could be swapped unseen, saved to a folder."""
    torch.manual_seed(len(name))
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # Marian's table of sines and cosines is a parameter that is not learned
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for key, buffer in model.named_buffers():
            if key == "final_logits_bias":
                buffer.normal_()
    model.save_pretrained(folder)
    return model


@pytest.fixture
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    theirs = saved(request.param, tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    return theirs, load_bundle(tmp_path / "ours").model


def padded(*lengths: int, seed: int = 0, pad: int = 0) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    return Tokens.pad([torch.randint(3, 61, (length,), generator=generator).tolist() for length in lengths], pad)


def attention_mask(tokens: Tokens) -> torch.Tensor:
    assert tokens.real is not None
    return tokens.real.long()


ENCODERS = [f"{name}{head}" for name in ("bert", "roberta", "distilbert") for head in ("", "-bare", "-labels")]


@pytest.mark.parametrize("both", ENCODERS, indirect=True)
@torch.no_grad()
def test_encoder_gives_the_same(both: tuple[Any, Encoder]) -> None:
    theirs, ours = both
    tokens = padded(9, 4, 1, pad=ours.config.pad_token)
    real = attention_mask(tokens)
    types = (torch.arange(9) > 3).long().expand_as(tokens.ids) * real if ours.config.token_types > 1 else None
    got = theirs(tokens.ids, attention_mask=real, **({} if types is None else {"token_type_ids": types}))
    states = ours(tokens, types)
    if ours.config.masked_words:
        assert_close(ours.fill(states)[tokens.real], got.logits[tokens.real], ours)
    elif ours.config.labels:
        assert ours.config.labels == ("no", "maybe", "yes")
        assert_close(ours.classify(states, tokens), got.logits, ours)
    else:
        assert_close(states[tokens.real], got.last_hidden_state[tokens.real], ours)
        if ours.config.pooler:
            assert_close(ours.pool(states, tokens), got.pooler_output, ours)


LANGUAGE_MODELS = ["gpt2", "llama", "llama-tied", "llama-long", "llama-linear", "qwen2", "qwen2-tied"]
ENCODER_DECODERS = ["t5", "t5-gated", "marian", "marian-relu", "bart", "bart-scaled"]


@pytest.mark.parametrize("both", LANGUAGE_MODELS, indirect=True)
@torch.no_grad()
def test_language_model_gives_the_same(both: tuple[Any, LanguageModel]) -> None:
    theirs, ours = both
    tokens = padded(40, 17, 1)
    want = theirs(tokens.ids, attention_mask=attention_mask(tokens)).logits
    assert_close(ours(tokens)[tokens.real], want[tokens.real], ours)


@pytest.mark.parametrize("both", LANGUAGE_MODELS, indirect=True)
@torch.no_grad()
def test_language_model_decodes_the_same(both: tuple[Any, LanguageModel]) -> None:
    """Prompts of different lengths, then word by word with our cache, against theirs over each whole sequence."""
    theirs, ours = both
    prompt, more = padded(20, 7, 1), torch.randint(3, 61, (3, 6), generator=torch.Generator().manual_seed(5))
    state, first = ours.start(ours.encode(prompt), 30)
    steps = [first, *(ours.step(more[:, i : i + 1], state)[:, 0] for i in range(6))]
    for row, length in enumerate(prompt.lengths.tolist()):
        whole = torch.cat((prompt.ids[row, :length], more[row]))[None]
        want = theirs(whole).logits[0, length - 1 :]
        assert_close(torch.stack([step[row] for step in steps]), want, ours)


@pytest.mark.parametrize("both", ENCODER_DECODERS, indirect=True)
@torch.no_grad()
def test_encoder_decoder_gives_the_same(both: tuple[Any, Seq2Seq]) -> None:
    theirs, ours = both
    pad = ours.config.pad_token
    source, target = padded(40, 9, 1, pad=pad), padded(30, 1, 12, seed=1, pad=pad)
    mask = {"attention_mask": attention_mask(source), "decoder_attention_mask": attention_mask(target)}
    want = theirs(source.ids, decoder_input_ids=target.ids, **mask).logits
    assert_close(ours(source, target)[target.real], want[target.real], ours)


@pytest.mark.parametrize("both", ENCODER_DECODERS, indirect=True)
@torch.no_grad()
def test_encoder_decoder_decodes_the_same(both: tuple[Any, Seq2Seq]) -> None:
    theirs, ours = both
    source, more = padded(25, 9, 1, pad=ours.config.pad_token), torch.randint(3, 61, (3, 7), generator=torch.Generator().manual_seed(5))
    state, first = ours.start(ours.encode(source), 20)
    steps = torch.stack([first, *(ours.step(more[:, i : i + 1], state)[:, 0] for i in range(7))], 1)
    begin = torch.full((3, 1), theirs.config.decoder_start_token_id)
    want = theirs(source.ids, attention_mask=attention_mask(source), decoder_input_ids=torch.cat((begin, more), 1)).logits
    assert_close(steps, want, ours)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_counts_agree(name: str, tmp_path: Path) -> None:
    theirs = saved(name, tmp_path / "theirs")
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    ours = load_bundle(tmp_path / "ours").model
    want = sum(parameter.numel() for parameter in theirs.parameters())
    if name.startswith("marian"):  # sinusoidal tables are parameters there and computed here; their output bias is a buffer
        want += 61 - 2 * theirs.model.encoder.embed_positions.weight.numel()
    if name.startswith("bart"):
        want += 61 - 2 * 2 * 32  # two positions on either side that no token ever has
    if name.startswith("roberta"):
        want -= 2 * 32
    assert sum(parameter.numel() for parameter in ours.parameters()) == want


def test_spelling_of_old_files_is_understood(tmp_path: Path) -> None:
    """LayerNorm.gamma and beta, a saved copy of the tied output weight, and buffers with nothing to learn."""
    saved("bert", tmp_path / "new")
    old = tmp_path / "old"
    old.mkdir()
    spelling = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for key, tensor in load_file(tmp_path / "new" / "model.safetensors").items():
        tail = ".".join(key.split(".")[-2:])
        tensors[key.replace(tail, spelling.get(tail, tail))] = tensor
    tensors["bert.embeddings.position_ids"] = torch.arange(96)
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    save_file(tensors, old / "model.safetensors")
    (old / "config.json").write_text((tmp_path / "new" / "config.json").read_text())
    import_folder(old, tmp_path / "from-old")
    import_folder(tmp_path / "new", tmp_path / "from-new")
    ours, same = (load_bundle(tmp_path / name).model.state_dict() for name in ("from-old", "from-new"))
    assert ours.keys() == same.keys()
    assert all(torch.equal(ours[key], same[key]) for key in ours)


def rewrite(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("gpt2", {"model_type": "lama"}, r"model_type 'lama' can't be imported; did you mean 'llama'\?"),
        ("gpt2", {"model_type": "xlnet"}, "known: bart, bert, distilbert, gpt2, llama, marian, qwen2, roberta, t5"),
        ("gpt2", {"activation_function": "mish"}, "activation 'mish' is not known"),
        ("gpt2", {"n_head": 5}, "heads = 5 does not divide width = 32"),
        ("gpt2", {"n_layer": 3}, "lack 'h.2.attn.c_attn.weight'"),
        ("gpt2", {"n_layer": 1}, "has no place in our model"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True is a variant"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type = 'yarn' is not known"),
        ("llama", {"intermediate_size": 50}, "'decoder.layers.0.feedforward.*' is .* in the weights but .* by the config"),
        ("gpt2", {"model_type": []}, r"model_type \[\] can't be imported"),
        ("gpt2", {"architectures": ["GPT2ForTokenClassification"]}, "a GPT2ForTokenClassification can't be imported; known: GPT2Model"),
        ("gpt2", {"activation_function": []}, "has a value of the wrong kind"),
        ("gpt2", {"eos_token_id": []}, "has a value of the wrong kind"),
        ("llama", {"num_hidden_layers": 10**6}, "'layers' = 1000000"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is a variant"),
        ("t5", {"feed_forward_proj": None}, "has a value of the wrong kind"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings = False"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act = 'relu' is a variant"),
        ("bart", {"add_final_layer_norm": True}, "add_final_layer_norm = True is a variant"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window = True is a variant"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_refused(name: str, settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    saved(name, tmp_path / "theirs")
    rewrite(tmp_path / "theirs", **settings)
    with pytest.raises(ConversionError, match=says):
        import_folder(tmp_path / "theirs", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_a_missing_setting_is_named(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rms_norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionError, match=r"config\.json lacks 'rms_norm_eps'"):
        import_folder(tmp_path, tmp_path / "ours")


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"has no config\.json"):
        import_folder(tmp_path, tmp_path / "out")
    with pytest.raises(ConversionError, match="is no folder"):
        import_folder(tmp_path / "nowhere", tmp_path / "out")


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConversionError, match="pickled weights, which can run code"):
        import_folder(tmp_path, tmp_path / "out")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    saved("gpt2", tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConversionError, match=r"model\.safetensors is damaged or cut short"):
        import_folder(tmp_path, tmp_path / "out")
