"""How long a tokenizer may make a text: found out from its steps when it is loaded, because any file may say anything.

What is promised: a text grows at most GROWTH-fold on its way to tokens, beyond what Unicode's own forms do to it once, and so does what is
written on its way back. What is not: patterns that take time as the square of a text's length, which no look at them finds out.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import tokenizers

from regard.errors import BundleError

GROWTH = 512  # SentencePiece's rules for characters come to 72, and with all of XLNet's steps around them to 288
MOST_STEPS = 256
LONGEST_TOKEN = 1 << 14  # characters
WIDEST_GAP = 1 << 20  # ids that stand for nothing; some vocabularies have a few
LONGEST_AFFIX = 64  # characters that are put to every piece of a word
LONGEST_WORD = 1 << 10  # characters of a word that are compared with every piece; BERT's is 100
LONGEST_FRAME = 1 << 10  # tokens around a text

UNICODE = {"NFD": 4, "NFKD": 18, "NFC": 3, "NFKC": 18, "Lowercase": 2}  # once they have done what they do, they change nothing more
OTHERS = {"ByteLevel": 4, "BertNormalizer": 8, "Metaspace": 2, "BPEDecoder": 2, "CTC": 2}


def refuse_growth(library: tokenizers.Tokenizer, ids: Mapping[str, int]) -> None:
    """An error, where a tokenizer asks for more work or memory than any that was learned. `ids`: of its tokens."""
    there = _steps(library.normalizer), _steps(library.pre_tokenizer), _steps(library.decoder)
    normalizer, splitter, decoder = map(list, there)
    for steps in ([*normalizer, *splitter], decoder):
        if len(steps) > MOST_STEPS or _growth(steps) > GROWTH:
            raise BundleError("the tokenizer's steps would make texts grow without bound; don't trust it")
    model = library.model
    affixes = (getattr(model, name, None) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    if any(len(affix) > LONGEST_AFFIX for affix in affixes) or getattr(model, "max_input_chars_per_word", 0) > LONGEST_WORD:
        raise BundleError("the tokenizer's words or what is put to their pieces are longer than any language has; don't trust it")
    if max(ids.values(), default=0) > len(ids) + WIDEST_GAP:  # the library writes a vocabulary with a place for each id
        raise BundleError(f"the tokenizer has ids far beyond its {len(ids):,} tokens; don't trust it")
    if max(map(len, ids), default=0) > LONGEST_TOKEN:
        raise BundleError(f"the tokenizer has a token of more than {LONGEST_TOKEN:,} characters; don't trust it")
    for step in _steps(library.post_processor):
        _refuse_frame(step)


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """What a part of a tokenizer does, one after the other; of nested sequences too."""
    if part is not None:
        yield from _flat(json.loads(part.__getstate__()))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for inner in next(value for value in step.values() if isinstance(value, list)):
        yield from _flat(inner)


def _growth(steps: list[dict[str, Any]]) -> float:
    """How many times its length a text may have after all steps."""
    kinds = Counter(step["type"] for step in steps)
    again = prod(times ** (kinds[kind] - 1) for kind, times in UNICODE.items() if kinds[kind])
    return again * prod(map(_times, steps))


def _times(step: dict[str, Any]) -> float:
    """How many times its length a text may have after a step."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)} if old:
            return max(1.0, len(new) / len(old))
        case {"type": "Replace", "content": str(new)}:  # a pattern may stand for nothing, between any two characters
            return 1.0 + len(new)
        case {"type": "Prepend", "prepend": str(new)}:
            return 1.0 + len(new)
        case {"type": "Metaspace", "prepend_scheme": "never"}:
            return 1.0
        case {"type": "Precompiled", "precompiled_charsmap": str(rules)}:
            return float(_longest_rule(base64.b64decode(rules)))
    return OTHERS.get(step["type"], 1.0)


def _longest_rule(rules: bytes) -> int:
    """The characters of the longest text that SentencePiece's compiled rules put in place of another."""
    index = int.from_bytes(rules[:4], "little")  # its length; the texts come after it, with a zero behind each
    return max(1, *(len(text.decode("utf-8", "replace")) for text in rules[4 + index :].split(b"\0")))


def _refuse_frame(step: dict[str, Any]) -> None:
    """A template has the text once, and not very much around it."""
    if step["type"] != "TemplateProcessing":
        return
    single, special = step["single"], step["special_tokens"]
    names = [part["SpecialToken"]["id"] for part in single if "SpecialToken" in part]
    if missing := set(names) - set(special):
        raise BundleError(f"the tokenizer puts {min(missing)!r} around a text and does not say what that is; copy it again")
    around = sum(len(special[name]["ids"]) for name in names)
    if sum("Sequence" in part for part in single) != 1 or around > LONGEST_FRAME:
        raise BundleError("the tokenizer puts more around a text than any model reads, or the text itself twice; don't trust it")
