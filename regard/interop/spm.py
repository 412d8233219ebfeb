"""SentencePiece model files (spiece.model, tokenizer.model, source.spm): what they say, and a tokenizer that splits as they do."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.errors import ConversionError
from regard.interop.vocabularies import Kind, Pieces
from regard.text.foreign import ELSEWHERE, WORD_START

UNIGRAM, BYTE_PAIRS = 1, 2  # of model_type
LONGEST_NUMBER = 10  # bytes, which hold 64 bits


@dataclass(frozen=True)
class Model:
    """What a SentencePiece file says."""

    path: Path
    pieces: Pieces
    kind: int  # UNIGRAM or BYTE_PAIRS
    characters: bytes  # how characters are normalised, as SentencePiece compiles it; empty: not at all
    space_first: bool  # a space is put before every text
    single_spaces: bool  # spaces around a text go, and of several one stays
    byte_fallback: bool  # what no piece covers is written as bytes


def read_model(path: Path) -> Model:
    """Reads a file by the field numbers of SentencePiece's published format."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConversionError(f"can't read {path}: {error.strerror}") from error
    try:
        texts, scores, kinds = [], [], []
        trainer: dict[int, bytes | int] = {}
        normalizer: dict[int, bytes | int] = {}
        for number, value in _fields(content):
            if number == 1:
                piece = dict(_fields(_message(value)))
                texts.append(_message(piece[1]).decode())
                scores.append(struct.unpack("<f", _message(piece.get(2, bytes(4))))[0])
                kinds.append(int(piece.get(3, Kind.NORMAL)))
            elif number == 2:
                trainer = dict(_fields(_message(value)))
            elif number == 3:
                normalizer = dict(_fields(_message(value)))
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise ConversionError(f"{path} is damaged or no SentencePiece model; copy it again from where it came") from error
    kind = int(trainer.get(3, UNIGRAM))
    if not texts or kind not in (UNIGRAM, BYTE_PAIRS):
        raise ConversionError(f"{path} is no SentencePiece model of kind unigram or bpe; copy it again from where it came")
    characters = normalizer.get(2, b"")
    return Model(
        path,
        Pieces(texts, kinds, scores),
        kind,
        _message(characters),
        space_first=bool(normalizer.get(3, 1)),
        single_spaces=bool(normalizer.get(4, 1)),
        byte_fallback=bool(trainer.get(35, 0)),
    )


def _fields(content: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message in protocol buffers' wire format: number and value."""
    place = 0
    while place < len(content):
        key, place = _number(content, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _number(content, place)
            yield number, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError(f"no field has the wire type {kind}")
        length, place = _number(content, place) if kind == 2 else ({1: 8, 5: 4}[kind], place)
        if place + length > len(content):
            raise ValueError("cut short")
        yield number, content[place : place + length]
        place += length


def _number(content: bytes, place: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first, and where the next field begins."""
    value = 0
    for shift in range(0, 7 * LONGEST_NUMBER, 7):
        byte = content[place]
        value |= (byte & 127) << shift
        place += 1
        if byte < 128:
            return value, place
    raise ValueError("a number without an end")


def _message(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where bytes should be")
    return value


def library_of(model: Model) -> tokenizers.Tokenizer:
    """A tokenizer that gives SentencePiece's own ids."""
    library = _spaced(model, _splitter(model, list(_scores(model).items())))
    library.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in model.pieces.of(Kind.CONTROL, Kind.UNKNOWN)])
    if model.kind == BYTE_PAIRS:
        library.add_tokens([AddedToken(text, special=False, normalized=False) for text in model.pieces.of(Kind.OWN)])
    return library


def _scores(model: Model) -> dict[str, float]:
    """That of each piece; those that someone added are always chosen, so SentencePiece makes theirs better than any."""
    scores = dict(zip(model.pieces.texts, model.pieces.scores, strict=True))
    best = max((scores[text] for text in model.pieces.of(Kind.NORMAL)), default=0.0)
    return scores | {text: len(text) * best - 0.1 for text in model.pieces.of(Kind.OWN)}


def library_with_ids(model: Model, ids: Mapping[str, int], special: Collection[str], unknown: str) -> tokenizers.Tokenizer:
    """The same splitting, but each piece has the id that a vocabulary gives it, which may know pieces of other files as well.

    Pieces that the vocabulary lacks come after all of its ids: whoever uses it takes them for the unknown token.
    """
    if sorted(ids.values()) != list(range(len(ids))):
        raise ConversionError(f"the vocabulary that goes with {model.path} has ids that are missing or twice; copy it again")
    scores = _scores(model)
    usable = set(model.pieces.of(Kind.NORMAL, Kind.OWN, Kind.BYTE))
    lowest = min(scores[text] for text in usable)
    vocabulary = [
        (text, scores[text]) if text in usable else (text if text in special else ELSEWHERE + text, lowest)
        for text in sorted(ids, key=ids.__getitem__)
    ]
    vocabulary += [(text, scores[text]) for text in model.pieces.texts if text in usable and text not in ids]
    library = _spaced(model, _splitter(model, vocabulary, unknown))
    spaces = decoders.Replace(Regex("^ +| +$"), "")  # none at either end of what was written
    library.decoder = decoders.Sequence([decoders.Replace(ELSEWHERE, ""), library.decoder, spaces])
    return library


def _splitter(model: Model, vocabulary: list[tuple[str, float]], unknown: str | None = None) -> models.Model:
    ids = {text: id for id, (text, _) in enumerate(vocabulary)}
    name = unknown or next(iter(model.pieces.of(Kind.UNKNOWN)), None)
    if model.kind == BYTE_PAIRS:
        return models.BPE(ids, model.pieces.pairs(), unk_token=name, fuse_unk=True, byte_fallback=model.byte_fallback)
    return models.Unigram(vocabulary, None if name is None else ids[name], model.byte_fallback)


def _spaced(model: Model, inner: models.Model) -> tokenizers.Tokenizer:
    """With characters normalised and spaces treated as the file says."""
    library = tokenizers.Tokenizer(inner)
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(model.characters)] if model.characters else []
    if model.single_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    # Pieces that go over a space can only be found where the text is not split at them.
    whole = any(WORD_START in text[1:] for text in model.pieces.of(Kind.NORMAL))
    if model.space_first:
        steps.append(normalizers.Prepend(" "))
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "never", not whole)
    library.decoder = decoders.Sequence(
        [
            decoders.Replace(WORD_START, " "),
            *([decoders.ByteFallback()] if model.byte_fallback else []),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if model.space_first else []),
        ]
    )
    return library
