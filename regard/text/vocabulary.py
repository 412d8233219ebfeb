"""A vocabulary, learned from texts: pairs of bytes that are merged, pieces that explain words best, characters, or words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import CorpusError

if TYPE_CHECKING:
    from regard.recipe import TokenizerSettings

UNKNOWN = "<unk>"

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
WORDS_AT_ONCE = 10_000  # that are split at a time


def learnable(texts: Iterable[str]) -> Iterator[str]:
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
    library = over_bytes(models.BPE(), settings)
    library.train_from_iterator(texts, _bpe_trainer(settings.size, special))
    return library


def _learn_unigram(texts: Iterable[str], settings: TokenizerSettings, special: list[str]) -> tokenizers.Tokenizer:
    library = over_bytes(models.BPE(), settings)
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
    for start in range(0, len(words), WORDS_AT_ONCE):
        batch = words[start : start + WORDS_AT_ONCE]
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


def over_bytes(model: models.Model, settings: TokenizerSettings) -> tokenizers.Tokenizer:
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
