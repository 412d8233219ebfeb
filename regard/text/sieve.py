"""Which rows of training data are left out, and why: those that stand in dev or test, and those that little can be learned from."""

from __future__ import annotations

import hashlib
import sys
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache

from regard.errors import ConfigError
from regard.recipe import DataFile, DataSettings, Task
from regard.text.corpus import Row

SHORT = 20  # characters; names and greetings may be the same in both languages, or far longer in one


class Sieve:
    """Says of each row in turn why it is left out, if it is.

    It remembers the rows that it let through, so each reading of the data needs a new one. Where duplicates are dropped, memory is some 70
    bytes a row: texts are remembered by 8 bytes of a hash.
    """

    def __init__(self, data: DataSettings, task: Task, held_out: frozenset[int] = frozenset()) -> None:
        self.settings, self.task, self.held_out = data.filter, task, held_out
        self.seen: set[int] = set()

    def reason(self, row: Row, file: DataFile | None = None) -> str | None:
        """Why this row of that file is left out; None: it is kept."""
        texts = row.texts[1:] if self.task == "classify" else row.texts  # a label is no text
        found = next((reason for text in texts if (reason := self._of_text(text)) is not None), None)
        if found is None and self.task == "translate":
            found = self._of_pair(row.texts[0], row.texts[1], None if file is None else file.script)
        if found is None and self.held_out and text_key(learned_from(row, self.task)) in self.held_out:
            found = "in dev or test"
        if found is None and self.settings.drop_duplicates:
            found = self._again("\t".join((*row.texts, (file and file.to) or "")))
        return found

    def _of_text(self, text: str) -> str | None:
        settings, length = self.settings, len(text)
        if length < settings.shortest:
            return f"under {settings.shortest} characters"
        if settings.longest and length > settings.longest:
            return f"over {settings.longest} characters"
        if settings.most_words and len(text.split()) > settings.most_words:
            return f"over {settings.most_words} words"
        if settings.letters and len(letters(text)) < settings.letters * len("".join(text.split())):
            return "too few letters"
        return None

    def _of_pair(self, source: str, target: str, script: str | None) -> str | None:
        settings = self.settings
        shorter, longer = sorted((len(source), len(target)))
        if settings.ratio and longer > SHORT and longer > settings.ratio * shorter:
            return f"one side over {settings.ratio:g} times as long"
        if settings.drop_same and longer > SHORT and plain(source) == plain(target):
            return "source and target the same"
        if script is not None and share_in(script, target) < settings.script_share:
            return f"not in {script}"
        return None

    def _again(self, whole: str) -> str | None:
        key = text_key(whole)
        if key in self.seen:
            return "a duplicate"
        self.seen.add(key)
        return None


def held_out_keys(rows: Iterable[Row], task: Task) -> frozenset[int]:
    """What of dev and test must not be learned from."""
    return frozenset(text_key(learned_from(row, task)) for row in rows)


def learned_from(row: Row, task: Task) -> str:
    """What must not be in training and test alike: the source or the text, whatever its case, spaces and punctuation."""
    return plain(row.texts[1 if task == "classify" else 0])


def plain(text: str) -> str:
    """A text's words alone, in lower case; of a text without any, what is there."""
    folded = text.casefold()
    return " ".join(folded.translate(WORDS_ALONE).split()) or " ".join(folded.split())


def text_key(text: str) -> int:
    """Eight bytes that stand for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def letters(text: str) -> str:
    """A text's letters with their marks: without these, a Hindi word would lose its vowels."""
    return text.translate(LETTERS_ALONE)


def share_in(script: str, text: str) -> float:
    """How much of a text's letters are of a script; a text without letters is in every script."""
    written = letters(text)
    return 1 - len(written.translate(without_script(script))) / len(written) if written else 1.0


class Translation(dict[int, int | None]):
    """For str.translate: what becomes of each character, found out when it is first met."""

    def __init__(self, change: Callable[[str], int | None]) -> None:
        super().__init__()
        self.change = change

    def __missing__(self, code: int) -> int | None:
        self[code] = self.change(chr(code))
        return self[code]


WORDS_ALONE = Translation(lambda character: ord(" ") if unicodedata.category(character)[0] in "PSZC" else ord(character))
LETTERS_ALONE = Translation(lambda character: ord(character) if unicodedata.category(character)[0] in "LM" else None)


@cache
def without_script(name: str) -> Translation:
    """Takes out what is of a script, by the first word of its name in Unicode: Latin, Cyrillic, Greek, Devanagari, Hangul, CJK …"""
    start = f"{name.upper()} "
    if not any(unicodedata.name(chr(code), "").startswith(start) for code in range(sys.maxunicode + 1)):
        raise ConfigError(f"script = {name!r}: Unicode has no characters of that name; write it as in Latin, Cyrillic, Greek or Devanagari")
    return Translation(lambda character: None if unicodedata.name(character, "").startswith(start) else ord(character))
