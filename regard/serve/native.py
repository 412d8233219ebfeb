"""/api: every verb of the library as JSON, and what is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request, Response

from regard.door import Written
from regard.door.options import Options
from regard.door.parts import in_parts, numbers_of, split_of
from regard.door.writing import language
from regard.errors import RegardError
from regard.serve import schemas
from regard.serve.bodies import Json, Route, large
from regard.serve.desk import Answers, Desk, desk_of
from regard.serve.markup import Parts, parts_of
from regard.serve.queue import Ask
from regard.serve.schemas import PROBLEMS
from regard.view.summary import summarise

router = APIRouter(prefix="/api", route_class=Route, tags=["regard"], responses=PROBLEMS)
TheDesk = Annotated[Desk, Depends(desk_of)]
SHORT = 100  # tokens, of which the answer is written down at once


@router.post("/translate", responses={200: {"model": schemas.TranslatedAnswers}})
async def translate(asked: schemas.Translate, request: Request, desk: TheDesk) -> Response:
    """Translations, by beam search unless sampling is asked for."""
    name, _ = desk.find(asked.model, "translate")
    if asked.parts:
        return await _in_parts(asked, name, request, desk)
    asks = [Ask(text, number=number, to=asked.to, prefix=asked.prefix) for number, text in enumerate(_many(asked.texts))]
    found = await desk.ask(request, name, "translate", asks, attention=asked.alignment or None, **asked.options())
    return await _said(found, lambda: [_written(answer) for answer in found.answers])


async def _in_parts(asked: schemas.Translate, name: str, request: Request, desk: Desk) -> Response:
    """The same, in parts that can be looked into one by one."""
    if asked.prefix is not None:
        raise RegardError("parts and a prefix were asked for, and only one of the parts could begin with it; leave one of the two out")
    texts = _many(asked.texts)
    desk.check(texts, len(texts))
    model, warnings = copy(desk.models[name]), list[str]()
    model.warn = warnings.append  # what is too long is said to who asked
    tag = language(model, asked.to)
    split = split_of(model, cast(Options, asked.options()))

    def parts(number: int, line: str) -> list[tuple[str, str]]:
        return [(part.text, part.space) for part in in_parts(model, [line], tag, number, split)[0]]

    apart = (parts_of(text, partial(parts, number)) for number, text in enumerate(texts))
    taken = await asyncio.to_thread(desk.few_enough, apart)
    each = [zip(own.texts, numbers_of(number, len(own.texts)), strict=True) for number, own in enumerate(taken)]
    asks = [Ask(part, number=number, to=asked.to) for part, number in chain.from_iterable(each)]
    found = await desk.ask(request, name, "translate", asks, parts_of=len(texts), attention=asked.alignment or None, **asked.options())
    answers = iter(found.answers)
    found = replace(found, warnings=warnings + found.warnings)
    return await _said(found, lambda: [_parted(own, [next(answers) for _ in own.texts]) for own in taken])


def _parted(own: Parts, answers: list[Written]) -> dict[str, Any]:
    each = [{"given": text} | _written(answer) for text, answer in zip(own.texts, answers, strict=True)]
    return {"text": own.joined([answer.text for answer in answers]), "parts": each, "around": list(own.around)}


@router.post("/generate", responses={200: {"model": schemas.WrittenAnswers}})
async def generate(asked: schemas.Generate, request: Request, desk: TheDesk) -> Response:
    """Continuations of prompts, by sampling unless a beam is asked for."""
    name, _ = desk.find(asked.model, "generate")
    asks = [Ask(text, number=number) for number, text in enumerate(_many(asked.texts))]
    found = await desk.ask(request, name, "generate", asks, **asked.options())
    return await _said(found, lambda: [_written(answer) for answer in found.answers])


@router.post("/classify", responses={200: {"model": schemas.LabelledAnswers}})
async def classify(asked: schemas.Classify, request: Request, desk: TheDesk) -> Response:
    """The label of each text."""
    return await _read(request, desk, asked.model, "classify", asked.texts)


@router.post("/fill", responses={200: {"model": schemas.FilledAnswers}})
async def fill(asked: schemas.Fill, request: Request, desk: TheDesk) -> Response:
    """The words that belong where a text says [MASK]."""
    return await _read(request, desk, asked.model, "fill", asked.texts, choices=asked.choices)


@router.post("/embed", responses={200: {"model": schemas.VectorAnswers}})
async def embed(asked: schemas.Embed, request: Request, desk: TheDesk) -> Response:
    """A vector for each text."""
    name, _ = desk.find(asked.model, "embed")
    asks = [Ask(text) for text in _many(asked.texts)]
    found = await desk.ask(request, name, "embed", asks, pooling=asked.pooling, normalise=asked.normalise)
    return await _said(found, lambda: found.answers)


@router.post("/score", responses={200: {"model": schemas.ScoredAnswers}})
async def score(asked: schemas.Score, request: Request, desk: TheDesk) -> Response:
    """How likely the model finds given targets for given sources; a language model: given texts."""
    name, _ = desk.find(asked.model, "score")
    sources = _many(asked.texts)
    targets = [None] * len(sources) if asked.targets is None else _many(asked.targets)
    if len(sources) != len(targets):
        raise RegardError(f"{len(sources)} texts for {len(targets)} targets; each target needs its own source")
    asks = [Ask(text, target=target) for text, target in zip(sources, targets, strict=True)]
    found = await desk.ask(request, name, "score", asks, to=asked.to)
    return await _said(found, lambda: [answer.as_json() for answer in found.answers])


@router.get("/models", responses={200: {"model": schemas.Models}})
async def models(desk: TheDesk) -> Response:
    """What is loaded, and what each can do."""
    return Json({"models": [_card(name, desk) for name in desk.models]})


def _card(name: str, desk: Desk) -> dict[str, Any]:
    model = desk.models[name]
    config = model.config
    return {
        "name": name,
        "kind": config.kind,
        "verbs": [verb for verb in model.verbs if verb != "evaluate"],  # which needs files, and no request may name one
        "languages": list(model.languages),
        "labels": list(getattr(config, "labels", None) or ()),
        "context": config.context,
        "vocabulary": config.vocabulary,
        "parameters": summarise(config).parameters,
    }


async def _read(request: Request, desk: Desk, model: str | None, verb: str, texts: str | list[str], **options: Any) -> Response:
    name, _ = desk.find(model, verb)
    found = await desk.ask(request, name, verb, [Ask(text) for text in _many(texts)], **options)
    return await _said(found, lambda: [answer.as_json() for answer in found.answers])


async def _said(found: Answers, answers: Callable[[], list[Any]]) -> Response:
    def record() -> dict[str, Any]:
        return {"model": found.model, "answers": answers(), "warnings": found.warnings}

    short = sum(found.tokens) <= SHORT and not any(getattr(answer, "alternatives", ()) for answer in found.answers)
    return Json(record()) if short else await large(record)


def _written(answer: Written) -> dict[str, Any]:
    return _light(answer).as_json()


def _light(answer: Written) -> Written:
    """Without the weights of every layer and head, which are megabytes; how each word looked at the source stays."""
    others, parts = (tuple(map(_light, own)) for own in (answer.alternatives, answer.parts))
    return replace(answer, attention=None, alternatives=others, parts=parts)


def _many(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
