"""OpenAI's interface, so that its clients work unchanged: models, completions, chat completions and embeddings."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from regard.door import Model, Written
from regard.door.chat import LONGEST_REPLY, chat_ids, template_of
from regard.door.writing import Prompt
from regard.errors import ConfigError, RegardError
from regard.serve import openai_schemas as schemas
from regard.serve.bodies import Json, Route, large
from regard.serve.desk import Desk, UnknownModelError, desk_of, while_there
from regard.serve.queue import Ask
from regard.serve.stops import Stops, cut

router = APIRouter(prefix="/v1", route_class=Route, tags=["OpenAI"], responses=schemas.PROBLEMS)
TheDesk = Annotated[Desk, Depends(desk_of)]
SHORT = 16  # tokens of a completion where nothing is said, as theirs
Form = Literal["completion", "chat"]
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}


@dataclass(frozen=True)
class Said:
    """What is to be continued or translated: a text, or a conversation in tokens."""

    text: str
    ids: tuple[int, ...] | None = None

    @property
    def prompt(self) -> Prompt:
        return self.text if self.ids is None else list(self.ids)


@dataclass(frozen=True)
class Wanted:
    """A completion or a chat, whichever it was, in our words."""

    form: Form
    id: str
    created: int  # seconds since 1970
    named: str  # the model, as the client calls it
    model: str
    to: str | None  # the language, of a translator
    prompts: tuple[Said, ...]
    options: dict[str, Any]
    seed: int | None
    stops: tuple[str, ...]
    logprobs: bool
    echo: bool
    usage: bool

    @property
    def plain(self) -> bool:
        """Whether it is a conversation written out in lines, where an answer begins with the space after who says it."""
        return self.form == "chat" and self.to is None and self.prompts[0].ids is None

    @property
    def verb(self) -> str:
        return "generate" if self.to is None else "translate"


@router.get("/models")
async def models(desk: TheDesk) -> Response:
    """What may be named as `model`."""
    return Json({"object": "list", "data": [_model(name) for name in _names(desk)]})


@router.get("/models/{name}")
async def model(name: str, desk: TheDesk) -> Response:
    """One of them."""
    if name not in _names(desk):
        raise UnknownModelError(f"there is no model {name[:60]!r} here; /v1/models lists those that are")
    return Json(_model(name))


def _names(desk: Desk) -> list[str]:
    """Translators that know several languages are listed with each: who completes a text names no language."""
    return [each for name, model in desk.models.items() for each in (name, *(f"{name}:{tag}" for tag in model.languages))]


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "regard"}


@router.post("/completions", responses=STREAMED)
async def completions(asked: schemas.Completion, request: Request, desk: TheDesk) -> Response:
    """Continuations of prompts; of a translator, their translations."""
    name, to = _found(desk, asked)
    prompts = [Said(text) for text in _texts(asked.prompt if asked.prompt is not None else "", "prompt")]
    most = asked.max_tokens or (SHORT if to is None else None)
    wanted = _wanted("completion", asked, name, to, prompts, most, asked.logprobs is not None, bool(asked.echo), asked.stops)
    return await (_streamed(wanted, request, desk) if asked.stream else _whole(wanted, request, desk))


@router.post("/chat/completions", responses=STREAMED)
async def chat(asked: schemas.Chat, request: Request, desk: TheDesk) -> Response:
    """The next message of a conversation; of a translator, the translation of the last one."""
    name, to = _found(desk, asked)
    said, ends = Said(asked.messages[-1].text), list[str]()
    if to is None:  # a template and a large vocabulary take their time, which others need not wait for
        writing = desk.conversations.written(name, partial(rendered, desk, desk.models[name], asked.messages))
        said, ends = await while_there(request, writing)
    most = asked.max_completion_tokens or asked.max_tokens or (LONGEST_REPLY if to is None else None)
    wanted = _wanted("chat", asked, name, to, [said], most, bool(asked.logprobs), False, [*asked.stops, *ends])
    return await (_streamed(wanted, request, desk) if asked.stream else _whole(wanted, request, desk))


def rendered(desk: Desk, model: Model, messages: Sequence[schemas.Message]) -> tuple[Said, list[str]]:
    """A conversation as a model was taught it, and what ends an answer to it.

    For one that was taught none: a line for each message, who says it before what, until someone else would speak.
    """
    whole = "".join(f"{message.role}: {message.text}\n" for message in messages)
    desk.check([whole], 1)
    if has_template(model):
        return Said("", tuple(chat_ids(model, [{"role": message.role, "content": message.text} for message in messages]))), []
    ends = [f"\n{role}:" for role in dict.fromkeys(("user", *(message.role for message in messages)))]
    return Said(f"{whole}assistant:"), ends


@router.post("/embeddings")
async def embeddings(asked: schemas.Embeddings, request: Request, desk: TheDesk) -> Response:
    """A vector of length 1 for each text."""
    name, model = desk.find(asked.model, "embed")
    width = model.config.width
    if asked.dimensions not in (None, width):
        raise ConfigError(f"dimensions = {asked.dimensions} can't be had; the vectors of {name} have {width}")
    found = await desk.ask(request, name, "embed", [Ask(text) for text in _texts(asked.input, "input")], normalise=True)

    def record() -> dict[str, Any]:
        vectors = [_packed(vector) if asked.encoding_format == "base64" else vector for vector in found.answers]
        data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
        read = sum(found.tokens)
        return {"object": "list", "data": data, "model": asked.model, "usage": {"prompt_tokens": read, "total_tokens": read}}

    return Json(record()) if len(found.answers) == 1 else await large(record)


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def has_template(model: Model) -> bool:
    """Whether a model was taught conversations."""
    try:
        return bool(template_of(model))
    except RegardError:
        return False


def _found(desk: Desk, asked: schemas.Written) -> tuple[str, str | None]:
    """The model that is meant, and of a translator the language."""
    if asked.unmet is not None:
        raise ConfigError(f"{asked.unmet} is not supported here; leave it out")
    name, _, to = (asked.model, "", "") if asked.model in desk.models else asked.model.rpartition(":")
    if name not in desk.models:
        raise UnknownModelError(f"there is no model {asked.model[:60]!r} here; /v1/models lists those that are")
    model = desk.models[name]
    if "translate" not in model.verbs:
        model.need("generate")
        if to:
            raise UnknownModelError(f"there is no model {asked.model[:60]!r} here; {name} writes no languages that it could be told")
        return name, None
    if len(model.languages) > 1 and not to:
        raise ConfigError(f"{name} writes several languages; say which, as model = {name}:{model.languages[0]}")
    return name, to


def _texts(given: str | Sequence[Any], what: str) -> list[str]:
    texts = [given] if isinstance(given, str) else list(given)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{what} should be a text or texts; token ids are of another tokenizer than this model's")
    if not texts:
        raise ConfigError(f"{what} has no text; give one or more")
    return texts


def _wanted(
    form: Form,
    asked: schemas.Written,
    name: str,
    to: str | None,
    prompts: Sequence[Said],
    most: int | None,
    logprobs: bool,
    echo: bool,
    stops: list[str],
) -> Wanted:
    options: dict[str, Any] = {key: getattr(asked, key) for key in ("top_p", "top_k", "min_p", "repetition_penalty")}
    options |= {"temperature": asked.temperature, "max_length": most, "samples": asked.n if (asked.n or 1) > 1 else None}
    if to is None and options["temperature"] is None:
        options["temperature"] = 1.0  # as theirs; a translator searches unless it is told to draw
    if to is None and options["top_p"] is None:
        options["top_p"] = 1.0
    chosen = {key: value for key, value in options.items() if value is not None}
    seed = None if asked.seed is None else asked.seed % 2**63
    made = f"{'cmpl' if form == 'completion' else 'chatcmpl'}-{secrets.token_hex(12)}"
    usage = asked.stream_options is not None and asked.stream_options.include_usage
    return Wanted(form, made, int(time.time()), asked.model, name, to, tuple(prompts), chosen, seed, tuple(stops), logprobs, echo, usage)


async def _answers(wanted: Wanted, request: Request, desk: Desk) -> tuple[list[tuple[str, Written]], dict[str, int]]:
    """Every choice with its prompt, prompt after prompt, and the tokens it took. A prompt of nothing may have fewer than others."""
    # Without a seed, every request draws anew. Chance goes by a number of each text, so that requests are still worked on together.
    numbers = [place if wanted.seed is not None else secrets.randbelow(2**31) for place in range(len(wanted.prompts))]
    pairs = zip(wanted.prompts, numbers, strict=True)
    asks = [Ask(said.text, number=number, to=wanted.to or None, ids=said.ids) for said, number in pairs]
    found = await desk.ask(request, wanted.model, wanted.verb, asks, **wanted.options, seed=wanted.seed)
    answered = zip(wanted.prompts, found.answers, strict=True)
    choices = [(said.text, each) for said, answer in answered for each in (answer, *answer.alternatives)]
    read, written = sum(found.tokens), sum(len(choice.log_probabilities) for _, choice in choices)
    return choices, _usage(read, written)


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


async def _whole(wanted: Wanted, request: Request, desk: Desk) -> Response:
    choices, usage = await _answers(wanted, request, desk)

    def record() -> dict[str, Any]:
        shown = [_choice(wanted, index, choice, prompt) for index, (prompt, choice) in enumerate(choices)]
        return _envelope(wanted, "text_completion" if wanted.form == "completion" else "chat.completion", shown) | {"usage": usage}

    return Json(record()) if len(choices) == 1 else await large(record)


def _envelope(wanted: Wanted, object: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": wanted.id, "object": object, "created": wanted.created, "model": wanted.named, "choices": choices}


def _choice(wanted: Wanted, index: int, written: Written, prompt: str) -> dict[str, Any]:
    text, stopped = cut(written.text, wanted.stops)
    reason = "stop" if stopped or written.ended else "length"
    if wanted.form == "chat":
        logs = {"content": _chat_logprobs(written)[: _tokens_of(written, text, stopped)], "refusal": None} if wanted.logprobs else None
        message = {"role": "assistant", "content": text.lstrip() if wanted.plain else text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logs, "finish_reason": reason}
    before = prompt if wanted.echo else ""
    logs = _logprobs(written, _tokens_of(written, text, stopped), len(before)) if wanted.logprobs else None
    return {"index": index, "text": before + text, "logprobs": logs, "finish_reason": reason}


def _offsets(written: Written) -> list[int]:
    """Where each token begins in what was written."""
    return list(accumulate(map(len, written.tokens), initial=0))[: len(written.tokens)]


def _tokens_of(written: Written, text: str, stopped: bool) -> int:
    """How many tokens the text is made of: all, unless it was cut off where a stop stands."""
    return sum(offset < len(text) for offset in _offsets(written)) if stopped else len(written.tokens)


def _logprobs(written: Written, count: int, before: int) -> dict[str, Any]:
    """Of the first `count` tokens; `before`: how much text stands before them."""
    return {
        "tokens": list(written.tokens[:count]),
        "token_logprobs": [log for _, log in written.log_probability_of_each[:count]],
        "top_logprobs": None,
        "text_offset": [before + offset for offset in _offsets(written)[:count]],
    }


def _chat_logprobs(written: Written) -> list[dict[str, Any]]:
    pairs = written.log_probability_of_each  # the end has a probability, and no text
    return [{"token": token, "logprob": log, "bytes": list(token.encode()), "top_logprobs": []} for token, log in pairs]


async def _streamed(wanted: Wanted, request: Request, desk: Desk) -> Response:
    """Server-sent events. What is wrong is said before the first of them, as a plain error."""
    single = wanted.to is None and len(wanted.prompts) == 1 and "samples" not in wanted.options and not wanted.logprobs
    pieces = _word_by_word(wanted, request, desk) if single else _all_at_once(wanted, request, desk)
    first = await anext(pieces)

    async def events() -> AsyncIterator[str]:
        try:
            yield _event(first)
            async for chunk in pieces:
                yield _event(chunk)
        except RegardError as error:
            yield _event({"error": {"message": str(error), "type": "server_error", "param": None, "code": None}})
        finally:
            await pieces.aclose()
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


def _event(record: dict[str, Any]) -> str:
    return f"data: {json.dumps(record, separators=(',', ':'))}\n\n"


def _chunk(wanted: Wanted, index: int, text: str | None, reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    if wanted.form == "completion":
        choice: dict[str, Any] = {"index": index, "text": text or "", "logprobs": logprobs, "finish_reason": reason}
        return _envelope(wanted, "text_completion", [choice])
    delta = {} if text is None else {"content": text}
    return _envelope(wanted, "chat.completion.chunk", [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}])


def _opening(wanted: Wanted, index: int = 0) -> dict[str, Any]:
    if wanted.form == "completion":
        return _chunk(wanted, index, wanted.prompts[0].text if wanted.echo else "")
    chunk = _chunk(wanted, index, "")
    chunk["choices"][0]["delta"]["role"] = "assistant"
    return chunk


async def _word_by_word(wanted: Wanted, request: Request, desk: Desk) -> AsyncGenerator[dict[str, Any], None]:
    [said] = wanted.prompts
    desk.check([said.text], 1)
    seed = secrets.randbelow(2**31) if wanted.seed is None else wanted.seed
    options: Any = wanted.options | {"seed": seed}
    stream = desk.streams.open(desk.models[wanted.model], said.prompt, options)
    stops, begun, bare = Stops(wanted.stops), False, wanted.plain
    try:
        async for piece in stream:
            if not begun:
                yield _opening(wanted)
                begun = True
            text = stops.take(piece)
            if text := text.lstrip() if bare else text:
                bare = False
                yield _chunk(wanted, 0, text)
            if stops.met or await request.is_disconnected():
                break
        else:
            if not begun:
                yield _opening(wanted)
            if rest := stops.rest().lstrip() if bare else stops.rest():
                yield _chunk(wanted, 0, rest)
        yield _chunk(wanted, 0, None, "stop" if stops.met or stream.ended else "length")
        if wanted.usage:
            yield _envelope(wanted, _object(wanted), []) | {"usage": _usage(stream.prompt_tokens, stream.written)}
    finally:
        stream.stop()


async def _all_at_once(wanted: Wanted, request: Request, desk: Desk) -> AsyncGenerator[dict[str, Any], None]:
    """What can't be streamed, as a stream: several outputs, or those of a search, which knows its best words only at the end."""
    choices, usage = await _answers(wanted, request, desk)
    for index, (prompt, written) in enumerate(choices):
        choice = _choice(wanted, index, written, prompt)
        if wanted.form == "chat":
            yield _opening(wanted, index)
        text = choice["text"] if wanted.form == "completion" else choice["message"]["content"]
        yield _chunk(wanted, index, text, logprobs=choice["logprobs"])
        yield _chunk(wanted, index, None, choice["finish_reason"])
        await asyncio.sleep(0)  # others have their turn
    if wanted.usage:
        yield _envelope(wanted, _object(wanted), []) | {"usage": usage}


def _object(wanted: Wanted) -> str:
    return "text_completion" if wanted.form == "completion" else "chat.completion.chunk"
