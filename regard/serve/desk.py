"""Where requests come in: the desk knows the models, the limits and the queue, and gives what was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from starlette.requests import Request

from regard.decoding.many import ROWS, TOKENS
from regard.decoding.ready import WrittenIn
from regard.decoding.settings import Beam, Rules
from regard.door import Model, load
from regard.door.options import chosen
from regard.door.writing import DRAWN, framed_prompt, language
from regard.errors import ConfigError, RegardError, nearest
from regard.serve.conversations import Conversations
from regard.serve.cores import MOST_WORKERS, Cores
from regard.serve.markup import Parts
from regard.serve.metrics import Metrics
from regard.serve.queue import Ask, Kind, Queue, TooMuchError
from regard.serve.settings import Settings
from regard.serve.streams import Streams
from regard.serve.trace_work import Remembered
from regard.serve.work import work
from regard.shipped import find_bundle, shipped

COUNTED_AT_ONCE = 20_000  # characters whose tokens are counted without leaving the event loop
NOT_OPTIONS = ("attention", "choices", "pooling", "normalise", "to", "split")  # of how words are chosen


class UnknownModelError(RegardError):
    """No model of that name was loaded."""


class GoneError(RegardError):
    """The client went away; nobody will read this."""


@dataclass(frozen=True)
class Answers:
    """What a model said to a request."""

    model: str
    answers: list[Any]
    warnings: list[str]
    tokens: list[int]  # of each text, as read


def load_all(names: Sequence[str], device: str | None = None, precision: WrittenIn = "auto") -> dict[str, Model]:
    """The models of bundles by the name that requests know them by: that of the folder, or what is given, NAME=FOLDER.

    Without any, those that come with regard. No path is part of a name, since names are shown to everyone.
    """
    models: dict[str, Model] = {}
    for given in names or list(shipped()):
        own, equals, folder = given.partition("=")
        name = own if equals and own else _name_of(given)
        if name in models:
            raise ConfigError(f"two models are called {name!r}; give one another name, as in --model other={folder or given}")
        models[name] = model = load(folder if equals and own else given, device=device, precision=precision)
        model.name = name
        _ = model.tokenizer  # without one there is no text to talk in, which is better said now
    if not models:
        raise ConfigError("no model comes with this installation of regard; give yours with --model")
    return models


def _name_of(given: str) -> str:
    folder = find_bundle(given).resolve()
    return folder.parent.name if folder.name == "bundle" and Path(given).name != folder.parent.name else folder.name


class Desk:
    """The models of a server, and what is done for requests."""

    def __init__(self, models: Mapping[str, Model], settings: Settings) -> None:
        self.models, self.settings, self.metrics = dict(models), settings, Metrics()
        cores = Cores()
        workers = settings.workers or _workers(models.values(), cores)
        self.queue = Queue(partial(work, self.models, Remembered(), workers), settings.limits, self.metrics, workers, cores)
        self.streams = Streams(settings.limits, self.metrics, cores)
        self.conversations = Conversations(settings.limits, self.metrics)

    def find(self, name: str | None, verb: str) -> tuple[str, Model]:
        """The model of that name, or without one the first that can do this."""
        if name is None:
            able = next((own for own, model in self.models.items() if verb in model.verbs), None)
            if able is None:
                raise RegardError(f"no model here can {verb}; those that are here: {', '.join(self.models)}")
            name = able
        if name not in self.models:
            raise UnknownModelError(f"there is no model {name[:60]!r} here; {nearest(name[:60], self.models)}")
        self.models[name].need(verb)
        return name, self.models[name]

    async def ask(
        self, request: Request, name: str, verb: str, asks: Sequence[Ask], *, parts_of: int | None = None, **options: Any
    ) -> Answers:
        """The answer of a model to each text, in order; nothing more is done for a client that went away.

        `parts_of`: of how many texts these are parts, where they are.
        """
        model = self.models[name]
        texts = [text for ask in asks for text in (ask.text, ask.target, ask.prefix) if text is not None]
        self.check(texts, len(asks) if parts_of is None else parts_of)
        kind = self._kind(name, model, verb, options)
        if verb == "translate":
            asks = [replace(ask, to=language(model, ask.to)) for ask in asks]
        tokens = await self._tokens(model, verb, asks)
        counted = [replace(ask, tokens=max(1, count)) for ask, count in zip(asks, tokens, strict=True)]
        outcomes = await while_there(request, self.queue.ask(kind, counted))
        warnings = list(chain.from_iterable(outcome.warnings for outcome in outcomes))
        return Answers(name, [outcome.answer for outcome in outcomes], warnings, tokens)

    def check(self, texts: Sequence[str], count: int) -> None:
        """Limits on what a request may hold."""
        limits = self.settings.limits
        if count > limits.texts:
            raise TooMuchError(f"{count} texts in one request, and {limits.texts} are taken; send fewer at once")
        longest = max(map(len, texts), default=0)
        if longest > limits.characters:
            raise TooMuchError(f"a text of {longest} characters, and {limits.characters} are taken; send it in parts")

    def few_enough(self, parts: Iterable[Parts]) -> list[Parts]:
        """The parts of texts, which are taken no further apart once they are more than can wait."""
        taken, count = list[Parts](), 0
        for own in parts:
            taken.append(own)
            self.queue.check(count := count + len(own.texts))
        return taken

    def _kind(self, name: str, model: Model, verb: str, options: dict[str, Any]) -> Kind:
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items() if value is not None}
        device, at_once = model.device.type, 1
        if verb in ("translate", "generate"):  # what can't be asked is said before it waits
            wishes: Any = {key: value for key, value in given.items() if key not in NOT_OPTIONS}
            method, _ = chosen(wishes, Beam() if verb == "translate" else DRAWN, Rules(), lambda _: [[0]])
            at_once = method.size if isinstance(method, Beam) else method.samples
        rows, tokens = ROWS.get(device, 128), TOKENS.get(device, 8192)
        return Kind(name, verb, tuple(sorted(given.items())), max(1, rows // at_once), tokens)

    async def _tokens(self, model: Model, verb: str, asks: Sequence[Ask]) -> list[int]:
        """How long each text is; a prompt, as it is read. Long ones are counted elsewhere, so that others need not wait for it."""
        read = model.source_tokenizer if verb in ("translate", "score") else model.tokenizer
        texts = [ask.text if ask.target is None else f"{ask.text} {ask.target}" for ask in asks]

        def counts() -> list[int]:
            found = read.encode_batch(texts)
            if verb == "generate":
                found = [framed_prompt(model, ids) for ids in found]
            return [len(ids if ask.ids is None else ask.ids) for ask, ids in zip(asks, found, strict=True)]

        return counts() if sum(map(len, texts)) <= COUNTED_AT_ONCE else await asyncio.to_thread(counts)

    def close_door(self) -> None:
        """Nothing more is taken; what was taken is finished."""
        self.queue.closing = self.streams.closing = True

    def close(self) -> None:
        self.conversations.close()
        self.queue.close()
        self.streams.close()


def _workers(models: Iterable[Model], cores: Cores) -> int:
    """How many batches are worked on at once, each with cores of its own; a GPU is all that one batch needs."""
    return min(cores.total, MOST_WORKERS) if all(model.device.type == "cpu" for model in models) else 1


async def while_there(request: Request, work: Any) -> Any:
    """The result of some work, unless the client goes away first: then it is cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise GoneError("the client went away")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def desk_of(request: Request) -> Desk:
    """For routes: Annotated[Desk, Depends(desk_of)]."""
    desk = request.app.state.desk
    assert isinstance(desk, Desk)
    return desk
