"""/api/trace: what a model worked with, as docs/trace.md says. One text at a time, and only so much of it as can be sent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from regard.config import RnnConfig
from regard.decoding.settings import Beam, Rules
from regard.door import Model
from regard.door.options import chosen
from regard.door.trace_making import VERBS, Verb, default_verb
from regard.door.trace_types import Part
from regard.door.writing import CONTINUED, DRAWN
from regard.serve.bodies import Route
from regard.serve.desk import Desk, desk_of, while_there
from regard.serve.queue import Ask, Kind, TooMuchError
from regard.serve.schemas import PROBLEMS, WRITING_OPTIONS, Asked, Writing

MOST_HELD = 256 << 20  # bytes of weights while it is made
MOST_CANDIDATES = 100
Number = Annotated[int, Field(ge=0, le=1 << 20)]
Numbers = Annotated[list[Number], Field(max_length=4096)]

router = APIRouter(prefix="/api", route_class=Route, tags=["trace"], responses=PROBLEMS)
TheDesk = Annotated[Desk, Depends(desk_of)]
LISTED = r"^\d{1,4}(,\d{1,4}){0,255}$"


class Options(Writing):
    """How words are chosen."""

    texts: Literal[""] = ""
    model: None = None


class TraceOf(Asked):
    """A text, and what of its trace is wanted."""

    text: str
    to: Annotated[str | None, Field(max_length=100)] = None
    verb: Verb | None = None
    prefix: str | None = None
    parts: Annotated[list[Part], Field(max_length=16)] | None = None
    layers: Numbers | None = None
    heads: Numbers | None = None
    positions: dict[Literal["source", "target"], Numbers] | None = None
    candidates: Annotated[int, Field(ge=1, le=MOST_CANDIDATES)] = 10
    options: Options = Options()


class Document(BaseModel):
    """docs/trace.md says what is in it."""

    model_config = ConfigDict(extra="allow")

    format: int


@router.post("/trace", responses={200: {"model": Document}})
async def trace_from_body(asked: TraceOf, request: Request, desk: TheDesk) -> Response:
    """Every intermediate of one pass, or those parts of it that are asked for."""
    return await _answer(asked, request, desk)


@router.get("/trace", responses={200: {"model": Document}})
async def trace_from_address(
    request: Request,
    desk: TheDesk,
    text: str = "",
    model: Annotated[str | None, Query(max_length=200)] = None,
    to: Annotated[str | None, Query(max_length=100)] = None,
    verb: Verb | None = None,
    parts: Annotated[str | None, Query(pattern=r"^[a-z]{0,20}(,[a-z]{1,20}){0,15}$")] = None,
    layers: Annotated[str | None, Query(pattern=LISTED)] = None,
    heads: Annotated[str | None, Query(pattern=LISTED)] = None,
    candidates: Annotated[int, Query(ge=1, le=MOST_CANDIDATES)] = 10,
) -> Response:
    """The same from an address: parts, layers and heads with commas between."""
    chosen_parts: Any = None if parts is None else [part for part in parts.split(",") if part]
    asked = TraceOf.model_construct(
        model=model, text=text, to=to, verb=verb, parts=chosen_parts, layers=_numbers(layers), heads=_numbers(heads), candidates=candidates
    )  # the library says what is wrong with a part
    return await _answer(asked, request, desk)


def _numbers(listed: str | None) -> list[int] | None:
    return None if listed is None else [int(number) for number in listed.split(",")]


async def _answer(asked: TraceOf, request: Request, desk: Desk) -> Response:
    name = asked.model or next(iter(desk.models))
    verb = asked.verb or (default_verb(desk.models[name], asked.text) if name in desk.models else VERBS[0])
    name, model = desk.find(asked.model or (None if asked.verb else name), verb)
    desk.check([asked.text, asked.prefix or ""], 1)
    given = {option: getattr(asked.options, option) for option in WRITING_OPTIONS}
    wishes: Any = {option: tuple(value) if isinstance(value, list) else value for option, value in given.items() if value is not None}
    tokens = len((model.source_tokenizer if verb == "translate" else model.tokenizer).encode(asked.text))
    _check(model, asked, verb, tokens, wishes)
    lists = {"parts": asked.parts, "layers": asked.layers, "heads": asked.heads}
    places = None if asked.positions is None else tuple((side, tuple(own)) for side, own in asked.positions.items())
    what = {key: None if own is None else tuple(own) for key, own in lists.items()} | {
        "positions": places,
        "candidates": asked.candidates,
        "verb": verb,
    }
    kind = Kind(name, "trace", tuple(sorted((what | wishes).items())), most_texts=1, aside=True)
    ask = Ask(asked.text, tokens=max(1, tokens), to=asked.to, prefix=asked.prefix)
    [outcome] = await while_there(request, desk.queue.ask(kind, [ask]))
    return Response(outcome.answer, media_type="application/json")


def _check(model: Model, asked: TraceOf, verb: str, tokens: int, wishes: Any) -> None:
    """Weights grow with the square of the length: what is too much is said before it is made."""
    if isinstance(model.config, RnnConfig):
        return
    written = 0
    if verb in ("translate", "generate"):
        method, rules = (Beam(), Rules()) if verb == "translate" else (DRAWN, CONTINUED)
        _, rules = chosen(wishes, method, rules, lambda _: [[0]])
        written = rules.max_length.of(tokens)
    length = min(tokens + 2, model.config.context) + min(written, model.config.context)
    layers = model.config.layers if asked.layers is None else max(1, len(asked.layers))  # no pass is free
    if 4 * layers * model.config.heads * length**2 > MOST_HELD:
        raise TooMuchError(f"a trace of up to {length} tokens is too large; ask for fewer layers, a shorter text or a smaller max_length")
