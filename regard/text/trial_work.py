"""What the worker that tries tokenizers does: all that a request would do with one, for texts that are asked of few."""

from __future__ import annotations

from regard.errors import RegardError
from regard.text.foreign import ForeignTokenizer
from regard.text.tokenizer import Tokenizer

LONG = 20_000  # letters
SHOWN = 2_000  # ids, evenly apart, that are turned into text
TEXTS = (
    "",
    " ",
    "a",
    "The cat sat on the mat, didn't it? It cost 3.14 (or 10:30).",
    "Ünïcode: e\u0301, Größe, ﬁ, 你好, 日本語, हिन्दी, العربية, 👨‍👩‍👧 🦆, \ufeff\u200b\u202e\u00ad\ue000\ufdd0\uffff\U0010ffff",
    "\0\x01\x7f\t\r\n \u2028\u3000  two  spaces\n\n",
    "<s></s> <unk> <pad> [CLS] [MASK] <|endoftext|> <0xFF> ▁ Ġ ##",
    "a" * LONG,
    "".join(map(chr, range(33, 127))) * (LONG // 94),
    "the cat sat on the mat. " * (LONG // 24),
)


def answer(content: str) -> str | None:
    """What is wrong with the tokenizer, or nothing."""
    try:
        return _tried(Tokenizer.from_json(content))
    except RegardError as error:
        return str(error)


def _tried(tokenizer: Tokenizer) -> str | None:
    size = tokenizer.size
    read = (None, False) if isinstance(tokenizer, ForeignTokenizer) else (None,)
    for text in TEXTS:
        for markup in read:
            ids = tokenizer.encode(text, markup=markup)
            if beyond := [id for id in ids if not 0 <= id < size]:
                return f"the tokenizer gives the id {beyond[0]}, and it has ids to {size - 1}; don't trust it"
            tokenizer.decode(ids)
            tokenizer.pieces(ids[:SHOWN])
        tokenizer.offsets(text)
    tokenizer.decode_batch([[id] for id in range(0, size, max(1, size // SHOWN))])
    return None
