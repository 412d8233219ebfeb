"""Turns a model file of llama2.c (seven numbers, then every weight in float32) and its tokenizer file into a bundle."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from regard.bundle import TOKENIZER, default_card, fill, outline, save_bundle
from regard.config import LanguageModelConfig, parse_model
from regard.errors import ConversionError, RegardError
from regard.interop.gguf import from_pairs
from regard.interop.vocabularies import Kind, Pieces, sentencepiece
from regard.models import Network
from regard.storage import Precision
from regard.text.foreign import WORD_START, ForeignTokenizer, Roles

HEADER = struct.Struct("<7i")
NEWER = b"24ka"  # how files of version 1 and above begin: 0x616b3432, the lowest byte first
UNKNOWN, START, END, BYTES = 0, 1, 2, range(3, 259)  # the ids that every vocabulary of llama2.c begins with
LONGEST_TOKEN = 1 << 16  # in bytes; a longer one is a sign of damage


@dataclass(frozen=True)
class Shape:
    """What the seven numbers say."""

    width: int
    feedforward: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    tied: bool

    @classmethod
    def read(cls, header: bytes) -> Shape:
        width, feedforward, layers, heads, kv_heads, vocabulary, context = HEADER.unpack(header)
        tied = vocabulary > 0  # a negative number says that the output has weights of its own
        return cls(width, feedforward, layers, heads, kv_heads, abs(vocabulary), context, tied)

    @property
    def sensible(self) -> bool:
        sizes = (self.width, self.feedforward, self.layers, self.heads, self.kv_heads, self.vocabulary, self.context)
        return all(0 < size < 1 << 24 for size in sizes) and self.width % (2 * self.heads) == 0 and self.heads % self.kv_heads == 0

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Every tensor of the file in its order; those of all layers stand together."""
        keys = self.width // self.heads * self.kv_heads
        yield "embedding", (self.vocabulary, self.width)
        yield "attention_norm", (self.layers, self.width)
        yield "query", (self.layers, self.width, self.width)
        yield "key", (self.layers, keys, self.width)
        yield "value", (self.layers, keys, self.width)
        yield "join", (self.layers, self.width, self.width)
        yield "feedforward_norm", (self.layers, self.width)
        yield "gate", (self.layers, self.feedforward, self.width)
        yield "narrow", (self.layers, self.width, self.feedforward)
        yield "content", (self.layers, self.feedforward, self.width)
        yield "norm", (self.width,)
        yield "cosines", (self.context, self.width // self.heads // 2)  # of rotary positions, which we work out ourselves
        yield "sines", (self.context, self.width // self.heads // 2)
        if not self.tied:
            yield "output", (self.vocabulary, self.width)

    @property
    def bytes(self) -> int:
        return HEADER.size + 4 * sum(int(np.prod(shape)) for _, shape in self.tensors())


def import_llama2c(file: str | Path, out: str | Path, tokenizer: str | Path | None = None, precision: Precision | None = None) -> Path:
    """Reads a model file and writes the bundle. `tokenizer`: its tokenizer file; by default the one beside it."""
    file = Path(file)
    network = read_model(file)
    pieces = read_pieces(Path(tokenizer) if tokenizer is not None else tokenizer_beside(file, network.config.vocabulary))
    if len(pieces.texts) != network.config.vocabulary:
        raise ConversionError(
            f"{file} has a vocabulary of {network.config.vocabulary} and its tokenizer {len(pieces.texts)} tokens; "
            "they don't belong together, so name the right one with --tokenizer"
        )
    card = f"# {file.stem}\n\n{default_card(network).splitlines()[-1]} Imported from `{file.name}`, a model file of llama2.c.\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / TOKENIZER
        made = ForeignTokenizer(sentencepiece(pieces, start=START), Roles(pad=UNKNOWN, start=START, end=START))
        made.save(path)
        return save_bundle(network, out, tokenizer=path, card=card, precision=precision)


def read_model(file: Path, backend: str = "sdpa") -> Network:
    """Our model with the file's weights."""
    content = _content(file, "a model file of llama2.c")
    if content.startswith(NEWER):
        raise ConversionError(f"{file} is a llama2.c file of a newer version; write it anew with llama2.c's export.py --version 0")
    shape = Shape.read(content[: HEADER.size]) if len(content) >= HEADER.size else None
    if shape is None or not shape.sensible:
        raise ConversionError(
            f"{file} is no model file of llama2.c: it does not begin with the seven sizes of a model; is it another file?"
        )
    if len(content) != shape.bytes:
        what = "cut off" if len(content) < shape.bytes else "too long"
        raise ConversionError(
            f"{file} is {what}: its sizes ask for {shape.bytes:,} bytes, and it has {len(content):,}; copy it again from where it came"
        )
    try:
        config = parse_model(_settings(shape))
        network = outline(config, backend)
        assert isinstance(config, LanguageModelConfig)
        fill(network, _ours(_split(content, shape), config), file)
    except RegardError as error:
        raise ConversionError(f"{file}: {error}") from error
    return network.eval()


def _content(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConversionError(f"can't read {file}: {error.strerror}; give {what}") from error


def _settings(shape: Shape) -> dict[str, object]:
    return {
        "kind": "lm",
        "vocabulary": shape.vocabulary,
        "layers": shape.layers,
        "width": shape.width,
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "feedforward": shape.feedforward,
        "activation": "swiglu",
        "bias": "none",
        "norm": "rms",
        "norm_place": "before",
        "norm_epsilon": 1e-5,
        "positions": "rotary",
        "position_layout": "halves",
        "context": shape.context,
        "embedding_scale": False,
        "tied": shape.tied,
        "dropout": 0.0,
        "init": "normal",
        "pad_token": UNKNOWN,
        "start_token": START,
        "end_token": START,  # a new text begins: so its models were trained, and there llama2.c stops
        "stop_tokens": (END,),
    }


def _split(content: bytes, shape: Shape) -> dict[str, Tensor]:
    numbers = torch.from_numpy(np.frombuffer(content, dtype="<f4", offset=HEADER.size).astype(np.float32))
    shapes = dict(shape.tensors())
    parts = numbers.split([int(np.prod(size)) for size in shapes.values()])
    return {name: part.view(size) for (name, size), part in zip(shapes.items(), parts, strict=True)}


def _ours(theirs: dict[str, Tensor], config: LanguageModelConfig) -> dict[str, Tensor]:
    found = {"embed.weight": theirs["embedding"], "decoder.norm.weight": theirs["norm"]}
    if not config.tied:
        found["deembed.weight"] = theirs["output"]
    for i in range(config.layers):
        name = f"decoder.layers.{i}"
        query, key = from_pairs(theirs["query"][i], config.heads), from_pairs(theirs["key"][i], config.kv_heads or config.heads)
        found[f"{name}.attention.project.weight"] = torch.cat((query, key, theirs["value"][i]))
        found[f"{name}.attention.join.weight"] = theirs["join"][i].contiguous()
        found[f"{name}.attention_add.norm.weight"] = theirs["attention_norm"][i].contiguous()
        found[f"{name}.feedforward.widen.weight"] = torch.cat((theirs["gate"][i], theirs["content"][i]))
        found[f"{name}.feedforward.narrow.weight"] = theirs["narrow"][i].contiguous()
        found[f"{name}.feedforward_add.norm.weight"] = theirs["feedforward_norm"][i].contiguous()
    return {name: tensor.clone() for name, tensor in found.items()}  # none a view of the whole file


def tokenizer_beside(file: Path, vocabulary: int) -> Path:
    """The tokenizer file that belongs to a model file, by the names that llama2.c gives them."""
    names = (f"tok{vocabulary}.bin", "tokenizer.bin")
    found = next((path for name in names if (path := file.with_name(name)).is_file()), None)
    if found is None:
        raise ConversionError(f"there is neither {' nor '.join(names)} beside {file}; name its tokenizer with --tokenizer")
    return found


def read_pieces(file: Path) -> Pieces:
    """The vocabulary of a tokenizer file: a score, a length and the bytes of each token."""
    content = _content(file, "a tokenizer file of llama2.c")
    texts: list[str] = []
    scores: list[float] = []
    place = 4  # after the length of the longest, which tells us nothing
    while place < len(content):
        score, length = struct.unpack_from("<fi", content, place) if place + 8 <= len(content) else (0.0, -1)
        token = content[place + 8 : place + 8 + max(0, length)]
        if not 0 <= length <= LONGEST_TOKEN or len(token) != length or not np.isfinite(score):
            raise ConversionError(f"{file} is no tokenizer file of llama2.c, or cut off after {len(texts)} tokens; copy it again")
        try:
            texts.append(token.decode("utf-8").replace(" ", WORD_START))
        except UnicodeDecodeError:
            raise ConversionError(f"{file}: token {len(texts)} is not UTF-8; copy the file again from where it came") from None
        scores.append(score)
        place += 8 + length
    if len(texts) <= BYTES.stop or texts[BYTES.start] != "<0x00>":
        raise ConversionError(f"{file} is no tokenizer file of llama2.c: tokens 3 to 258 should be the bytes; is it another file?")
    texts[: BYTES.start] = ["<unk>", "<s>", "</s>"]  # the file has line breaks around them, for printing
    kinds = [Kind.UNKNOWN, Kind.CONTROL, Kind.CONTROL, *[Kind.BYTE] * len(BYTES), *[Kind.NORMAL] * (len(texts) - BYTES.stop)]
    return Pieces(texts, kinds, scores)
