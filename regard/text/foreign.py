"""Tokenizers that others made: any tokenizer.json of the tokenizers library, with the same ids as where it came from.

The file of such a one begins with a `regard` key that says which of its tokens do what; the rest is the library's own, unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Self

import tokenizers

from regard.errors import BundleError, RegardError
from regard.text.chat_template import ChatTemplate
from regard.text.library import at_work, open_library, trusted
from regard.text.tokenizer import FOREIGN, Frame, Tokenizer
from regard.text.vocabulary import BYTE_OF

WORD_START = "▁"  # how SentencePiece writes a space
ELSEWHERE = "\ue000"  # before a piece that only the other side of a translator splits text into: no text has it, so none becomes that piece
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# What transformers takes out of decoded text where a tokenizer asks for it.
LOOSE = [(" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"), (" 've", "'ve"),
         (" 're", "'re")]  # fmt: skip


@dataclass(frozen=True)
class Roles:
    """Which tokens of a foreign vocabulary do what, and what else its library does not know of itself."""

    pad: int
    start: int  # what a decoder reads before its first word; an encoder's first token
    end: int  # what a decoder says when it is done; an encoder's last token
    mask: int | None = None  # None: it has none
    unknown: int | None = None  # None: every text can be encoded
    tidy: bool = False  # spaces before punctuation are taken out of decoded text
    chat: str | None = None  # a Jinja template by which conversations are written
    unknown_from: int | None = None  # its own ids from here on are of pieces that the model does not know

    @classmethod
    def parse(cls, settings: Any) -> Self:
        known = {field.name for field in fields(cls)}
        try:
            roles = cls(**settings)
        except TypeError:
            raise BundleError(f"the tokenizer's 'regard' key should have {', '.join(sorted(known))}; import it again") from None
        optional = (id for id in (roles.mask, roles.unknown, roles.unknown_from) if id is not None)
        if not all(isinstance(id, int) and id >= 0 for id in (roles.pad, roles.start, roles.end, *optional)):
            raise BundleError("the tokenizer's 'regard' key names its tokens by their ids; import it again")
        if not isinstance(roles.chat, str | None):
            raise BundleError("the tokenizer's 'regard' key has a 'chat' that is no text; import it again")
        if roles.unknown_from is not None and (roles.unknown is None or roles.unknown >= roles.unknown_from):
            raise BundleError("the tokenizer's 'regard' key has an 'unknown_from' but no such unknown token; import it again")
        return roles


class ForeignTokenizer(Tokenizer):
    """A tokenizer from elsewhere. Names of special tokens in a text are those tokens, as they are where it came from."""

    def __init__(self, library: tokenizers.Tokenizer, roles: Roles) -> None:
        library.encode_special_tokens = False
        (self._library, self._highest), self.roles = trusted(library), roles
        self._special = {token.content: id for id, token in sorted(library.get_added_tokens_decoder().items()) if token.special}
        for role in ("start", "end", "mask", "unknown"):
            id = getattr(roles, role)
            if id is not None and (id >= self.size or library.id_to_token(id) is None):
                raise BundleError(f"the tokenizer has no token {id}, which should be its {role} token; import it again")
        self.pad_id, self.start_id, self.end_id = roles.pad, roles.start, roles.end
        self.unknown_id = roles.unknown
        self.tags = tuple(name[2:-2] for name in self._special if name.startswith(">>") and name.endswith("<<"))  # Marian's
        self.frame = _frame(library)
        if max((*self.frame.before, *self.frame.after), default=0) >= self.size:
            raise BundleError("the tokenizer puts tokens around a text that it does not have; import it again")
        steps = _steps(library)
        self._bytes = "ByteLevel" in steps
        self.spaced = self._bytes or "Metaspace" in steps or WORD_START in steps

    @classmethod
    def from_json(cls, content: str) -> Self:
        try:
            settings, end = json.JSONDecoder().raw_decode(content, len(FOREIGN))
        except (ValueError, IndexError) as error:
            raise BundleError(f"the tokenizer is damaged ({error}); copy it again from where it came") from error
        return cls(open_library("{" + content[end:].lstrip(" ,")), Roles.parse(settings))

    def to_json(self) -> str:
        return f"{FOREIGN}{json.dumps(asdict(self.roles), ensure_ascii=False)},{self.library_json()[1:]}"

    @cached_property
    def conversations(self) -> ChatTemplate | None:
        """How they are written out, where the model was taught any."""
        return ChatTemplate(self.roles.chat) if self.roles.chat else None

    @property
    def mask_id(self) -> int:
        if self.roles.mask is None:
            raise RegardError("the tokenizer has no mask token, so nothing can be masked with it; choose a model trained on masked words")
        return self.roles.mask

    @property
    def special_ids(self) -> frozenset[int]:
        roles = (self.roles.pad, self.roles.start, self.roles.end, self.roles.mask, self.roles.unknown)
        return frozenset(self._special.values()) | {id for id in roles if id is not None}

    @property
    def size(self) -> int:
        """One more than the highest id: some vocabularies have gaps."""
        return self.roles.unknown_from or 1 + self._highest

    def tag_id(self, tag: str) -> int:
        return self._special[f">>{tag}<<"] if tag in self.tags else super().tag_id(tag)

    def encode_batch(self, texts: Sequence[str], tag: str | None = None, *, markup: bool | None = None) -> list[list[int]]:
        found = super().encode_batch(texts, tag, markup=markup)
        if self.roles.unknown_from is None or self.roles.unknown is None:
            return found
        return [[id if id < self.roles.unknown_from else self.roles.unknown for id in ids] for ids in found]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tidied(super().decode(ids))

    def decode_batch(self, batch: Sequence[Sequence[int]]) -> list[str]:
        return [self._tidied(text) for text in super().decode_batch(batch)]

    def _tidied(self, text: str) -> str:
        for loose, tight in LOOSE if self.roles.tidy else ():
            text = text.replace(loose, tight)
        return text

    def _piece(self, id: int) -> str:
        token = self._library.id_to_token(id)
        if token is None:
            raise RegardError(f"{id} is no token; ids go from 0 to {self.size - 1}")
        if token in self._special:
            return token
        token = token.removeprefix(ELSEWHERE)
        if self._bytes and all(symbol in BYTE_OF for symbol in token):
            return bytes(BYTE_OF[symbol] for symbol in token).decode("utf-8", "backslashreplace")
        if byte := BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte[1], 16)]).decode("utf-8", "backslashreplace")
        return token.replace(WORD_START, " ") if self.spaced else token.removeprefix("##")

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same library, to which names of special tokens are ordinary text."""
        library = open_library(self.library_json())
        library.encode_special_tokens = True
        return library

    def _reader(self, markup: bool | None) -> tokenizers.Tokenizer:
        return self._literal if markup is False else self._library


def _frame(library: tokenizers.Tokenizer) -> Frame:
    """What the library's own post-processor puts before and after a text."""
    with at_work():
        probe = next((each for text in ("a", "0", ".", " ", "é") if (each := library.encode(text, add_special_tokens=False)).ids), None)
        if probe is None or library.post_processor is None:
            return Frame()
        whole = library.post_process(probe)
    text = [place for place, special in enumerate(whole.special_tokens_mask) if not special]
    return Frame(tuple(whole.ids[: text[0]]), tuple(whole.ids[text[-1] + 1 :])) if text else Frame()


def _steps(library: tokenizers.Tokenizer) -> set[str]:
    """The kinds of steps by which it splits and joins, and ▁ where one of them writes it."""
    states = [part.__getstate__().decode() for part in (library.normalizer, library.pre_tokenizer, library.decoder) if part is not None]
    kinds = {kind for state in states for kind in re.findall(r'"type":\s*"(\w+)"', state)}
    return kinds | ({WORD_START} if any(WORD_START in json.dumps(json.loads(state), ensure_ascii=False) for state in states) else set())
