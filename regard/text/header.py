"""The first line of a table, where it names the columns instead of being a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations

from regard.recipe import Task

READ = {"source", "src", "input", "original", "prompt", "question"}
WRITTEN = {"target", "tgt", "trg", "output", "translation", "translated", "reference", "ref", "response", "answer"}
LABELS = {"label", "labels", "class", "category", "target", "sentiment", "intent", "topic", "rating", "stars", "polarity", "y"}
TEXTS = {
    "text", "texts", "sentence", "sentences", "review", "message", "content", "comment", "document", "body", "tweet", "title", "headline",
    "sms", "question", "query", "utterance", "phrase", "description", "input", "source", "x",
}  # fmt: skip
PLAIN = {"text", "texts", "sentence", "sentences", "content", "document"}
LANGUAGES = {  # what a column may be called after its language: code, English name, own name
    "ar": "arabic العربية", "bn": "bengali বাংলা", "cs": "czech čeština", "da": "danish dansk", "de": "german deutsch",
    "el": "greek ελληνικά", "en": "english", "es": "spanish español espanol", "fa": "persian فارسی", "fi": "finnish suomi",
    "fr": "french français francais", "he": "hebrew עברית", "hi": "hindi हिन्दी हिंदी", "hu": "hungarian magyar", "id": "indonesian",
    "it": "italian italiano", "ja": "japanese 日本語", "ko": "korean 한국어", "nl": "dutch nederlands", "no": "norwegian norsk",
    "pl": "polish polski", "pt": "portuguese português portugues", "ro": "romanian română", "ru": "russian русский",
    "sv": "swedish svenska", "ta": "tamil தமிழ்", "th": "thai ไทย", "tr": "turkish türkçe", "uk": "ukrainian українська",
    "ur": "urdu اردو", "vi": "vietnamese", "zh": "chinese mandarin 中文 汉语 漢語",
}  # fmt: skip
NAMED = {name: code for code, names in LANGUAGES.items() for name in names.split()}
LOOKED_AT = 20  # columns whose names are compared
FILLERS = {"text", "texts", "sentence", "sentences", "language", "lang", "side"}  # source_text, "English sentence"


def names_columns(texts: Sequence[str], task: Task) -> bool:
    """Whether the texts of a first line are names of columns: of both sides, or of two different languages; or of label and text.

    Each must be a name and nothing else. "German" beside "Deutsch" is a translation, and codes count only beside "en": "it" and "es" are
    words as well.
    """
    if task == "classify":
        label, text = (cell.strip().casefold() for cell in texts)
        return label in LABELS and text in TEXTS and label != text
    if task != "translate":
        return texts[0].strip().casefold() in PLAIN
    source, target = (_name(cell) for cell in texts)
    if source in READ and target in WRITTEN:
        return True
    if source in NAMED and target in NAMED:
        return NAMED[source] != NAMED[target]
    codes = [re.split("[_-]", name)[0] for name in (source, target)]
    return "en" in codes and all(code in LANGUAGES for code in codes) and codes[0] != codes[1] and max(map(len, (source, target))) <= 5


def named_columns(cells: Sequence[str], task: Task) -> tuple[int, int] | None:
    """Which two columns of a first line are named as what the task reads, the first ones if they are; None where none are.

    What is called "id" numbers the rows, unless there is no other column that it could be instead.
    """
    numbered = [column for column, cell in enumerate(cells[:LOOKED_AT]) if _name(cell) != "id"]
    pairs = (*permutations(numbered, 2), (0, 1))
    return next((pair for pair in pairs if names_columns([cells[column] for column in pair], task)), None)


def _name(cell: str) -> str:
    """What a column is called, without words that say nothing of it."""
    name = cell.strip().casefold()
    parts = [part for part in re.split(r"[\s_.-]+", name) if part]
    rest = [part for part in parts if part not in FILLERS]
    return rest[0] if len(parts) > 1 and len(rest) == 1 else name
