"""A model writes as you watch: continuations of prompts, and conversations."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.cli.app import Format

if TYPE_CHECKING:
    from regard.door import Model
    from regard.door.chat import Conversation


def typed() -> bool:
    """Whether a person sits at both ends."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def continue_aloud(model: Model, prompts: Iterable[str], options: dict[str, Any]) -> None:
    """Each prompt and its continuation, word by word."""
    for prompt in prompts:
        pieces = model.stream(prompt, **options)
        print(prompt, end="", flush=True)
        _aloud(pieces)


def _aloud(pieces: Iterator[str]) -> None:
    """Ctrl-C breaks off what is being written, and no more than that."""
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        if not typed():
            raise
        with suppress(AttributeError):
            pieces.close()  # type: ignore[attr-defined]
        print(" …", end="")
    print(flush=True)


def lines_typed(sign: str) -> Iterator[str]:
    """What a person types, line by line, with a sign that it is their turn; Ctrl-D or Ctrl-C ends it."""
    with suppress(ImportError):
        import readline  # noqa: F401  (makes lines editable, with those before at the arrow keys)
    while True:
        try:
            text = input(sign)
        except (EOFError, KeyboardInterrupt):
            print(flush=True)
            return
        if text.strip():
            yield text


def converse(
    model: Model,
    turns: list[str] | None,
    system: str | None,
    input: Path | None,
    output: Path | None,
    format: Format,
    options: dict[str, Any],
) -> None:
    """Holds a conversation: with who sits at the terminal, or a turn of the user a line, and a reply a line."""
    from regard.console import line_by_line
    from regard.door.chat import Conversation

    talk = Conversation(model, system, **options)
    if not turns and input is None and output is None and format is Format.TEXT and typed():
        _face_to_face(talk)
        return
    with line_by_line(turns or [], input, output) as (lines, results, messages):
        model.warn = messages.warn
        for text in lines:
            pieces = talk.say(text) if text.strip() else iter(())
            if results.on_terminal and format is Format.TEXT:
                _aloud(pieces)
            elif format is Format.TEXT:
                results.text("".join(pieces))
            else:
                results.json({"role": "assistant", "content": "".join(pieces)})
            results.flush()


def _face_to_face(talk: Conversation) -> None:
    from regard.errors import RegardError

    talk.model.warn = lambda message: print(f"regard: {message}", file=sys.stderr)
    print(f"regard: a conversation with {talk.model.name}; Ctrl-C breaks off a reply, Ctrl-D ends", file=sys.stderr, flush=True)
    for text in lines_typed("> "):
        try:
            _aloud(talk.say(text))
        except KeyboardInterrupt:  # before the first word of the reply
            print(" …", flush=True)
        except RegardError as error:  # of this turn; the next may go better
            print(f"regard: {error}", file=sys.stderr, flush=True)
