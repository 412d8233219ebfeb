"""The tokenizers library, to which files come that may say anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tokenizers

from regard.errors import BundleError, panicked
from regard.text.growth import refuse_growth


@contextmanager
def at_work() -> Iterator[None]:
    """The library takes files that it can't work with, and says so later, by an Exception or by a panic, which is none to Python."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not panicked(error):
            raise
        raise BundleError(f"the tokenizer is damaged or of another format ({error}); copy it again from where it came") from error


def open_library(content: str) -> tokenizers.Tokenizer:
    with at_work():
        return tokenizers.Tokenizer.from_str(content)


def trusted(library: tokenizers.Tokenizer) -> tuple[tokenizers.Tokenizer, int]:
    """The same, if it may be given texts, without what we do ourselves; and the highest of its ids."""
    with at_work():
        library.no_truncation()
        library.no_padding()
        ids = library.get_vocab()
        refuse_growth(library, ids)
    return library, max(ids.values(), default=-1)
