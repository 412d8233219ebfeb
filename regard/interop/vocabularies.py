"""Tokenizers built anew from a bare list of pieces, as GGUF and llama2.c files keep them.

Such a file says which pieces there are, how good each is or in what order they merge, and what kind of splitting they were learned with.
What the splitting is has to be known here; it is that of the tokenizer.json that the models were published with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import ConversionError, nearest
from regard.text.foreign import WORD_START

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
QWEN_2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LONGEST_MERGED = 1 << 10  # characters of a token that may be made of two others in as many ways; SentencePiece's have 16


@dataclass(frozen=True)
class Splitting:
    """How text is cut into words before their bytes are merged."""

    words: str | None = None  # a pattern; None: GPT-2's own
    digits: bool = False  # each on its own, and apart from the space before it
    whole: bool = False  # a word that is a piece is that piece, whatever the merges say
    normal: bool = False  # characters are composed first (NFC)
    starts: bool = False  # prompts begin with the start token unless the file says otherwise


# By the name that llama.cpp knows them by.
SPLITTINGS = {
    **dict.fromkeys(("default", "gpt-2"), Splitting()),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r"), Splitting(digits=True)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), Splitting(LLAMA_3, whole=True, starts=True)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Splitting(QWEN_2, normal=True)),
    "tekken": Splitting(TEKKEN, whole=True, starts=True),
}


class Kind(IntEnum):
    """What a piece is for, as SentencePiece and llama.cpp number it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    OWN = 4  # added by whoever made the vocabulary, and found whole in any text
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Pieces:
    """A vocabulary: each token's text, in the order of their ids, and what else a file says of it."""

    texts: Sequence[str]
    kinds: Sequence[int] = ()  # none: all are normal
    scores: Sequence[float] = ()  # SentencePiece: the highest merges first
    merges: Sequence[str] = ()  # two pieces with a space between them, the first merge first

    def __post_init__(self) -> None:
        for name, values in (("kinds", self.kinds), ("scores", self.scores)):
            if values and len(values) != len(self.texts):
                raise ConversionError(f"the vocabulary has {len(self.texts)} tokens but {len(values)} {name}; copy the file again")
        seen: set[str] = set()
        for text in self.texts:
            if text in seen:
                raise ConversionError(f"the vocabulary has the token {text!r} twice; its file is damaged, so copy it again")
            seen.add(text)

    @property
    def ids(self) -> dict[str, int]:
        return {text: id for id, text in enumerate(self.texts)}

    def of(self, *kinds: Kind) -> list[str]:
        return [text for text, kind in zip(self.texts, self.kinds, strict=False) if kind in kinds]

    def pairs(self) -> list[tuple[str, str]]:
        """What merges with what, the first merge first: as the file says, or as the scores of the pieces imply."""
        if self.merges:
            split = [tuple(merge.split(" ")) for merge in self.merges]
            wrong = next((merge for merge, parts in zip(self.merges, split, strict=True) if len(parts) != 2), None)
            if wrong is not None:
                raise ConversionError(f"the merge {wrong!r} should be two pieces with a space between them; the file is damaged")
            return [(first, second) for first, second in split]
        ids, normal = self.ids, set(self.of(Kind.NORMAL, Kind.UNUSED)) or set(self.texts)
        longest = max(map(len, normal))
        if longest > LONGEST_MERGED:
            raise ConversionError(f"the vocabulary has a token of {longest:,} characters; its file is damaged, so copy it again")
        found = []
        for text in normal:
            cuts = [(text[:place], text[place:]) for place in range(1, len(text))]
            score = self.scores[ids[text]]
            found += [(-score, ids[a], ids[b], (a, b)) for a, b in cuts if a in normal and b in normal]
        return [pair for *_, pair in sorted(found)]


def over_bytes(pieces: Pieces, splitting: str, *, space_first: bool = False, start: int | None = None) -> tokenizers.Tokenizer:
    """Byte-level BPE, as GPT-2 has it. `start`: the token that a text begins with, where it does."""
    known = SPLITTINGS.get(splitting)
    if known is None:
        raise ConversionError(f"text is split by {splitting!r}, which is not known here; {nearest(splitting, SPLITTINGS)}")
    library = tokenizers.Tokenizer(_bpe(pieces, ignore_merges=known.whole))
    if known.normal:
        library.normalizer = normalizers.NFC()
    steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.Digits(individual_digits=True)] if known.digits else []
    if known.words is not None:
        steps.append(pre_tokenizers.Split(Regex(known.words), "isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=space_first, use_regex=known.words is None))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    library.decoder = decoders.ByteLevel()
    return _finished(library, pieces, start)


def sentencepiece(pieces: Pieces, *, space_first: bool = True, start: int | None = None) -> tokenizers.Tokenizer:
    """SentencePiece's BPE with bytes for what the vocabulary lacks, as Llama has it."""
    if not pieces.merges and not pieces.scores:
        raise ConversionError("the vocabulary has neither scores nor merges, so nobody knows how it splits text; take another file")
    unknown = next(iter(pieces.of(Kind.UNKNOWN)), None)
    library = tokenizers.Tokenizer(_bpe(pieces, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", WORD_START)
    library.normalizer = normalizers.Sequence([normalizers.Prepend(WORD_START), spaces]) if space_first else spaces
    back = [decoders.Replace(WORD_START, " "), decoders.ByteFallback(), decoders.Fuse()]
    library.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if space_first else back)
    return _finished(library, pieces, start)


def _bpe(pieces: Pieces, **settings: object) -> models.BPE:
    try:
        return models.BPE(pieces.ids, pieces.pairs(), **settings)
    except Exception as error:  # the library raises nothing narrower
        raise ConversionError(f"the vocabulary and its merges don't fit together ({error}); copy the file again") from error


def _finished(library: tokenizers.Tokenizer, pieces: Pieces, start: int | None) -> tokenizers.Tokenizer:
    """With the tokens that are found whole in a text, and the start token before it."""
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in pieces.of(Kind.CONTROL, Kind.UNKNOWN)])
    library.add_tokens([AddedToken(text, special=False, normalized=False) for text in pieces.of(Kind.OWN)])
    if start is not None:
        own = {"id": "start", "ids": [start], "tokens": [pieces.texts[start]]}  # any name may have a colon in it, which a template can't
        library.post_processor = processors.TemplateProcessing(single="start $A", pair="start $A start:1 $B:1", special_tokens=[own])
    return library
