"""Folders with their tokenizers: the bundle reads raw text into the very ids that transformers gives, and back into the same text."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers as hf
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

import regard
from regard.door import Model
from regard.errors import ConversionError, RegardError
from regard.interop.huggingface import import_folder
from regard.text.foreign import ForeignTokenizer
from tests.interop.sentences import LINES, PROBES
from tests.interop.test_huggingface import LLAMA_SHAPE

sentencepiece = pytest.importorskip("sentencepiece", reason="needs the extra interop")

ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ENCODER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 130}
PAIR = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 128, "forced_eos_token_id": None}  # fmt: skip


def word_pieces(folder: Path, size: int = 400) -> None:
    library = tokenizers.BertWordPieceTokenizer()
    library.train_from_iterator(LINES, vocab_size=size, min_frequency=1, show_progress=False)
    library.save_model(str(folder))


def byte_pairs(special: list[str], folder: Path) -> None:
    library = tokenizers.ByteLevelBPETokenizer()
    library.train_from_iterator(LINES, vocab_size=400, min_frequency=1, special_tokens=special, show_progress=False)
    library.save_model(str(folder))


def sentence_pieces(path: Path, lines: list[str] = LINES, size: int = 160, **settings: Any) -> None:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(path), vocab_size=size, hard_vocab_limit=False, minloglevel=2, **settings
    )
    path.with_name(f"{path.name}.model").rename(path)
    path.with_name(f"{path.name}.vocab").unlink()


def spm_t5(folder: Path) -> None:
    sentence_pieces(folder / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def spm_llama(folder: Path) -> None:
    sentence_pieces(
        folder / "tokenizer.model",
        size=400,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}))


def spm_marian(folder: Path) -> None:
    """Two models that split differently, and a vocabulary in an order of its own, from which a few pieces of each are missing."""
    sentence_pieces(folder / "source.spm")
    sentence_pieces(folder / "target.spm", [line[::-1] for line in LINES])
    sides = [sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm")) for side in ("source", "target")]
    pieces = sorted({side.id_to_piece(id) for side in sides for id in range(3, len(side))})
    kept = [piece for place, piece in enumerate(pieces) if place % 23]
    names = ["</s>", "<unk>", ">>fra<<", ">>deu<<", *kept, "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({name: id for id, name in enumerate(names)}))


def llama_3(folder: Path) -> None:
    """Byte-level BPE with its own splitting and a start token that the post-processor adds, as a tokenizer.json alone."""
    library = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = pre_tokenizers.Split(Regex(words), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    library.add_special_tokens([AddedToken(name, special=True) for name in ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")])
    start = ("<|begin_of_text|>", library.token_to_id("<|begin_of_text|>"))
    library.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(single=f"{start[0]} $A", special_tokens=[start])]
    )
    chat = "{% for message in messages %}{{ message.content }}<|eot_id|>{% endfor %}"
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "clean_up_tokenization_spaces": True, "chat_template": chat}
    hf.PreTrainedTokenizerFast(tokenizer_object=library, **names).save_pretrained(folder)


def cased(folder: Path) -> None:
    word_pieces(folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": False, "tokenizer_class": "BertTokenizer", "strip_accents": False, "tokenize_chinese_chars": False})
    )


def qwen_2(folder: Path) -> None:
    byte_pairs([], folder)
    count = len(json.loads((folder / "vocab.json").read_text()))
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    added = {str(count + place): {"content": name, "special": True} for place, name in enumerate(names)}
    said = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"added_tokens_decoder": added, "add_bos_token": False}))


Made = Callable[[Path], None]
FILES: dict[str, tuple[str, Made]] = {
    "bert": ("bert", word_pieces),
    "bert-cased": ("bert", cased),
    "distilbert": ("distilbert", word_pieces),
    "roberta": ("roberta", partial(byte_pairs, ROBERTA)),
    "bart": ("bart", partial(byte_pairs, ROBERTA)),
    "gpt2": ("gpt2", partial(byte_pairs, ["<|endoftext|>"])),
    "qwen2": ("qwen2", qwen_2),
    "llama": ("llama", spm_llama),
    "llama-3": ("llama", llama_3),
    "t5": ("t5", spm_t5),
    "marian": ("marian", spm_marian),
}


def network(kind: str, size: int, tokenizer: Any) -> Any:
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    ids = {name: id for name, id in ids.items() if id is not None}
    shape = {"vocab_size": size, **ids}
    match kind:
        case "bert":
            return hf.BertForMaskedLM(hf.BertConfig(**shape, **ENCODER))
        case "distilbert":
            return hf.DistilBertForMaskedLM(hf.DistilBertConfig(**shape, dim=16, n_layers=1, n_heads=2, hidden_dim=32))
        case "roberta":
            return hf.RobertaForMaskedLM(hf.RobertaConfig(**shape, **ENCODER))
        case "gpt2":
            return hf.GPT2LMHeadModel(hf.GPT2Config(**shape, n_embd=16, n_layer=1, n_head=2))
        case "llama":
            return hf.LlamaForCausalLM(hf.LlamaConfig(**shape, **LLAMA_SHAPE))
        case "qwen2":
            return hf.Qwen2ForCausalLM(hf.Qwen2Config(**shape, **LLAMA_SHAPE))
        case "t5":
            return hf.T5ForConditionalGeneration(
                hf.T5Config(**shape, d_model=16, num_layers=1, num_heads=2, d_kv=8, d_ff=32, decoder_start_token_id=0)
            )
        case "bart":
            return hf.BartForConditionalGeneration(hf.BartConfig(**shape, **PAIR, decoder_start_token_id=ids["eos_token_id"]))
        case _:
            return hf.MarianMTModel(hf.MarianConfig(**shape, **PAIR, decoder_start_token_id=ids["pad_token_id"]))


def folder_of(name: str, folder: Path) -> tuple[Path, Any]:
    """A folder with a tokenizer's files and a network that goes with them, and the tokenizer as transformers reads it."""
    kind, make = FILES[name]
    folder.mkdir()
    make(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what transformers would have installed
        hf.AutoConfig.for_model(kind).save_pretrained(folder)
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    network(kind, len(tokenizer), tokenizer).save_pretrained(folder)
    return folder, tokenizer


def imported(folder: Path, out: Path) -> Model:
    import_folder(folder, out)
    return regard.load(out, device="cpu")


def foreign(model: Model) -> ForeignTokenizer:
    assert isinstance(model.source_tokenizer, ForeignTokenizer)
    return model.source_tokenizer


def check_same(model: Model, theirs: Any, probes: list[str]) -> None:
    ours = foreign(model)
    assert ours.frame is not None
    for text in probes:
        want = theirs(text)["input_ids"]
        assert ours.frame.put(ours.encode(text)) == want, text
        assert ours.decode(want) == theirs.decode(want, skip_special_tokens=True), text
    assert ours.decode_batch([theirs(text)["input_ids"] for text in probes[:3]]) == [ours.decode(ours.encode(text)) for text in probes[:3]]
    for name in ("mask", "unk", "pad"):
        id = getattr(theirs, f"{name}_token_id", None)
        role = {"mask": ours.roles.mask, "unk": ours.roles.unknown, "pad": ours.roles.pad}[name]
        assert role is None or id is None or role == id


# transformers 5 no longer gives <mask> the space before it where there is no tokenizer.json; that of every published RoBERTa does.
SLOW = [name for name in FILES if name not in ("llama", "llama-3")]


@pytest.mark.parametrize("name", SLOW)
def test_vocabulary_files_give_the_same_ids(name: str, tmp_path: Path) -> None:
    folder, theirs = folder_of(name, tmp_path / "theirs")
    assert not (folder / "tokenizer.json").exists()
    check_same(imported(folder, tmp_path / "ours"), theirs, PROBES)


@pytest.mark.parametrize("name", [name for name in FILES if name != "marian"])
def test_a_tokenizer_json_gives_the_same_ids(name: str, tmp_path: Path) -> None:
    folder, tokenizer = folder_of(name, tmp_path / "files")
    tokenizer.save_pretrained(tmp_path / "theirs")
    for file in ("config.json", "model.safetensors"):
        (folder / file).rename(tmp_path / "theirs" / file)
    assert (tmp_path / "theirs" / "tokenizer.json").exists()
    theirs = hf.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    probes = [*PROBES, "a <mask> b", "walk<mask> on"] if name in ("roberta", "bart") else PROBES
    check_same(imported(tmp_path / "theirs", tmp_path / "ours"), theirs, probes)


def test_sentencepiece_itself_gives_the_same_ids_as_a_llama_folder(tmp_path: Path) -> None:
    folder, _ = folder_of("llama", tmp_path / "theirs")
    ours = foreign(imported(folder, tmp_path / "ours"))
    original = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert ours.frame is not None
    for text in PROBES:
        if "<" not in text:  # SentencePiece knows nothing of special tokens in a text
            assert ours.frame.put(ours.encode(text)) == original.encode(text, add_bos=True)
            assert ours.decode(original.encode(text)) == original.decode(original.encode(text))


def test_a_tokenizer_json_counts_whatever_class_is_named(tmp_path: Path) -> None:
    """SmolLM splits numbers into digits and is said to be a GPT2Tokenizer, which does not: transformers 5 then forgets the digits."""
    folder, tokenizer = folder_of("gpt2", tmp_path / "theirs")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.save_pretrained(folder)
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = foreign(imported(folder, tmp_path / "ours"))
    for text in PROBES:
        assert ours.encode(text) == library.encode(text).ids
    assert "19" not in "".join(f"{piece}|" for piece in ours.pieces(ours.encode("In 1984")))


def test_either_side_of_a_translator_splits_in_its_own_way(tmp_path: Path) -> None:
    folder, theirs = folder_of("marian", tmp_path / "theirs")
    model = imported(folder, tmp_path / "ours")
    writes, reads = model.tokenizer, model.source_tokenizer
    assert reads.fingerprint != writes.fingerprint
    assert reads.size == writes.size == model.config.vocabulary == len(theirs)
    for text in PROBES:
        want = theirs(text_target=text)["input_ids"]
        assert writes.framed(writes.encode(text), None) == want  # type: ignore[arg-type]  # its own frame
    for id in [0, 1, *range(4, writes.size)]:  # whichever the model writes, but the names of languages, which it never does
        assert writes.decode([id]) == theirs.decode([id], skip_special_tokens=True)
    assert model.languages == ("fra", "deu")
    said = theirs(">>deu<< A little girl.")["input_ids"]
    assert [*reads.encode("A little girl.", "deu"), model.config.end_token] == said
    assert not re.search("\ue000", "".join(writes.pieces(range(writes.size))))
    with pytest.raises(RegardError, match="knows no 'ita' to write; known: deu, fra"):
        reads.tag_id("ita")


def test_names_of_special_tokens_can_be_read_as_ordinary_text(tmp_path: Path) -> None:
    folder, theirs = folder_of("llama-3", tmp_path / "theirs")
    ours = foreign(imported(folder, tmp_path / "ours"))
    text = "Hello<|eot_id|><|begin_of_text|>"
    assert ours.encode(text) == ours.encode(text, markup=True) == theirs(text, add_special_tokens=False)["input_ids"]
    plain = ours.encode(text, markup=False)
    assert not set(plain) & ours.special_ids
    assert ours.decode(plain) == text
    assert ours.roles.chat == theirs.chat_template


# The verbs, with raw text


def test_text_is_filled_as_the_original_reads_it(tmp_path: Path) -> None:
    import torch

    for name in ("bert", "roberta"):
        folder, _ = folder_of(name, tmp_path / name)
        tokenizer = hf.AutoTokenizer.from_pretrained(folder)
        if name == "roberta":
            tokenizer.save_pretrained(folder)
        theirs = hf.AutoModelForMaskedLM.from_pretrained(folder).eval()
        model = imported(folder, tmp_path / f"{name}-ours")
        given = tokenizer(f"The capital of {tokenizer.mask_token} is Paris, {tokenizer.mask_token}.", return_tensors="pt")
        with torch.no_grad():
            logits = theirs(**given).logits[0]
        logits[:, sorted(foreign(model).special_ids)] = float("-inf")
        answer, found = model.fill("The capital of [MASK] is Paris, [MASK]."), []
        for place, choices in zip((given["input_ids"][0] == tokenizer.mask_token_id).nonzero()[:, 0], answer.choices, strict=True):
            best = logits[place].softmax(-1).topk(5)
            assert [choice.probability for choice in choices] == pytest.approx(best.values.tolist(), abs=1e-5)
            pieces = model.tokenizer.pieces(best.indices.tolist())
            assert [choice.word for choice in choices] == [piece.strip() for piece in pieces]
            found.append(pieces[0])
        space = " " * (name == "bert")  # RoBERTa's pieces have it within
        assert answer.text == f"The capital of{space}{found[0]} is Paris,{space}{found[1]}."
    with pytest.raises(RegardError, match=r"text 1: there is no \[MASK\] to fill"):
        model.fill("The capital of France")
    with pytest.raises(RegardError, match=r"text 1: \d+ tokens, and .* reads 128; shorten it"):
        model.fill("[MASK] " * 200)


@pytest.mark.parametrize("name", ["gpt2", "llama-3", "qwen2"])
def test_prompts_are_continued_as_by_the_original(name: str, tmp_path: Path) -> None:
    folder, tokenizer = folder_of(name, tmp_path / "theirs")
    theirs = hf.AutoModelForCausalLM.from_pretrained(folder).eval()
    model = imported(folder, tmp_path / "ours")
    never = sorted(foreign(model).special_ids - {model.config.end_token})
    for prompt in ("The capital", "a", " two  men\n"):
        given = tokenizer(prompt, return_tensors="pt")
        written = theirs.generate(**given, do_sample=False, max_new_tokens=12, suppress_tokens=never, pad_token_id=0)
        new = written[0, given["input_ids"].shape[1] :].tolist()
        answer = model.generate(prompt, beam_size=1, max_length=12)
        assert list(answer.ids) == [id for id in new if id != model.config.end_token]
        assert prompt + answer.text == tokenizer.decode(written[0], skip_special_tokens=True)
        assert "".join(model.stream(prompt, temperature=0, max_length=12)) == answer.text
    assert model.generate("", beam_size=1, max_length=3).text is not None  # begins with the start token


@pytest.mark.parametrize("name", ["bart", "t5", "marian"])
def test_translations_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    folder, tokenizer = folder_of(name, tmp_path / "theirs")
    theirs = hf.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    model = imported(folder, tmp_path / "ours")
    never = sorted(foreign(model).special_ids - {model.config.end_token})
    forced = {"forced_bos_token_id": tokenizer.bos_token_id} if name == "bart" else {}
    to = "fra" if name == "marian" else None
    for text in LINES[:4]:
        given = tokenizer(f">>fra<< {text}" if to else text, return_tensors="pt")
        never = [id for id in never if id not in forced.values()]
        written = theirs.generate(
            **given,
            **forced,
            num_beams=1,
            do_sample=False,
            max_new_tokens=12,
            forced_eos_token_id=None,
            suppress_tokens=never,
            bad_words_ids=None,
        )[0, 1:].tolist()
        answer = model.translate(text, to, beam_size=1, max_length=12)
        assert list(answer.ids) == [id for id in written if id != model.config.end_token]
        assert answer.text == tokenizer.decode(written, skip_special_tokens=True)
        assert model.score(text, answer.text, to=to).log_probability < 0


# What can't be read


def test_damaged_and_incomplete_folders_are_named(tmp_path: Path) -> None:
    folder, _ = folder_of("t5", tmp_path / "theirs")
    whole = (folder / "spiece.model").read_bytes()
    for content in (whole[:-5], b"", b"\x0a\xff", b"not a model at all"):
        (folder / "spiece.model").write_bytes(content)
        with pytest.raises(ConversionError, match=r"spiece\.model is (damaged or )?no SentencePiece model"):
            import_folder(folder, tmp_path / "ours")
    (folder / "spiece.model").unlink()
    (folder / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(ConversionError, match="the tokenizer is damaged or of another format"):
        import_folder(folder, tmp_path / "ours")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"has a vocab\.json but not what goes with it for a t5 model"):
        import_folder(folder, tmp_path / "ours")
    (folder / "vocab.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"eos_token": 3}')
    with pytest.raises(ConversionError, match="value of the wrong kind"):
        import_folder(folder, tmp_path / "ours")
    (folder / "tokenizer_config.json").unlink()
    assert not (tmp_path / "ours").exists()
    with pytest.raises(RegardError, match="has no tokenizer, so it takes token ids"):
        imported(folder, tmp_path / "ours").translate("a")


def test_tokens_beyond_the_models_vocabulary_are_left_out(tmp_path: Path) -> None:
    folder, tokenizer = folder_of("gpt2", tmp_path / "theirs")
    tokenizer.add_special_tokens({"pad_token": "<padding>"})
    tokenizer.save_pretrained(folder)
    model = imported(folder, tmp_path / "ours")
    assert model.tokenizer.size == model.config.vocabulary
    assert model.tokenizer.decode(model.tokenizer.encode("a <padding>")) == "a <padding>"


def test_a_lowercase_normaliser_follows_the_settings(tmp_path: Path) -> None:
    """tokenizer_config.json has the last word on what tokenizer.json says."""
    folder, tokenizer = folder_of("bert", tmp_path / "theirs")
    tokenizer.save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    assert content["normalizer"]["lowercase"] is True
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(said | {"do_lower_case": False}))
    theirs = hf.AutoTokenizer.from_pretrained(folder)
    assert isinstance(theirs.backend_tokenizer.normalizer, normalizers.BertNormalizer)
    check_same(imported(folder, tmp_path / "ours"), theirs, PROBES)
