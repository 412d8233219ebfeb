"""Conversations: messages written out by the template that a model was taught them with, and the model's reply."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from regard.door.options import Options
from regard.door.results import Written
from regard.door.writing import generate, stream_ids, text_of
from regard.errors import RegardError, ShapeError
from regard.text.chat_template import ChatTemplate
from regard.text.foreign import ForeignTokenizer

if TYPE_CHECKING:
    from regard.door import Model

Message = Mapping[str, Any]  # "role": "system", "user" or "assistant", and "content"
LONGEST_REPLY = 1024  # tokens, unless said otherwise
ROOM = 256  # tokens that a conversation leaves for a reply, or a quarter of the context where that is less
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around what must not be read as a special token; no text has them, for they are no characters


class Conversation:
    """What has been said so far, and whose turn it is.

    talk = Conversation(model, "You are terse.")
    for piece in talk.say("What is the capital of France?"):
        print(piece, end="")
    """

    def __init__(self, model: Model, system: str | None = None, **options: Unpack[Options]) -> None:
        template_of(model)  # said before anybody types a word
        self.model, self.options = model, options
        self.messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._first = len(self.messages)

    def say(self, text: str) -> Iterator[str]:
        """The reply, piece by piece. It becomes part of the conversation, also as far as it came when it is broken off."""
        messages = self._remembered([*self.messages, {"role": "user", "content": text}])
        pieces = stream_chat(self.model, messages, self.options)
        self.messages = messages  # now that nothing is wrong with them
        return self._kept(pieces)

    def _kept(self, pieces: Iterator[str]) -> Iterator[str]:
        said: list[str] = []
        try:
            for piece in pieces:
                said.append(piece)
                yield piece
        finally:
            self.messages.append({"role": "assistant", "content": "".join(said)})

    def _remembered(self, messages: list[Message]) -> list[Message]:
        """Without the oldest turns, where a reply would have no room."""
        context = self.model.config.context
        forgotten = 0
        while len(chat_ids(self.model, messages)) > context - min(ROOM, context // 4):
            turns = [place for place, message in enumerate(messages) if message["role"] == "user"]
            if len(turns) < 2:
                break  # one turn alone: it fits, or it is an error that says so
            messages = messages[: self._first] + messages[turns[1] :]
            forgotten += 1
        if forgotten:
            self.model.warn(f"the conversation has outgrown the context of {context} tokens; the oldest {forgotten} turns were forgotten")
        return messages


def chat(model: Model, messages: Sequence[Message], options: Options) -> Written:
    return generate(model, [_fitting(model, messages)], False, 0, _with_length(options))[0]


def stream_chat(model: Model, messages: Sequence[Message], options: Options) -> Iterator[str]:
    ids, words = stream_ids(model, _fitting(model, messages), _with_length(options))
    return text_of(model.tokenizer, ids, words)


def _with_length(options: Options) -> Options:
    return options if options.get("max_length") is not None else {**options, "max_length": LONGEST_REPLY}


def _fitting(model: Model, messages: Sequence[Message]) -> list[int]:
    ids = chat_ids(model, messages)
    if len(ids) >= model.config.context:
        raise ShapeError(
            f"the conversation is {len(ids)} tokens long, but {model.name} has a context of {model.config.context}; leave out its "
            "oldest messages, so that there is room for a reply"
        )
    return ids


def chat_ids(model: Model, messages: Sequence[Message]) -> list[int]:
    """The tokens of a conversation up to where the reply begins.

    Only the template writes special tokens: the name of one in a message is ordinary text, so that nobody can speak for somebody else.
    """
    names = model.tokenizer.pieces(sorted(model.tokenizer.special_ids))
    special = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
    text = render(model, [_guarded(message, special) for message in messages])
    ids: list[int] = []
    for place, part in enumerate(re.split(f"{OPEN}({special.pattern}){CLOSE}", text)):
        bare = part.replace(OPEN, "").replace(CLOSE, "")
        ids += model.tokenizer.encode(bare, markup=place % 2 == 0) if bare else []
    return ids


def _guarded(message: Message, special: re.Pattern[str]) -> Message:
    content = message.get("content")
    if not isinstance(message.get("role"), str) or not isinstance(content, str):
        raise RegardError(f'a message has a "role" and a "content", both text; got {str(message)[:80]}')
    bare = content.replace(OPEN, "").replace(CLOSE, "")
    return {**message, "content": special.sub(lambda found: f"{OPEN}{found[0]}{CLOSE}", bare)}


def render(model: Model, messages: Sequence[Message], *, reply: bool = True) -> str:
    """A conversation as the model reads it. `reply`: up to where its answer begins."""
    tokenizer = model.tokenizer
    template = template_of(model)
    assert isinstance(tokenizer, ForeignTokenizer)
    roles = {"bos": tokenizer.roles.start, "eos": tokenizer.roles.end, "pad": tokenizer.roles.pad, "unk": tokenizer.roles.unknown}
    names = {f"{role}_token": tokenizer.pieces([id])[0] for role, id in roles.items() if id is not None}
    return template.render(model.name, messages, tools=None, documents=None, add_generation_prompt=reply, **names)


def template_of(model: Model) -> ChatTemplate:
    """The template by which a model was taught conversations; not every model was."""
    model.need("generate")
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, ForeignTokenizer) or tokenizer.conversations is None:
        raise RegardError(
            f"{model.name} was taught no conversations: it has no chat template; use generate, or import a model that has one"
        )
    return tokenizer.conversations
