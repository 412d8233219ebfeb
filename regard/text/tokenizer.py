"""Text to token ids and back. A tokenizer is learned from the corpus itself and is one file, tokenizer.json."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import tokenizers

from regard.errors import BundleError, ConfigError, RegardError, nearest
from regard.text.library import at_work, open_library, trusted
from regard.text.vocabulary import BYTE_OF, LEARNERS, UNKNOWN, learnable

if TYPE_CHECKING:
    from regard.recipe import TokenizerSettings

PAD, START, END, MASK = "<pad>", "<start>", "<end>", "<mask>"
SPECIAL = (PAD, START, END, MASK)

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
        self._library, highest = trusted(library)
        # Only `encode` and the model choose special tokens: "<end>" in a text of a user is five ordinary characters.
        library.encode_special_tokens = True
        added = library.get_added_tokens_decoder()
        self._special: dict[str, int] = {token.content: id for id, token in sorted(added.items()) if token.special}
        missing = [name for name in SPECIAL if name not in self._special]
        if missing:
            raise BundleError(f"the tokenizer has no {', '.join(missing)}; it was not made by regard, so use: regard import")
        if highest >= self.size:
            raise BundleError("the tokenizer's ids are not those from 0 on; copy it again from where it came")
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
        library = LEARNERS[settings.kind](learnable(texts), settings, special)
        library.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in special])
        return cls(library)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """A tokenizer of ours, or one from elsewhere that was imported."""
        from regard.text.trial import refuse_untrusted

        path = Path(path)
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise BundleError(f"can't read the tokenizer {path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise BundleError(f"{path} is not UTF-8 text (byte {error.start}); copy it again from where it came") from error
        refuse_untrusted(path, content)
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
        with at_work():
            return list(self._library.encode(text, add_special_tokens=False).offsets)

    def framed(self, ids: Sequence[int], family: Frame, room: int | None = None) -> list[int]:
        """A text as a model reads it: between the tokens that its family puts around one, or a foreign tokenizer its own."""
        return (family if self.frame is None else self.frame).put(ids, room)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids; special tokens, the unknown one among them, give nothing."""
        with at_work():
            return self._library.decode(list(ids), skip_special_tokens=True)

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        with at_work():
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
        if not all(symbol in BYTE_OF for symbol in token):
            raise BundleError(f"the tokenizer's token {token[:40]!r} stands for no bytes; copy it again from where it came")
        return bytes(BYTE_OF[symbol] for symbol in token).decode("utf-8", "backslashreplace")

    def _reader(self, markup: bool | None) -> tokenizers.Tokenizer:
        if markup:
            raise RegardError("to a tokenizer of ours, names of special tokens in a text are ordinary text; leave markup out")
        return self._library

    def _encodings(self, texts: Sequence[str], markup: bool | None) -> list[tokenizers.Encoding]:
        try:
            with at_work():
                return self._reader(markup).encode_batch_fast(texts, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            broken = next((text for text in texts if isinstance(text, str) and re.search("[\ud800-\udfff]", text)), None)
            if broken is None:
                raise
            raise RegardError(f"half of a character (a lone surrogate) in {broken[:40]!r}; read the text as UTF-8") from error


def _tag_token(tag: str) -> str:
    if not re.fullmatch(r"[^\s<>]+", tag):
        raise ConfigError(f"the tag {tag!r} should be a short word without spaces or brackets, such as 'it'")
    return f"<to:{tag}>"
