"""Where sentences end.

One rule for texts of every language, since nobody says which one a text is in: a mark that ends sentences, and after a full stop also what
stands around it. The time grows with the text and not with its square, whatever the text is like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from regard.text import abbreviations

CLOSING = r"""(?:[\xa0\u202f]?["'”’“‘»›«‹)\]}」』】》〉）］｝]|[ ][»›](?=[\s.,;:!?]|$))*+"""  # a French » has a space before it
OPENING = "\"'“„”‘‚’«»‹›(\\[{¿¡*•—–-"
NEAR = 40  # characters around a mark that are looked at
LONGEST_SAYING = 6  # words: 'Tom asked in a low voice.'
QUOTED = 80  # and after a quotation, where someone may be said to have said it


def marks(spaced: str, unspaced: str) -> str:
    """Some marks and the quotes that they close.

    Where a mark must have a space after it, 3.5, 10:30 and 1,000 stay whole; Chinese and Japanese write none.
    """
    return rf"(?<![{spaced}])[{spaced}]++{CLOSING}(?=\s)|(?<![{unspaced}])[{unspaced}]++{CLOSING}"


END = re.compile(rf"{marks('.!?…؟۔।॥։።', '。！？｡')}|\S(?=[^\S\n]*+\n)")
LETTER = re.compile(r"[^\W_]")
OPENED = re.compile(r".*[(\[{\"“„«‘‚]", re.DOTALL)
FIRST_WORD = re.compile(rf"[\s\xa0{OPENING}]*+([^\s.,;:!?…)\]}}»”\"]*)")
ACRONYM = re.compile(r"(?:[^\W\d_]\.-?)+[^\W\d_]")
ROMAN = re.compile(r"[IVXLC]+")
ITEM = re.compile(r"[*•-]+\s*+\w|['’][a-z]\s[A-Z]")  # of a list; or as Dutch has it: 's Nachts
AFTER_STOP = re.compile(r"[^.!?…।]*+")


def _words(lists: Mapping[str, str]) -> frozenset[str]:
    """Those of all languages."""
    return frozenset(word for own in lists.values() for word in own.split())


GOES_ON, BEFORE_NUMBER, MAY_END = _words(abbreviations.GOES_ON), _words(abbreviations.BEFORE_NUMBER), _words(abbreviations.MAY_END)
BEGINNERS, SAYS = _words(abbreviations.BEGINNERS), _words(abbreviations.SAYS)
BEFORE_ORDINAL, AFTER_ORDINAL = _words(abbreviations.BEFORE_ORDINAL), _words(abbreviations.AFTER_ORDINAL)
NAMES, LETTERS = frozenset(abbreviations.NAMES.split()), frozenset(abbreviations.LETTERS.split())


def sentences(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends, in order. Between them are spaces alone; what has neither letter nor digit is part of one."""
    found: list[tuple[int, int]] = []
    start = read = after_spaces(text, 0)
    said = False  # whether there is a letter or a digit from `start` to `read`
    for end in sentence_ends(text, start, len(text)):
        said = said or LETTER.search(text, read, end) is not None
        read = end
        if said:
            found.append((start, end))
            start = read = after_spaces(text, end)
            said = False
    if start < len(text):
        end = len(text.rstrip())
        if found and LETTER.search(text, read, end) is None:
            start, _ = found.pop()
        found.append((start, end))
    return found


def sentence_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """The ends of sentences from `start` to `limit`, but for the text's own."""
    for mark in END.finditer(text, start, limit):
        if _ends(text, start, mark):
            yield mark.end()


def after_spaces(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _ends(text: str, start: int, mark: re.Match[str]) -> bool:
    begin, end = mark.span()
    following = after_spaces(text, end)
    if following == len(text) or "\n" in text[end:following]:
        return True
    if begin > start and text[begin - 1] in "([":  # a doubt (?) or a gap [...] is no end
        return False
    after = FIRST_WORD.match(text, following, following + NEAR)
    assert after is not None
    next_word = after[1]
    if next_word[:1].islower():
        return ITEM.match(text, following) is not None
    written = mark[0]
    if written[-1] not in ".!?…।॥؟。" and _said(text, following):
        return False
    if written[0] != "." and written != "!":
        return True
    if len(written) > 1 or begin == start or text[begin - 1].isspace():  # an ellipsis, a quotation's end, a mark on its own
        return True
    before = text[max(start, begin - NEAR) : begin].split()
    last, previous = OPENED.sub("", before[-1]), before[-2] if len(before) > 1 else ""
    if written == "!":
        return f"{last}!".lower() not in NAMES
    initial = len(next_word) == 1 and text[after.end() : after.end() + 1] == "."
    return _stops(last, previous, next_word, initial=initial)


def _said(text: str, place: int) -> bool:
    """Whether someone is said to have said what stood in quotation marks before."""
    rest = AFTER_STOP.match(text, place, min(len(text), place + QUOTED))
    assert rest is not None
    words = rest[0].split()
    return len(words) <= LONGEST_SAYING and any(word.strip(",;:") in SAYS for word in words)


def _stops(last: str, previous: str, next_word: str, *, initial: bool) -> bool:
    """Whether a full stop ends a sentence, by the last two words before it and the next, which is not in lower case; `initial`: as in J."""
    elided = re.split("['’]", last)[-1]  # l'avv.
    plain, following = last.lower(), next_word.lower()
    begins = following in BEGINNERS and not initial
    if plain in GOES_ON or last in GOES_ON or elided in GOES_ON or following in MAY_END:
        return False
    if next_word[:1].isdigit() and (plain in BEFORE_NUMBER or elided in BEFORE_NUMBER or plain.endswith("str")):  # Hauptstr. 5
        return False
    if plain in MAY_END:
        return True
    if last.isdecimal():
        return not _is_ordinal(last, previous.lower(), following, begins)
    if ROMAN.fullmatch(last) and len(last) > 1:
        return begins
    if all(letter in LETTERS for letter in last.split(".")) and ("." in last or previous[:-1] in LETTERS or next_word in LETTERS):
        return False
    if ACRONYM.fullmatch(last):
        return begins
    if len(last) == 1 and last.isalpha():
        return begins or _is_word(last, previous, next_word)
    return True


def _is_word(letter: str, previous: str, following: str) -> bool:
    """Whether a letter is a word and not short for one: 'than I.', 'Dank u.'"""
    if len(previous.strip(".")) == 1 or len(following) == 1 or following == "Chr":  # z. B., u. a., v. Chr.
        return False
    return previous[:1].islower() if letter == "I" else letter in "aeiouyà"


def _is_ordinal(number: str, previous: str, following: str, begins: bool) -> bool:
    """Whether a full stop after a number makes it an ordinal, as in German, or counts the items of a list."""
    if len(number) > 2:
        return False
    return not previous or following in AFTER_ORDINAL or (previous in BEFORE_ORDINAL and not begins)
