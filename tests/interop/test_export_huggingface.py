"""Exported to Hugging Face folders: the oracle is transformers itself, which loads them with its Auto classes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers as hf
from tokenizers import processors

from regard.bundle import load_bundle, save_bundle
from regard.data.batch import Tokens
from regard.errors import RegardError
from regard.interop.architectures import ARCHITECTURES
from regard.interop.export import export
from regard.interop.huggingface import import_folder, load_folder
from regard.interop.original import ExportError, Original
from regard.interop.rewriting import Form, as_halves, as_table, biased, unscaled
from regard.models import Network, build
from regard.presets import preset
from regard.shipped import shipped
from regard.text.tokenizer import Tokenizer
from tests.closeness import assert_close
from tests.interop.exported import FEW, bundle

GPT: dict[str, Any] = {"norm_place": "before", "positions": "learned", "activation": "gelu-tanh", "embedding_scale": False}
LLAMA: dict[str, Any] = {
    "norm": "rms", "norm_place": "before", "positions": "rotary", "position_layout": "halves", "activation": "swiglu", "bias": "none",
    "embedding_scale": False,
}  # fmt: skip
BERT: dict[str, Any] = {
    "positions": "learned",
    "embedding_norm": True,
    "embedding_scale": False,
    "activation": "gelu",
    "norm_epsilon": 1e-12,
}
T5: dict[str, Any] = {
    "norm": "rms", "norm_place": "before", "positions": "relative", "attention_scale": 1.0, "head_width": 5, "bias": "none",
    "embedding_scale": False, "logit_scale": 24**-0.5, "start_token": 0,
}  # fmt: skip
LONGER = {"kind": "llama3", "factor": 4.0, "original_context": 32}
FIRST: dict[str, Any] = {"labels": ["no", "yes", "maybe"], "pooling": "first", "pooler": True}
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "translator": ("PegasusForConditionalGeneration", "seq2seq", {"norm_place": "before", "decoder_layers": 1}),
    "pegasus-untied": (
        "PegasusForConditionalGeneration", "seq2seq",
        {"norm_place": "before", "tied": False, "output_bias": True, "position_layout": "halves", "embedding_scale": False,
         "activation": "silu"},
    ),
    "blenderbot": ("BlenderbotForConditionalGeneration", "seq2seq", {"norm_place": "before", "positions": "learned", "activation": "gelu"}),
    "mbart": ("MBartForConditionalGeneration", "seq2seq", {"norm_place": "before", "positions": "learned", "embedding_norm": True}),
    "paper": ("MarianMTModel", "seq2seq", {"decoder_layers": 1}),
    "marian-untied": ("MarianMTModel", "seq2seq", {"tied": False, "output_bias": True}),
    "bart": ("BartForConditionalGeneration", "seq2seq", {"embedding_norm": True}),
    "t5": ("T5ForConditionalGeneration", "seq2seq", T5),
    "t5-gated": ("T5ForConditionalGeneration", "seq2seq", T5 | {"activation": "geglu-tanh", "tied": False, "logit_scale": 1.0}),
    "gpt2": ("GPT2LMHeadModel", "lm", GPT),
    "gpt2-paper": ("GPT2LMHeadModel", "lm", {"norm_place": "before", "position_layout": "interleaved", "norm_epsilon": 1e-6}),
    "neox": ("GPTNeoXForCausalLM", "lm", GPT | {"positions": "rotary", "tied": False}),
    "llama": ("LlamaForCausalLM", "lm", LLAMA | {"kv_heads": 2}),
    "llama-biased": (
        "LlamaForCausalLM", "lm", LLAMA | {"bias": "all", "head_width": 8, "tied": False, "rotary_scaling": LONGER, "logit_scale": 0.5},
    ),
    "llama-scaled": ("LlamaForCausalLM", "lm", LLAMA | {"position_layout": "interleaved", "embedding_scale": True, "activation": "geglu"}),
    "mistral": ("MistralForCausalLM", "lm", LLAMA | {"window": 5}),
    "llama-qkv": ("LlamaForCausalLM", "lm", LLAMA | {"bias": "qkv"}),
    "qwen2": ("Qwen2ForCausalLM", "lm", LLAMA | {"bias": "qkv", "kv_heads": 1}),
    "qwen2-window": ("Qwen2ForCausalLM", "lm", LLAMA | {"bias": "qkv", "window": 7}),
    "bert": ("BertForMaskedLM", "encoder", BERT | {"masked_words": True}),
    "bert-scaled": ("BertForMaskedLM", "encoder", BERT | {"masked_words": True, "embedding_scale": True, "positions": "sinusoidal"}),
    "bert-labels": ("BertForSequenceClassification", "encoder", BERT | FIRST | {"token_types": 2}),
    "bert-bare": ("BertModel", "encoder", BERT),
    "bert-pooled": ("BertModel", "encoder", BERT | {"pooler": True, "pooling": "first"}),
    "distilbert": ("DistilBertForSequenceClassification", "encoder", BERT | FIRST | {"pooler_activation": "relu"}),
}  # fmt: skip
AUTO = {
    "seq2seq": hf.AutoModelForSeq2SeqLM, "lm": hf.AutoModelForCausalLM, "BertForMaskedLM": hf.AutoModelForMaskedLM,
    "BertForSequenceClassification": hf.AutoModelForSequenceClassification,
    "DistilBertForSequenceClassification": hf.AutoModelForSequenceClassification,
}  # fmt: skip


def padded(*lengths: int, seed: int = 0) -> Tokens:
    generator = torch.Generator().manual_seed(seed)
    return Tokens.pad([torch.randint(5, 300, (length,), generator=generator).tolist() for length in lengths])


def logits(model: Network, source: Tokens, target: Tokens, name: str) -> torch.Tensor:
    if model.config.kind == "seq2seq":
        return model(source, target)
    if model.config.kind == "lm":
        return model(target)
    states = model(target)
    if name.endswith("SequenceClassification"):
        return model.classify(states, target)
    return model.fill(states) if name.endswith("MaskedLM") else states


def their_logits(theirs: Any, source: Tokens, target: Tokens) -> torch.Tensor:
    if theirs.config.is_encoder_decoder:
        return theirs(source.ids, attention_mask=source.real.long(), decoder_input_ids=target.ids).logits
    found = theirs(target.ids, attention_mask=target.real.long())
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


def shape(name: str, folder: Path, **settings: Any) -> Path:
    _, kind, own = SHAPES[name]
    made = bundle(folder, kind, **own, **settings)
    if name.startswith("qwen2"):
        (made / "tokenizer.json").unlink()  # AutoTokenizer knows one way to split text for Qwen2, and it is not ours
    return made


@pytest.mark.parametrize("name", SHAPES)
@torch.no_grad()
def test_the_same_numbers(name: str, tmp_path: Path) -> None:
    made, kind, settings = SHAPES[name]
    folder = shape(name, tmp_path)
    report = export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    assert report.made == made
    assert (report.texts, report.same, report.close) == (len(FEW), len(FEW), True)
    assert report.difference < 1e-5
    theirs = AUTO.get(kind, AUTO.get(made, hf.AutoModel)).from_pretrained(tmp_path / "out").eval()
    assert type(theirs).__name__ == made
    ours, source, target = load_bundle(folder).model, padded(30, 9, 1), padded(25, 1, 12, seed=1)
    want, got = logits(ours, source, target, made), their_logits(theirs, source, target)
    real = slice(None) if want.dim() == 2 else target.real
    assert_close(got[real], want[real], ours)
    if theirs.config.model_type in ARCHITECTURES and "window" not in settings:
        back = load_folder(tmp_path / "out")
        assert_close(logits(back, source, target, made)[real], want[real], back)


@pytest.mark.parametrize("name", ["marian-untied", "bart", "t5", "gpt2", "llama", "qwen2", "bert-labels"])
def test_out_and_in_again(name: str, tmp_path: Path) -> None:
    """What needed no rewriting comes back with the very same weights."""
    changed = {"marian-untied": {"position_layout": "halves"}, "bart": {"positions": "learned"}}
    folder = shape(name, tmp_path, **changed.get(name, {}))
    export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    import_folder(tmp_path / "out", tmp_path / "again")
    ours, again = load_bundle(folder).model, load_bundle(tmp_path / "again").model
    want, got = ours.state_dict(), again.state_dict()
    if name == "bart":
        assert not got.pop("deembed.bias").any()  # of theirs, which ours did not have
    assert got.keys() == want.keys()
    for key in want:
        assert torch.equal(got[key], want[key]), key
    kept = (
        "width",
        "layers",
        "heads",
        "norm",
        "norm_place",
        "positions",
        "activation",
        "bias",
        "tied",
        "context",
        "start_token",
        "end_token",
    )
    for key in kept:
        assert getattr(again.config, key) == getattr(ours.config, key)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("seq2seq", {}),
        ("seq2seq", {"kind": "word", "size": 200, "lowercase": True}),
        ("lm", {"kind": "unigram"}),
        ("encoder", {"kind": "char", "size": 90}),
    ],
)
def test_the_same_tokens(kind: str, words: dict[str, Any], tmp_path: Path) -> None:
    settings = {"seq2seq": {"norm_place": "before"}, "lm": GPT, "encoder": BERT}[kind]
    tags = ("it", "de") if kind == "seq2seq" else ()
    folder = bundle(tmp_path, kind, tags=tags, words=words, **settings)
    export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    theirs, ours = hf.AutoTokenizer.from_pretrained(tmp_path / "out"), Tokenizer.load(folder / "tokenizer.json")
    for text in [*FEW, "", " two  spaces ", "Ünïcode 🦆 मैं", "line\nbreak\ttab", "don't (do) it, please !"]:
        own = ours.encode(text, "de" if tags else None)
        want = {"seq2seq": [*own, 2], "lm": [1, *own], "encoder": [1, *own, 2]}[kind]
        assert theirs(f"<to:de>{text}" if tags else text)["input_ids"] == want
        assert theirs.decode(want, skip_special_tokens=True) == ours.decode(want)
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.mask_token_id) == (0, 1, 2, 3)
    assert theirs.model_max_length == 64
    batch = theirs(list(FEW), padding=True, return_tensors="pt")
    assert set(batch) == {"input_ids", "attention_mask"}
    assert bool(batch["attention_mask"][0, 0]) == (kind != "lm")  # padding is on the left where something is to follow


def from_elsewhere(folder: Path, kind: str) -> None:
    """A model and a tokenizer that others made."""
    if kind == "bert":
        library = tokenizers.BertWordPieceTokenizer()
        library.train_from_iterator(FEW, vocab_size=200, min_frequency=1, show_progress=False)
        names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
        frame = processors.TemplateProcessing(
            "[CLS] $A [SEP]", special_tokens=[(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        )
        shape = {
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 64,
        }
        model: Any = hf.BertForMaskedLM(hf.BertConfig(vocab_size=library.get_vocab_size(), **shape))
    else:
        library = tokenizers.ByteLevelBPETokenizer()
        library.train_from_iterator(FEW, vocab_size=300, min_frequency=1, special_tokens=["<|endoftext|>"], show_progress=False)
        names, frame = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"), processors.ByteLevel(trim_offsets=False)
        config = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
        model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=library.get_vocab_size(), **config))
    plain = tokenizers.Tokenizer.from_str(library.to_str())
    plain.post_processor = frame
    hf.PreTrainedTokenizerFast(tokenizer_object=plain, **names).save_pretrained(folder)
    model.save_pretrained(folder)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_foreign_tokenizer_goes_home(kind: str, tmp_path: Path) -> None:
    """In and out again: the same ids as where it came from, special tokens in the text included."""
    from_elsewhere(tmp_path / "theirs", kind)
    import_folder(tmp_path / "theirs", tmp_path / "ours")
    report = export(tmp_path / "ours", "huggingface", tmp_path / "out", sentences=FEW)
    assert report.made == {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}[kind]
    first, again = (hf.AutoTokenizer.from_pretrained(tmp_path / name) for name in ("theirs", "out"))
    for text in [*FEW, "", "two  spaces", {"bert": "a [MASK] film", "gpt2": "one<|endoftext|>two"}[kind], "Ünïcode 🦆"]:
        ids = first(text)["input_ids"]
        assert again(text)["input_ids"] == ids
        assert again.decode(ids, skip_special_tokens=True) == first.decode(ids, skip_special_tokens=True)
    for name in ("pad_token", "bos_token", "mask_token"):
        if getattr(first, name) is not None:
            assert getattr(again, name) == getattr(first, name)


def test_two_tokenizers_are_refused(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "seq2seq", norm_place="before")
    (folder / "source_tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    with pytest.raises(ExportError, match=re.escape("writes with another (source_tokenizer.json), and AutoTokenizer knows one")):
        export(folder, "huggingface", tmp_path / "out")


def test_generate_writes_what_we_write(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "seq2seq", tags=("it", "de"), norm_place="before")
    export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    model, tokenizer = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    original = Original(folder, FEW)
    for number, text in enumerate(FEW):
        given = tokenizer(f"<to:{('it', 'de')[number % 2]}>{text}", return_tensors="pt")
        assert given["input_ids"][0].tolist() == original.rows[number]
        written = model.generate(**given)[0].tolist()[1:]
        own = original.written[number]
        assert written[: len(own)] == own
        assert not {0, 1, 3, 4, 5} & set(written[: len(own)])  # nothing that stands for no text


@pytest.mark.parametrize("rewriting", [as_halves, as_table, unscaled, biased])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("seq2seq", {"norm_place": "before", "tied": False}),
        ("seq2seq", {"logit_scale": 0.3}),
        ("lm", {"positions": "rotary", "norm_place": "before", "kv_heads": 2, "bias": "qkv"}),
        ("lm", {}),
        ("encoder", BERT | FIRST | {"positions": "sinusoidal", "masked_words": True, "embedding_scale": True}),
    ],
)
@torch.no_grad()
def test_rewritten_is_the_same_model(rewriting: Any, kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    model = load_bundle(bundle(tmp_path, kind, **settings)).model.double()
    form = rewriting(Form(model.config, model.state_dict()))
    other = build(form.config).double().eval()
    other.load_state_dict(form.tensors)
    source, target = padded(20, 6), padded(11, 7, seed=1)
    heads = ("SequenceClassification", "MaskedLM", "") if kind == "encoder" else ("",)
    for head in heads:
        want, got = logits(model, source, target, head), logits(other, source, target, head)
        if head == "" and kind == "encoder" and rewriting is as_halves:
            want = torch.cat((want[..., 0::2], want[..., 1::2]), -1)  # the vectors themselves are in another order
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("seq2seq", {"norm_place": "before", "norm_epsilon": 1e-6}, "nearest is Pegasus, but norm_epsilon is 1e-06 and must be 1e-05"),
        ("seq2seq", {"norm_place": "before", "activation": "swiglu"}, "activation is 'swiglu' and must be 'relu' or 'gelu'"),
        ("seq2seq", {"norm_place": "before", "positions": "alibi"}, "positions is 'alibi' and must be 'sinusoidal' there"),
        ("seq2seq", {"norm_place": "before", "source_vocabulary": 320}, "source_vocabulary is 320 and must be unset there"),
        ("lm", GPT | {"mask": "prefix"}, "nearest is GPT-2, but mask is 'prefix' and must be 'causal' there"),
        ("lm", LLAMA | {"norm_place": "after"}, "nearest is Llama, but norm_place is 'after' and must be 'before' there"),
        ("lm", LLAMA | {"bias": "qkv", "window": 7}, "AutoTokenizer splits text for Qwen2 in a way of its own, and this"),
        ("lm", LLAMA | {"output_bias": True}, "output_bias is true and must be false there"),
        ("encoder", BERT | {"labels": ["no", "yes"]}, "pooling is 'mean' and must be 'first' to choose labels there; pooler is false"),
        ("encoder", BERT | {"norm_place": "before"}, "norm_place is 'before' and must be 'after' there"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_is_refused(kind: str, settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    folder = bundle(tmp_path, kind, **settings)
    with pytest.raises(ExportError, match=re.escape(says)):
        export(folder, "huggingface", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "made.json"]


def test_recurrent_models_are_refused(tmp_path: Path) -> None:
    folder = save_bundle(build(preset("rnn-attention", vocabulary=40, width=8)), tmp_path / "bundle")
    with pytest.raises(ExportError, match="Hugging Face has no recurrent encoder-decoder"):
        export(folder, "huggingface", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_every_end_token_is_told(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "lm", **LLAMA, stop_tokens=[7, 9])
    export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == [2, 7, 9]
    import_folder(tmp_path / "out", tmp_path / "again")
    assert load_bundle(tmp_path / "again").config.stop_tokens == (7, 9)


def test_a_head_may_be_chosen(tmp_path: Path) -> None:
    """The same encoder without the head that has no counterpart there."""
    folder = bundle(tmp_path, "encoder", **BERT, labels=["no", "yes"], masked_words=True)
    made = {"none": "BertModel", "masked-words": "BertForMaskedLM"}
    for head, wanted in made.items():
        assert export(folder, "huggingface", tmp_path / head, head=head, sentences=FEW).made == wanted
    relu = bundle(tmp_path / "relu", "encoder", **BERT, **FIRST, pooler_activation="relu")
    assert export(relu, "huggingface", tmp_path / "vectors", head="none", sentences=FEW).made == "BertModel"
    with pytest.raises(ExportError, match="the head 'lables' is unknown; did you mean 'labels'"):
        export(folder, "huggingface", tmp_path / "out", head="lables")
    other = bundle(tmp_path / "other", "lm", **GPT)
    with pytest.raises(ExportError, match="heads are an encoder's"):
        export(other, "huggingface", tmp_path / "out", head="none")
    bare = bundle(tmp_path / "bare", "encoder", **BERT)
    with pytest.raises(ExportError, match="no head for labels; it has none"):
        export(bare, "huggingface", tmp_path / "out", head="labels")


def test_labels_have_their_names(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "encoder", **BERT, **FIRST)
    export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "yes", "2": "maybe"}
    asked = hf.pipeline("text-classification", model=str(tmp_path / "out"), tokenizer=str(tmp_path / "out"), device="cpu")
    [best] = asked("What a lovely film!")
    original = Original(folder, ["What a lovely film!"])
    tokens = original.padded(original.rows)
    want = original.encoder.classify(original.encoder(tokens), tokens).softmax(-1)[0].detach()
    assert best["label"] == ("no", "yes", "maybe")[int(want.argmax())]
    assert best["score"] == pytest.approx(float(want.max()), abs=1e-5)


def test_what_is_not_close_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bundle(tmp_path, "lm", **GPT)

    def spoiled(part: Any, tensor: torch.Tensor, *_: int) -> list[torch.Tensor]:
        return [(tensor.T if part.transposed else tensor) * (1.01 if part.ours.endswith("widen.weight") else 1.0)]

    monkeypatch.setattr("regard.interop.export_huggingface.taken_apart", spoiled)
    with pytest.raises(ExportError, match=r"GPT2LMHeadModel does not answer as the model does, so nothing was written: on 6 texts logits"):
        export(folder, "huggingface", tmp_path / "out", sentences=FEW)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer(tmp_path: Path) -> None:
    folder = bundle(tmp_path, "lm", **GPT)
    (folder / "tokenizer.json").unlink()
    assert export(folder, "huggingface", tmp_path / "out", sentences=FEW).close
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_errors_are_regards_own() -> None:
    assert issubclass(ExportError, RegardError)


@pytest.mark.slow
def test_the_translator_that_ships(tmp_path: Path) -> None:
    report = export(shipped()["translator"], "huggingface", tmp_path / "out")
    assert (report.made, report.same) == ("PegasusForConditionalGeneration", report.texts)
    assert report.difference < 1e-5
    model, tokenizer = hf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out"), hf.AutoTokenizer.from_pretrained(tmp_path / "out")
    for to, want in (("it", "Ti amo molto."), ("de", "Ich liebe dich sehr."), ("hi", "मैं तुमसे बहुत प्यार करता हूँ।")):
        written = model.generate(**tokenizer(f"<to:{to}>I love you very much.", return_tensors="pt"), num_beams=4)
        assert tokenizer.decode(written[0], skip_special_tokens=True) == want
