"""llama2.c's files, against the model worked out once more in plain numpy, and SentencePiece itself for its tokenizer."""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batch import Tokens
from regard.door import Model, load
from regard.errors import ConversionError
from regard.interop.llama2c import HEADER, import_llama2c, read_model, read_pieces

Array = np.ndarray[Any, np.dtype[np.float64]]
STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball.\n"
    "Lily's mom said, \"Don't go too far!\" But Lily wanted to play with the ball, so she ran and ran. The end."
)


@pytest.fixture(scope="module")
def weights() -> Path:
    folder = Path(os.environ.get("REGARD_DATA", "")) / "weights" / "stories260K"
    if not os.environ.get("REGARD_DATA") or not folder.is_dir():
        pytest.skip("needs weights/stories260K in the folder that REGARD_DATA names")
    return folder


@pytest.fixture(scope="module")
def stories(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(import_llama2c(weights / "stories260K.bin", tmp_path_factory.mktemp("stories") / "bundle"), device="cpu")


class Plain:
    """The forward pass of run.c, in float64, straight from the file."""

    def __init__(self, file: Path) -> None:
        content = file.read_bytes()
        self.width, hidden, self.layers, self.heads, self.kv_heads, vocabulary, context = struct.unpack("7i", content[:28])
        self.numbers, self.place = np.frombuffer(content, np.float32, offset=28).astype(np.float64), 0
        self.head = self.width // self.heads
        each, keys = self.layers, self.head * self.kv_heads
        self.embedding = self._take(abs(vocabulary), self.width)
        self.attention_norm = self._take(each, self.width)
        self.wq, self.wk = self._take(each, self.width, self.width), self._take(each, keys, self.width)
        self.wv, self.wo = self._take(each, keys, self.width), self._take(each, self.width, self.width)
        self.ffn_norm = self._take(each, self.width)
        self.w1, self.w2 = self._take(each, hidden, self.width), self._take(each, self.width, hidden)
        self.w3 = self._take(each, hidden, self.width)
        self.norm = self._take(self.width)
        self.place += context * self.head  # tables of cosines and sines
        self.output = self.embedding if vocabulary > 0 else self._take(abs(vocabulary), self.width)
        assert self.place == len(self.numbers)

    def _take(self, *shape: int) -> Array:
        size = int(np.prod(shape))
        self.place += size
        return self.numbers[self.place - size : self.place].reshape(shape)

    def _rms(self, x: Array, weight: Array) -> Array:
        return weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def _turned(self, x: Array) -> Array:
        """Each pair that stands side by side, turned by position / 10000^(place in the head / head width)."""
        length = x.shape[0]
        pairs = x.reshape(length, -1, self.head // 2, 2)
        angle = np.arange(length)[:, None] * 10000.0 ** -(np.arange(0, self.head, 2) / self.head)
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angle)[:, None]
        return np.stack((turned.real, turned.imag), -1).reshape(length, -1, self.head)

    def logits(self, ids: list[int]) -> Array:
        x = self.embedding[ids]
        future = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
        for i in range(self.layers):
            h = self._rms(x, self.attention_norm[i])
            q, k = self._turned(h @ self.wq[i].T), self._turned(h @ self.wk[i].T)
            v = (h @ self.wv[i].T).reshape(len(ids), -1, self.head)
            out = np.zeros((len(ids), self.heads, self.head))
            for head in range(self.heads):
                shared = head // (self.heads // self.kv_heads)
                scores = q[:, head] @ k[:, shared].T / np.sqrt(self.head) + future
                chances = np.exp(scores - scores.max(-1, keepdims=True))
                out[:, head] = chances / chances.sum(-1, keepdims=True) @ v[:, shared]
            x = x + out.reshape(len(ids), -1) @ self.wo[i].T
            h = self._rms(x, self.ffn_norm[i])
            gate = h @ self.w1[i].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ self.w3[i].T)) @ self.w2[i].T
        return self._rms(x, self.norm) @ self.output.T

    def log_probabilities(self, ids: list[int]) -> Array:
        """Of each token but the first."""
        logits = self.logits(ids[:-1])
        logs = logits - logits.max(-1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
        return logs[np.arange(len(ids) - 1), ids[1:]]


def test_the_same_logits(weights: Path, stories: Model) -> None:
    ids = [1, *stories.tokenizer.encode(STORY)]
    with torch.no_grad():
        ours = stories.network(Tokens(torch.tensor([ids])))[0].double().numpy()
    np.testing.assert_allclose(ours, Plain(weights / "stories260K.bin").logits(ids), rtol=1e-4, atol=1e-4)


def test_the_same_perplexity(weights: Path, stories: Model, tmp_path: Path) -> None:
    """Of each line, its end counted, where llama2.c begins a new text; and of all lines as one text without an end."""
    (tmp_path / "story.txt").write_text(STORY + "\n")
    plain, lines = Plain(weights / "stories260K.bin"), STORY.split("\n")
    logs = np.concatenate([plain.log_probabilities([1, *stories.tokenizer.encode(line), 1]) for line in lines])
    found = stories.evaluate(tmp_path / "story.txt")
    assert found.figures["perplexity"] == pytest.approx(np.exp(-logs.mean()), rel=1e-5)
    whole = plain.log_probabilities([1, *stories.tokenizer.encode(STORY)])
    assert stories.evaluate(tmp_path / "story.txt", stride=512).figures["perplexity"] == pytest.approx(np.exp(-whole.mean()), rel=1e-5)
    assert 2 < np.exp(-whole.mean()) < 8  # and it knows such stories


def test_it_continues_a_story(weights: Path, stories: Model) -> None:
    plain, ids = Plain(weights / "stories260K.bin"), [1, *stories.tokenizer.encode("Once upon a time")]
    written = stories.generate("Once upon a time", temperature=0, max_length=30)
    for token in written.ids:
        assert token == int(plain.logits(ids)[-1].argmax())
        ids.append(token)
    assert written.text.startswith(", there was a little girl named Lily.")


def test_it_stops_where_the_next_story_begins(stories: Model) -> None:
    assert (stories.config.end_token, stories.config.stop_tokens) == (1, (2,))
    written = stories.generate("Once upon a time", temperature=0, max_length=500)
    assert written.ended
    assert 100 < len(written.ids) < 500


TEXTS = [STORY, "naïve café 你好 🦆", "ABC\tdef\n\n123", "", "Lily's ™ [x] ~", "aaaaaaa heheheh"]


@pytest.mark.parametrize("text", TEXTS)
def test_the_tokenizer_is_sentencepieces(text: str, weights: Path, stories: Model) -> None:
    library = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(weights / "tok512.model"))
    assert stories.tokenizer.encode(text) == library.encode(text)
    assert stories.tokenizer.decode(stories.tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", [*TEXTS, "  Hello,  world! ", "   "])
def test_the_tokenizer_is_run_cs(text: str, weights: Path, stories: Model) -> None:
    """Which knows nothing of what SentencePiece does to several spaces: the best pair merges, the first of equals, until none is left."""
    content, tokens, place = (weights / "tok512.bin").read_bytes(), [], 4
    while place < len(content):
        score, length = struct.unpack_from("fi", content, place)
        tokens.append((content[place + 8 : place + 8 + length], score))
        place += 8 + length
    known = {token: id for id, (token, _) in enumerate(tokens)}
    ids = [known[b" "]] if text else []
    for character in text:
        encoded = character.encode()
        ids += [known[encoded]] if encoded in known else [byte + 3 for byte in encoded]
    while True:
        joined = [(known.get(tokens[a][0] + tokens[b][0]), at) for at, (a, b) in enumerate(pairwise(ids))]
        best = max(((tokens[id][1], -at, id) for id, at in joined if id is not None), default=None)
        if best is None:
            break
        ids[-best[1] : -best[1] + 2] = [best[2]]
    assert stories.tokenizer.encode(text) == ids
    assert stories.tokenizer.decode(ids) == text


# From here on, files of our own making.


def made(folder: Path, *, tied: bool = True, vocabulary: int = 300) -> Path:
    """A tiny model with random weights, and its tokenizer beside it."""
    folder.mkdir(exist_ok=True)
    width, hidden, layers, heads, kv_heads, context = 16, 24, 2, 4, 2, 32
    count = vocabulary * width * (1 if tied else 2) + layers * (2 * width + 2 * width * width + 2 * 8 * width + 3 * width * hidden)
    count += width + context * width // heads
    numbers = np.random.default_rng(0).normal(0, 0.3, count).astype("<f4")
    header = HEADER.pack(width, hidden, layers, heads, kv_heads, vocabulary if tied else -vocabulary, context)
    (folder / "model.bin").write_bytes(header + numbers.tobytes())
    tokens = [
        b"<unk>",
        b"\n<s>\n",
        b"\n</s>\n",
        *(f"<0x{byte:02X}>".encode() for byte in range(256)),
        b" ",
        b"a",
        b"b",
        b" a",
        b"ab",
        b" ab",
    ]
    tokens += [f"{number:03}".encode() for number in range(vocabulary - len(tokens))]
    parts = [struct.pack("<fi", -float(number), len(token)) + token for number, token in enumerate(tokens)]
    (folder / "tokenizer.bin").write_bytes(struct.pack("<i", 7) + b"".join(parts))
    return folder / "model.bin"


@pytest.mark.parametrize("tied", [True, False])
def test_random_weights(tied: bool, tmp_path: Path) -> None:
    """Every tensor counts, also an output with weights of its own."""
    model = load(import_llama2c(made(tmp_path, tied=tied), tmp_path / "bundle"), device="cpu")
    assert model.config.tied == tied  # type: ignore[union-attr]
    ids = [1, 5, 280, 17, 260, 299, 3]
    with torch.no_grad():
        ours = model.network(Tokens(torch.tensor([ids])))[0].double().numpy()
    np.testing.assert_allclose(ours, Plain(tmp_path / "model.bin").logits(ids), rtol=1e-4, atol=1e-4)
    assert model.tokenizer.pieces(model.tokenizer.encode("ab b")) == [" ab", " ", "b"]


def test_the_tokenizer_may_be_named(tmp_path: Path) -> None:
    file = made(tmp_path)
    elsewhere = (tmp_path / "tokenizer.bin").rename(tmp_path / "other.bin")
    with pytest.raises(ConversionError, match=r"neither tok300.bin nor tokenizer.bin beside .*; name its tokenizer with --tokenizer"):
        import_llama2c(file, tmp_path / "out")
    assert import_llama2c(file, tmp_path / "out", elsewhere).is_dir()
    made(tmp_path / "more", vocabulary=310)
    with pytest.raises(ConversionError, match=r"vocabulary of 300 and its tokenizer 310 tokens; they don't belong together"):
        import_llama2c(file, tmp_path / "out", tmp_path / "more" / "tokenizer.bin")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[:-4], r"is cut off: its sizes ask for .* bytes, and it has .*; copy it again"),
        (lambda whole: whole + b"more", "is too long"),
        (lambda whole: whole[:20], "is no model file of llama2.c"),
        (lambda whole: b"", "is no model file of llama2.c"),
        (lambda whole: b"PK\x03\x04" + whole[4:], "is no model file of llama2.c"),
        (lambda whole: struct.pack("<Ii", 0x616B3432, 1) + whole, "of a newer version; write it anew with .*--version 0"),
    ],
)
def test_what_is_wrong_with_a_model_file(content: Any, message: str, tmp_path: Path) -> None:
    file = made(tmp_path)
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(ConversionError, match=message):
        read_model(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lambda whole: whole[:-1], "cut off after 299 tokens"),
        (lambda whole: whole[:101], "cut off after 7 tokens"),
        (lambda whole: b"", "tokens 3 to 258 should be the bytes"),
        (lambda whole: whole[:4] + b"\xff" * 40, "no tokenizer file of llama2.c, or cut off after 0 tokens"),
    ],
)
def test_what_is_wrong_with_a_tokenizer_file(content: Any, message: str, tmp_path: Path) -> None:
    made(tmp_path)
    file = tmp_path / "tokenizer.bin"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(ConversionError, match=message):
        read_pieces(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=r"can't read .*: No such file or directory; give a model file of llama2.c"):
        import_llama2c(tmp_path / "none.bin", tmp_path / "out")
