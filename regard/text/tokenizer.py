"""Text to token ids and back. A tokenizer is learned from the corpus itself and is one file, tokenizer.json."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import BundleError, ConfigError, CorpusError, RegardError, nearest
from regard.recipe import TokenizerSettings

PAD, START, END, MASK, UNKNOWN = "<pad>", "<start>", "<end>", "<mask>", "<unk>"
SPECIAL = (PAD, START, END, MASK)

# A word with the space before it; one digit at a time, so that numbers are copied and not guessed; a run of punctuation; a run of space.
# Marks count as letters, or else Hindi words would fall apart at every vowel sign.
BYTE_WORDS = r" ?[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# Numbers such as 3.14, words such as don't and well-known, and every other sign on its own.
WORDS = r"\d+(?:[.,:]\d+)+|\w+(?:['’-]\w+)*|[^\w\s]"
NO_SPACE_BEFORE = r" (?=[.,;:!?%…)\]}»”])"
NO_SPACE_AFTER = r"(?<=[(\[{«“¿¡]) "

UNIGRAM_WORDS = 300_000  # the most frequent ones, which the pieces of a unigram vocabulary are chosen by
LONGEST_PIECE = 32  # in bytes
LONGEST_WORD = 4000  # characters of a word that is learned from: the time that merging takes grows with the square
LONG_WORD = re.compile(rf"(\S{{{LONGEST_WORD}}}|\s{{{LONGEST_WORD}}})\s*")
BATCH = 10_000  # texts encoded at a time: the library's own results take far more memory than the ids in them
FOREIGN = '{"regard":'  # how the file of a tokenizer from elsewhere begins


@dataclass(frozen=True)
class Frame:
    """The tokens that go before and after a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def put(self, ids: Sequence[int], room: int | None = None) -> list[int]:
        """The ids within the frame, cut where both together would be longer than `room`."""
        return [*self.before, *(ids if room is None else ids[: max(0, room - len(self))]), *self.after]


class Known(dict[int, str]):
    """What tokens stand for, each found out when it is first asked for."""

    def __init__(self, find: Callable[[int], str]) -> None:
        self._find = find

    def __missing__(self, id: int) -> str:
        found = self[id] = self._find(id)
        return found


class Tokenizer:
    """Text to token ids and back.

    `bpe` and `unigram` work on bytes, so every text can be encoded, and decoding gives it back exactly. `char` does so for characters
    that were in the training text. `word` splits at spaces and punctuation; decoding puts single spaces between words, none before
    closing punctuation or after opening brackets. With `lowercase`, what comes back is in lower case.
    """

    frame: Frame | None = None  # what its own library puts around a text, for one from elsewhere; None: what the model's family does
    spaced: bool  # a token has the space before it within, as over bytes
    tags: tuple[str, ...]

    def __init__(self, library: tokenizers.Tokenizer) -> None:
        self._library = library
        # Only `encode` and the model choose special tokens: "<end>" in a text of a user is five ordinary characters.
        library.encode_special_tokens = True
        added = library.get_added_tokens_decoder()
        self._special: dict[str, int] = {token.content: id for id, token in sorted(added.items()) if token.special}
        missing = [name for name in SPECIAL if name not in self._special]
        if missing:
            raise BundleError(f"the tokenizer has no {', '.join(missing)}; it was not made by regard, so use: regard import")
        self.pad_id, self.start_id, self.end_id = (self._special[name] for name in (PAD, START, END))
        self.unknown_id = self._special.get(UNKNOWN)  # None where every text can be encoded
        self.spaced = self.unknown_id is None
        self.tags = tuple(name[len("<to:") : -1] for name in self._special if name.startswith("<to:"))

    @classmethod
    def train(cls, texts: Iterable[str], settings: TokenizerSettings, tags: Sequence[str] = ()) -> Self:
        """Learns a vocabulary of at most `settings.size` tokens, the special ones and one for each tag included.

        The texts are read once, one after the other. The same texts and settings give the same file, byte for byte.
        """
        special = [*SPECIAL, *([UNKNOWN] if settings.kind in ("char", "word") else []), *map(_tag_token, tags)]
        if len(set(special)) < len(special):
            raise ConfigError(f"the tags {', '.join(tags)} are not all different; name each once")
        fixed = len(special) + (256 if settings.kind in ("bpe", "unigram") else 1)
        if settings.size < fixed:
            needs = f"{len(special)} special tokens and " + ("256 bytes" if fixed > 256 else "at least one other")
            raise ConfigError(f"tokenizer.size = {settings.size} is too small: there are {needs}; set it to {fixed} or more")
        library = LEARNERS[settings.kind](_learnable(texts), settings, special)
        library.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in special])
        return cls(library)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """A tokenizer of ours, or one from elsewhere that was imported."""
        path = Path(path)
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BundleError(f"can't read the tokenizer {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BundleError(f"{path} is not UTF-8 text (byte {error.start}); copy it again from where it came") from error
        try:
            return cls.from_json(content)
        except BundleError as error:
            raise BundleError(f"{path}: {error}") from error

    @classmethod
    def from_json(cls, content: str) -> Tokenizer:
        if content.startswith(FOREIGN):
            from regard.text.foreign import ForeignTokenizer

            return ForeignTokenizer.from_json(content)
        return cls(open_library(content))

    def to_json(self) -> str:
        """What tokenizer.json says."""
        return self._library.to_str()

    def library_json(self) -> str:
        """The same as the tokenizers library reads it."""
        return self._library.to_str()

    def save(self, path: str | Path) -> None:
        """Writes tokenizer.json, whole or not at all."""
        path = Path(path)
        made = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with made.open("w", encoding="utf-8", newline="") as file:
                file.write(self.to_json())
                file.flush()
                os.fsync(file.fileno())
            made.replace(path)
        except OSError as error:
            with suppress(OSError):
                made.unlink()
            raise BundleError(f"could not write {path}: {error.strerror}; free some space or choose another folder") from error

    @cached_property
    def fingerprint(self) -> str:
        """A hash that changes with anything that changes how text is encoded."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def mask_id(self) -> int:
        return self._special[MASK]

    @property
    def special_ids(self) -> frozenset[int]:
        """Those that stand for no text: padding, start, end, mask, tags."""
        return frozenset(self._special.values())

    @property
    def size(self) -> int:
        return self._library.get_vocab_size()

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return type(self).from_json, (self.to_json(),)  # the library's own pickle forgets how special tokens in texts are treated

    def tag_id(self, tag: str) -> int:
        if tag not in self.tags:
            raise RegardError(
                f"the model knows no {tag!r} to write; " + (nearest(tag, self.tags) if self.tags else "it was trained without tags")
            )
        return self._special[f"<to:{tag}>"]

    def encode(self, text: str, tag: str | None = None, *, markup: bool | None = None) -> list[int]:
        """Token ids, with no start or end around them; the tag comes first where one is given.

        `markup`: whether the name of a special token in a text is that token. By default it is not, but for a tokenizer from elsewhere.
        """
        return self.encode_batch([text], tag, markup=markup)[0]

    def encode_batch(self, texts: Sequence[str], tag: str | None = None, *, markup: bool | None = None) -> list[list[int]]:
        """Many texts at once, on all cores."""
        first = [] if tag is None else [self.tag_id(tag)]
        batches = (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))
        return [first + encoding.ids for batch in batches for encoding in self._encodings(batch, markup)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The characters of a text that each of its tokens stands for."""
        return list(self._library.encode(text, add_special_tokens=False).offsets)

    def framed(self, ids: Sequence[int], family: Frame, room: int | None = None) -> list[int]:
        """A text as a model reads it: between the tokens that its family puts around one, or a foreign tokenizer its own."""
        return (family if self.frame is None else self.frame).put(ids, room)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special tokens, the unknown one among them, give nothing."""
        return self._library.decode(list(ids), skip_special_tokens=True)

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return self._library.decode_batch([list(ids) for ids in batch], skip_special_tokens=True)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What each token stands for, to be shown: its text with the space before it, or the name of a special token.

        Bytes that are only part of a character are written as \\xe2.
        """
        return [*map(self._pieces.__getitem__, ids)]

    @cached_property
    def _pieces(self) -> Known:
        return Known(self._piece)

    def _piece(self, id: int) -> str:
        token = self._library.id_to_token(id)
        if token is None:
            raise RegardError(f"{id} is no token; ids go from 0 to {self.size - 1}")
        if token in self._special or self.unknown_id is not None:
            return token
        return bytes(BYTE_OF[symbol] for symbol in token).decode("utf-8", "backslashreplace")

    def _reader(self, markup: bool | None) -> tokenizers.Tokenizer:
        if markup:
            raise RegardError("to a tokenizer of ours, names of special tokens in a text are ordinary text; leave markup out")
        return self._library

    def _encodings(self, texts: Sequence[str], markup: bool | None) -> list[tokenizers.Encoding]:
        try:
            return self._reader(markup).encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            broken = next((text for text in texts if isinstance(text, str) and re.search("[\ud800-\udfff]", text)), None)
            if broken is None:
                raise
            raise RegardError(f"half of a character (a lone surrogate) in {broken[:40]!r}; read the text as UTF-8") from error


def open_library(content: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise BundleError(f"the tokenizer is damaged or of another format ({error}); copy it again from where it came") from error


def _tag_token(tag: str) -> str:
    if not re.fullmatch(r"[^\s<>]+", tag):
        raise ConfigError(f"the tag {tag!r} should be a short word without spaces or brackets, such as 'it'")
    return f"<to:{tag}>"


def _learnable(texts: Iterable[str]) -> Iterator[str]:
    """The texts, of which one at least is not empty, with words cut up that are longer than any."""
    any_text = False
    for text in texts:
        any_text = any_text or bool(text.strip())
        yield LONG_WORD.sub(r"\1 ", text) if len(text) > LONGEST_WORD else text
    if not any_text:
        raise CorpusError("there is no text to learn a tokenizer from; every line is empty")


def _symbols() -> dict[str, int]:
    """The printable character that stands for each byte in the library's vocabularies: itself, or one from U+0100 on."""
    printable = [byte for byte in range(256) if chr(byte).isprintable() and not chr(byte).isspace()]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_OF = _symbols()


def _learn_bpe(texts: Iterable[str], settings: TokenizerSettings, special: list[str]) -> tokenizers.Tokenizer:
    library = _over_bytes(models.BPE(), settings)
    library.train_from_iterator(texts, _bpe_trainer(settings.size, special))
    return library


def _learn_unigram(texts: Iterable[str], settings: TokenizerSettings, special: list[str]) -> tokenizers.Tokenizer:
    library = _over_bytes(models.BPE(), settings)
    normalize, split = library.normalizer.normalize_str, library.pre_tokenizer.pre_tokenize_str  # the library is locked while it trains
    words: Counter[str] = Counter()

    def counted() -> Iterator[str]:
        for text in texts:
            words.update(word for word, _ in split(normalize(text)))
            yield text

    # Pieces to choose from. The library's own trainer for unigram gives another result each time it runs, so ours chooses.
    library.train_from_iterator(counted(), _bpe_trainer(4 * settings.size, []))
    chosen = _choose_pieces(words, set(library.get_vocab()), settings.size - len(special))
    unreachable = min(score for _, score in chosen) - 10
    library.model = models.Unigram([(name, unreachable) for name in special] + chosen, None, False)
    return library


def _choose_pieces(words: Counter[str], pieces: set[str], size: int) -> list[tuple[str, float]]:
    """The `size` pieces, all bytes among them, that explain the words best, and the log-probability of each.

    Each round splits every word in its likeliest way, counts the pieces anew, and drops those that others can best stand in for.
    """
    frequent = words.most_common(UNIGRAM_WORDS)
    spread: Counter[str] = Counter(dict.fromkeys(sorted(pieces), 1))
    for word, count in frequent:
        for start in range(len(word)):
            for end in range(start + 1, min(len(word), start + LONGEST_PIECE) + 1):
                if word[start:end] in pieces:
                    spread[word[start:end]] += count * (end - start)
    scores = _log_shares(spread)
    while True:
        for _ in range(2):
            used = _piece_counts(frequent, scores)
            scores = _log_shares(used)
        if len(scores) <= size:
            break
        keep = max(size, len(scores) * 3 // 4) - len(BYTE_OF)
        loss = {piece: used[piece] * (score - _score_without(piece, scores)) for piece, score in scores.items() if piece not in BYTE_OF}
        kept = {*sorted(loss, key=lambda piece: (-loss[piece], piece))[:keep], *BYTE_OF}
        scores = {piece: score for piece, score in scores.items() if piece in kept}
    return sorted(((piece, round(score, 6)) for piece, score in scores.items()), key=lambda item: (-item[1], item[0]))


def _log_shares(counts: Counter[str]) -> dict[str, float]:
    total = counts.total()
    return {piece: math.log(max(count, 0.1) / total) for piece, count in counts.items()}


def _piece_counts(words: list[tuple[str, int]], scores: dict[str, float]) -> Counter[str]:
    pieces = list(scores)
    library = tokenizers.Tokenizer(models.Unigram(list(scores.items()), None, False))
    counts = np.zeros(len(pieces), dtype=np.int64)
    for start in range(0, len(words), BATCH):
        batch = words[start : start + BATCH]
        split = [encoding.ids for encoding in library.encode_batch_fast([word for word, _ in batch])]
        times = np.repeat([count for _, count in batch], list(map(len, split)))
        np.add.at(counts, np.concatenate(split), times)
    return Counter(dict(zip(pieces, counts.tolist(), strict=True)))


def _score_without(piece: str, scores: dict[str, float]) -> float:
    """The log-probability of a piece when it is put together from others."""
    best = [0.0]
    for end in range(1, len(piece) + 1):
        starts = range(1 if end == len(piece) else 0, end)
        best.append(max(best[start] + scores.get(piece[start:end], -math.inf) for start in starts))
    return best[-1]


def _bpe_trainer(size: int, special: list[str]) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=list(BYTE_OF), max_token_length=LONGEST_PIECE, show_progress=False
    )


def _over_bytes(model: models.Model, settings: TokenizerSettings) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(model)
    # One space goes before every text and one comes off when decoding: the first word is then the same token as in mid-sentence.
    library.normalizer = normalizers.Sequence([*_lowered(settings), normalizers.Prepend(" ")])
    split = pre_tokenizers.Split(Regex(BYTE_WORDS), "isolated")
    library.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    library.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    return library


def _learn_characters(texts: Iterable[str], settings: TokenizerSettings, special: list[str]) -> tokenizers.Tokenizer:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    if settings.lowercase:
        lower: Counter[str] = Counter()
        for character, count in counts.items():
            for part in character.lower():
                lower[part] += count
        counts = lower
    known = sorted(counts, key=lambda character: (-counts[character], character))
    vocabulary = [*special, *known[: settings.size - len(special)]]
    # BPE without merges: each character is a token.
    library = tokenizers.Tokenizer(models.BPE({token: id for id, token in enumerate(vocabulary)}, [], unk_token=UNKNOWN))
    library.normalizer = normalizers.Sequence(_lowered(settings))
    library.decoder = decoders.Fuse()
    return library


def _learn_words(texts: Iterable[str], settings: TokenizerSettings, special: list[str]) -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.WordLevel({}, UNKNOWN))
    library.normalizer = normalizers.Sequence(_lowered(settings))
    library.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    tight = [decoders.Replace(Regex(pattern), "") for pattern in (NO_SPACE_BEFORE, NO_SPACE_AFTER)]
    library.decoder = decoders.Sequence([decoders.Replace(Regex("^"), " "), decoders.Fuse(), *tight, decoders.Strip(" ", 1, 0)])
    library.train_from_iterator(texts, trainers.WordLevelTrainer(vocab_size=settings.size, special_tokens=special, show_progress=False))
    return library


def _lowered(settings: TokenizerSettings) -> list[normalizers.Normalizer]:
    return [normalizers.Lowercase()] if settings.lowercase else []


LEARNERS = {"bpe": _learn_bpe, "unigram": _learn_unigram, "char": _learn_characters, "word": _learn_words}
