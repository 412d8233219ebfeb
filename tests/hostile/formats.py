"""Every kind of file that regard reads: how a good tiny one is made, and how it is read and used."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.hostile.damage import PACKING, Damage, bytes_damaged, header_damaged, json_damaged, packed_damaged
from tests.text.tunes import WALTZ, midi_file, ticks

Read = Callable[[Path], object]
SHAPE: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1, "feedforward": 8, "context": 16, "dropout": 0.0}
WORDS = [
    "The village by the sea had 365 people.",
    "Where are you going? asked the girl.",
    "Die Straßen waren eng; où est-ce?",
    "你好 don't go",
]
TEXTS = ["the village", "", " Wörter 12\n", "ﷺ <end> </s> [X]", "a" * 300]


@dataclass(frozen=True)
class Format:
    """A kind of file."""

    make: Callable[[Path], Path]  # in an empty folder; what comes back is the file that is damaged
    read: Read
    damages: tuple[Damage, ...] = (bytes_damaged,)
    needs: tuple[str, ...] = ()  # libraries


def use(tokenizer: Any) -> None:
    """What every verb asks of a tokenizer."""
    for ids in tokenizer.encode_batch(TEXTS):
        assert all(0 <= id < tokenizer.size for id in ids)
        tokenizer.decode(ids)
        tokenizer.pieces(ids)
        tokenizer.offsets("the village")


# Bundles


def tiny_bundle(kind: str, folder: Path) -> Path:
    import torch

    from regard.bundle import save_bundle
    from regard.config import parse_model
    from regard.models import build
    from regard.recipe import TokenizerSettings
    from regard.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(WORDS, TokenizerSettings(kind="bpe", size=270))
    tokenizer.save(folder / "words.json")
    torch.manual_seed(0)
    model = build(parse_model({"kind": kind, "vocabulary": len(tokenizer), **SHAPE}))
    return save_bundle(model, folder / "bundle", tokenizer=folder / "words.json", shard_bytes=1000)


def tokenizer_json(folder: Path) -> Path:
    return tiny_bundle("lm", folder) / "tokenizer.json"


def bundle_config(folder: Path) -> Path:
    return tiny_bundle("seq2seq", folder) / "config.json"


def bundle_weights(folder: Path) -> Path:
    return sorted(tiny_bundle("lm", folder).glob("*.safetensors"))[0]


def bundle_index(folder: Path) -> Path:
    return tiny_bundle("lm", folder) / "model.safetensors.index.json"


def read_bundle(file: Path) -> None:
    from regard.door import load

    model = load(file.parent, device="cpu", precision="float32")
    if "translate" in model.verbs:
        model.translate("the village", beam_size=1, max_length=3)
    elif "generate" in model.verbs:
        model.generate("the village", temperature=0, max_length=3)


def read_tokenizer(file: Path) -> None:
    from regard.text.tokenizer import Tokenizer

    use(Tokenizer.load(file))


# Hugging Face


def gpt2_folder(folder: Path) -> Path:
    """A folder as save_pretrained() writes it, with its tokenizer."""
    import tokenizers
    import torch
    from tokenizers import decoders, models, pre_tokenizers, processors

    from regard.storage import write_tensors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = tokenizers.Tokenizer(models.BPE({text: id for id, text in enumerate([*alphabet, "th", "the"])}, [("t", "h"), ("th", "e")]))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.add_special_tokens(["<|endoftext|>"])
    end = library.token_to_id("<|endoftext|>")
    library.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)])
    library.enable_padding(length=8)
    library.save(str(folder / "tokenizer.json"))
    said = {"eos_token": "<|endoftext|>", "add_prefix_space": False, "chat_template": "{{ messages }}", "model_max_length": 16}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": end + 1, "n_layer": 1, "n_embd": 8, "n_head": 2,
        "n_inner": 8, "n_positions": 16, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "resid_pdrop": 0.1,
        "attn_pdrop": 0.1, "bos_token_id": end, "eos_token_id": end,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"wte.weight": (end + 1, 8), "wpe.weight": (16, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    for name, shape in {
        "ln_1": (8,),
        "ln_2": (8,),
        "attn.c_attn": (8, 24),
        "attn.c_proj": (8, 8),
        "mlp.c_fc": (8, 8),
        "mlp.c_proj": (8, 8),
    }.items():
        shapes |= {f"h.0.{name}.weight": shape, f"h.0.{name}.bias": shape[-1:]}
    write_tensors(folder, {f"transformer.{name}": torch.randn(shape) for name, shape in shapes.items()})
    return folder


def in_folder(name: str) -> Callable[[Path], Path]:
    return lambda folder: gpt2_folder(folder) / name


def read_folder(file: Path) -> None:
    from regard.interop.folder_tokenizer import read_tokenizers
    from regard.interop.huggingface import load_folder

    network = load_folder(file.parent)
    for tokenizer in read_tokenizers(file.parent, "gpt2", network.config) or ():
        if tokenizer is not None:
            use(tokenizer)


def foreign_bundle(folder: Path) -> Path:
    """The bundle that becomes of it."""
    from regard.interop.huggingface import import_folder

    (folder / "theirs").mkdir()
    return import_folder(gpt2_folder(folder / "theirs"), folder / "ours") / "tokenizer.json"


def sentence_folder(folder: Path) -> Path:
    (folder / "pooling").mkdir()
    (folder / "pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true, "word_embedding_dimension": 8}')
    kinds = (("", "Transformer"), ("pooling", "Pooling"))
    modules = [{"idx": number, "name": str(number), "path": path, "type": f"a.{kind}"} for number, (path, kind) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder / "modules.json"


def read_sentences(file: Path) -> None:
    from regard.interop.sentences import Sentences

    Sentences.read(file.parent)


# SentencePiece


def field(number: int, value: bytes | int | float) -> bytes:
    """A field of a message in protocol buffers' wire format."""
    if isinstance(value, bytes):
        return bytes((number << 3 | 2, len(value))) + value
    return bytes((number << 3 | 5,)) + struct.pack("<f", value) if isinstance(value, float) else bytes((number << 3, value))


def pieces_file(folder: Path) -> Path:
    """A vocabulary of some letters and a few pieces, with a rule for characters: A becomes a."""
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((text, 1) for text in (*"▁abcdeghilstvw", "▁the", "th", "ge"))]
    content = b"".join(
        field(1, field(1, text.encode()) + field(2, -float(number)) + field(3, kind)) for number, (text, kind) in enumerate(pieces)
    )
    (folder / "spiece.model").write_bytes(content + b"\x12\x02" + field(3, 1) + b"\x1a\x06" + field(3, 1) + field(4, 1) + field(5, 1))
    return folder / "spiece.model"


def learned_pieces(folder: Path, rules: str = "nmt_nfkc") -> Path:
    """One that the library itself learned, with its own rules for characters."""
    import sentencepiece

    with (folder / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(WORDS * 3),
            model_writer=file,
            vocab_size=60,
            model_type="unigram",
            hard_vocab_limit=False,
            minloglevel=2,
            normalization_rule_name=rules,
        )
    return folder / "spiece.model"


def read_pieces(file: Path) -> None:
    from regard.interop.parts import reading
    from regard.interop.spm import library_of, read_model
    from regard.text.foreign import ForeignTokenizer, Roles

    with reading(file):
        tokenizer = ForeignTokenizer(library_of(read_model(file)), Roles(0, 1, 2, unknown=0))
    use(tokenizer)


def learned_json(folder: Path) -> Path:
    """Its tokenizer as a bundle has it: normalised by rules, split at spaces, the likeliest pieces."""
    from regard.interop.spm import library_of, read_model
    from regard.text.foreign import ForeignTokenizer, Roles

    ForeignTokenizer(library_of(read_model(learned_pieces(folder))), Roles(0, 1, 2, unknown=0)).save(folder / "tokenizer.json")
    return folder / "tokenizer.json"


# GGUF and llama2.c


def gguf_value(value: Any) -> bytes:
    """The type of a value, and the value."""
    match value:
        case str():
            return struct.pack("<IQ", 8, len(value.encode())) + value.encode()
        case float():
            return struct.pack("<If", 6, value)
        case int():
            return struct.pack("<II", 4, value)
    inner = [gguf_value(each) for each in value]
    return struct.pack("<I", 9) + inner[0][:4] + struct.pack("<Q", len(inner)) + b"".join(each[4:] for each in inner)


def gguf_bytes(metadata: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> bytes:
    """A GGUF file of tensors in float32."""
    named = [(struct.pack("<Q", len(name.encode())) + name.encode(), shape) for name, shape in tensors.items()]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(gguf_value(key)[4:] + gguf_value(value) for key, value in metadata.items())
    body = b""
    for name, shape in named:
        header += name + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(body))
        numbers = 1
        for size in shape:
            numbers *= size
        body += struct.pack("<f", 0.5) * numbers
        body += bytes(-len(body) % 32)
    return header + bytes(-len(header) % 32) + body


def gguf_file(folder: Path) -> Path:
    from tokenizers import pre_tokenizers

    tokens = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
    metadata = {
        "general.architecture": "llama", "general.name": "tiny", "llama.context_length": 16, "llama.embedding_length": 8,
        "llama.block_count": 1, "llama.feed_forward_length": 8, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": 4,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1), "tokenizer.ggml.merges": ["t h", "th e"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.chat_template": "{{ messages }}",
    }  # fmt: skip
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (8, len(tokens)), "output_norm.weight": (8,)}
    for name, shape in {"attn_q": (8, 8), "attn_k": (8, 4), "attn_v": (8, 4), "attn_output": (8, 8), "ffn_gate": (8, 8), "ffn_up": (8, 8),
                        "ffn_down": (8, 8), "attn_norm": (8,), "ffn_norm": (8,)}.items():  # fmt: skip
        tensors[f"blk.0.{name}.weight"] = shape
    (folder / "tiny.gguf").write_bytes(gguf_bytes(metadata, tensors))
    return folder / "tiny.gguf"


def read_gguf_file(file: Path) -> None:
    from regard.interop import gguf

    read = gguf.read_gguf(file)
    use(gguf.read_tokenizer(read))
    gguf.to_network(read)


def llama2c_file(folder: Path) -> Path:
    sizes = struct.pack("<7i", 8, 8, 1, 2, 1, 300, 16)
    from regard.interop.llama2c import Shape

    (folder / "model.bin").write_bytes(sizes + bytes(Shape.read(sizes).bytes - len(sizes)))
    return folder / "model.bin"


def read_llama2c(file: Path) -> None:
    from regard.interop.llama2c import read_model

    read_model(file)


def llama2c_pieces(folder: Path) -> Path:
    texts = ["<unk>", "\n<s>\n", "\n</s>\n", *(f"<0x{byte:02X}>" for byte in range(256)), *" abcdeghilstvw", " the", "th", "ge"]
    packed = (struct.pack("<fi", -number, len(text.encode())) + text.encode() for number, text in enumerate(texts))
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 8) + b"".join(packed))
    return folder / "tokenizer.bin"


def read_llama2c_pieces(file: Path) -> None:
    from regard.interop.llama2c import read_pieces
    from regard.interop.parts import reading
    from regard.interop.vocabularies import sentencepiece
    from regard.text.foreign import ForeignTokenizer, Roles

    with reading(file):
        tokenizer = ForeignTokenizer(sentencepiece(read_pieces(file), start=1), Roles(0, 1, 1))
    use(tokenizer)


# Texts, music, recipes


def written(name: str, content: str | bytes) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        plain = content if isinstance(content, bytes) else content.encode()
        ending = Path(name).suffix
        (folder / name).write_bytes(PACKING[ending][0](plain) if ending in PACKING else plain)
        return folder / name

    return make


PAIRS = "source\ttarget\n" + "".join(f"{text} {number}\t{text}\n" for number, text in enumerate(WORDS * 5))
LABELLED = "".join(json.dumps({"label": "a", "text": text, "part": number}) + "\n" for number, text in enumerate(WORDS * 5))
RECIPE = """
task = "translate"
[data]
train = [{ path = "a.tsv", columns = [0, 1], only = { 2 = ["x"] } }, "b.tsv"]
dev_share = 0.05
[tokenizer]
kind = "bpe"
size = 4000
[model]
width = 64
heads = 4
dropout = 0.1
[training]
steps = 100
lr = 1e-3
betas = [0.9, 0.98]
clip = inf
[decoding]
beam_size = 4
"""


def rows_of(task: str, **settings: Any) -> Read:
    def read(file: Path) -> None:
        from regard.recipe import DataFile
        from regard.text.corpus import read_rows

        for _ in read_rows(DataFile(path=str(file), **settings), task):  # type: ignore[arg-type]
            pass

    return read


def read_recipe(file: Path) -> None:
    from regard.recipe import load_recipe

    load_recipe(file)


def song() -> bytes:
    return midi_file(ticks(WALTZ), 3)


def songs_in(name: str) -> Callable[[Path], Path]:
    """An archive, whose members have no time of their own."""

    def make(folder: Path) -> Path:
        content, made = song(), io.BytesIO()
        if name.endswith(".zip"):
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
                packed.writestr(zipfile.ZipInfo("a.mid"), content, zipfile.ZIP_DEFLATED)
        else:
            with tarfile.open(fileobj=made, mode="w") as tar:
                member = tarfile.TarInfo("a.mid")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        return written(name, made.getvalue())(folder)

    return make


MUSIC = ("symusic", "miditok")
JSON = (bytes_damaged, json_damaged, json_damaged)
FORMATS: dict[str, Format] = {
    "bundle: config": Format(bundle_config, read_bundle, JSON),
    "bundle: weights": Format(bundle_weights, read_bundle, (bytes_damaged, header_damaged)),
    "bundle: index": Format(bundle_index, read_bundle, JSON),
    "bundle: tokenizer": Format(tokenizer_json, read_bundle, JSON),
    "bundle: tokenizer from elsewhere": Format(foreign_bundle, read_bundle, JSON),
    "tokenizer": Format(tokenizer_json, read_tokenizer, JSON),
    "tokenizer from elsewhere": Format(foreign_bundle, read_tokenizer, JSON),
    "tokenizer of SentencePiece": Format(learned_json, read_tokenizer, JSON, ("sentencepiece",)),
    "Hugging Face: config": Format(in_folder("config.json"), read_folder, JSON),
    "Hugging Face: weights": Format(in_folder("model.safetensors"), read_folder, (bytes_damaged, header_damaged)),
    "Hugging Face: tokenizer": Format(in_folder("tokenizer.json"), read_folder, JSON),
    "Hugging Face: tokenizer's config": Format(in_folder("tokenizer_config.json"), read_folder, JSON),
    "Hugging Face: modules": Format(sentence_folder, read_sentences, JSON),
    "SentencePiece": Format(pieces_file, read_pieces),
    "SentencePiece, learned": Format(learned_pieces, read_pieces, needs=("sentencepiece",)),
    "GGUF": Format(gguf_file, read_gguf_file, needs=("gguf",)),
    "llama2.c": Format(llama2c_file, read_llama2c),
    "llama2.c: tokenizer": Format(llama2c_pieces, read_llama2c_pieces),
    "text": Format(written("a.txt", "\n".join(WORDS * 5)), rows_of("lm")),
    "text in UTF-16": Format(written("a.txt", "\n".join(WORDS * 5).encode("utf-16")), rows_of("lm")),
    "tsv": Format(written("a.tsv", PAIRS), rows_of("translate")),
    "jsonl": Format(written("a.jsonl", LABELLED), rows_of("classify", only={"part": ["1", "2"]})),
    **{
        f"tsv{ending}": Format(written(f"a.tsv{ending}", PAIRS), rows_of("translate"), (bytes_damaged, packed_damaged(ending)))
        for ending in (".gz", ".xz", ".zst")
    },
    "MIDI": Format(written("a.mid", song()), rows_of("lm", transpose=(-1, 1)), needs=MUSIC),
    "MIDI in a zip": Format(songs_in("a.zip"), rows_of("lm"), needs=MUSIC),
    "MIDI in a tar": Format(songs_in("a.tar"), rows_of("lm"), needs=MUSIC),
    "MIDI in a tar.gz": Format(songs_in("a.tar.gz"), rows_of("lm"), (bytes_damaged, packed_damaged(".gz")), MUSIC),
    "recipe": Format(written("recipe.toml", RECIPE), read_recipe),
}
HERE = {name: each for name, each in FORMATS.items() if all(find_spec(library) is not None for library in each.needs)}
