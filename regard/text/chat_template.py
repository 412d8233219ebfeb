"""The template by which a model was taught conversations, which comes with it from anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import RegardError
from regard.worker import StoppedError, Worker

SECONDS = 2.0  # of computing, for a conversation
MEMORY = 512 << 20
GROWTH, ROOM = 10, 100_000  # what is written has at most so many characters for each that was given, and so many more


class ChatTemplateError(RegardError):
    """A chat template can't be read, does not take a conversation, or takes more than it may."""


class ChatTemplate:
    """Jinja, written out in a process of its own: what it takes is limited there, and can be ended."""

    def __init__(self, template: str) -> None:
        self.template = template
        self._worker = Worker("regard.text.chat_template_work", SECONDS, MEMORY)

    def render(self, name: str, messages: Sequence[Mapping[str, Any]], **values: Any) -> str:
        """The conversation as the model called `name` reads it."""
        given = {"messages": list(map(dict, messages)), **values}
        try:
            asked = json.dumps({"template": self.template, "values": given, "most": GROWTH * len(str(given)) + ROOM})
        except (TypeError, ValueError, RecursionError) as error:
            raise ChatTemplateError(f"a message may hold nothing but what JSON can say ({error}); leave the rest out") from error
        try:
            said = self._worker.ask(asked)
        except StoppedError as stopped:
            raise ChatTemplateError(f"the chat template of {name} {stopped}; don't trust it") from stopped
        if "problem" in said:
            raise ChatTemplateError(f"the chat template of {name} {said['problem']}")
        return str(said["text"])
