"""LibreTranslate's interface, so that its clients work unchanged: /translate, /languages, /detect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from regard.door import Model, Written
from regard.door.aligned import aligned
from regard.errors import ConfigError, RegardError, nearest
from regard.serve.bodies import Json, large, parsed
from regard.serve.desk import Desk, desk_of
from regard.serve.languages import NAMES, name_of
from regard.serve.markup import Parts, html_of, lines_of
from regard.serve.queue import Ask
from regard.serve.schemas import PROBLEMS, Several
from regard.serve.security import has_key, no_key
from regard.serve.settings import MOST_OUTPUTS, Limits

router = APIRouter(tags=["LibreTranslate"], responses=PROBLEMS)
TheDesk = Annotated[Desk, Depends(desk_of)]
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
MOST_FIELDS = 1000
ESCAPED = 12  # bytes of a character in a form, at most


class Asked(BaseModel):
    """What all of its clients may send."""

    model_config = ConfigDict(extra="ignore")

    api_key: str | None = None


class TranslateAsked(Asked):
    q: Annotated[str | Several, Field(description="One text, or several.", examples=["I love you very much."])]
    source: Annotated[str, Field(examples=["en"])] = "auto"
    target: Annotated[str, Field(examples=["it"])]
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0, lt=MOST_OUTPUTS)] = 0


class DetectAsked(Asked):
    q: str


class Translated(BaseModel):
    translatedText: str | list[str]  # noqa: N815  (as the interface spells it)
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: dict[str, Any] | list[dict[str, Any]] | None = None  # noqa: N815


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class Detected(BaseModel):
    confidence: float
    language: str


def _body(schema: type[BaseModel]) -> dict[str, Any]:
    """For the description: the same as JSON or as a form."""
    content = {kind: {"schema": schema.model_json_schema()} for kind in ("application/json", *FORMS)}
    return {"requestBody": {"required": True, "content": content}}


@router.post("/translate", responses={200: {"model": Translated}}, openapi_extra=_body(TranslateAsked))
async def translate(request: Request, desk: TheDesk) -> Response:
    """Translations of one text or of several, line by line."""
    given = await _given(request)
    if not has_key(desk.settings, request.headers, given.get("api_key")):
        return no_key(request.url.path)
    asked = _valid(TranslateAsked, given)
    name, to = _translator(desk, asked.source, asked.target)
    texts = [asked.q] if isinstance(asked.q, str) else asked.q
    desk.check(texts, len(texts))
    apart = html_of if asked.format == "html" else lines_of
    parts = await asyncio.to_thread(desk.few_enough, map(apart, texts))  # a megabyte of tags takes seconds
    wished: dict[str, Any] = {"n_best": asked.alternatives + 1} if asked.alternatives else {}
    answers: dict[bool, Iterator[Written]] = {}
    for tagged in (False, True):  # where words came to stand matters only to tags
        asks = [Ask(text, to=to) for own in parts for text, has_tags in zip(own.texts, own.tagged, strict=True) if has_tags is tagged]
        if asks or not tagged:
            found = await desk.ask(request, name, "translate", asks, parts_of=len(texts), attention=tagged or None, **wished)
            answers[tagged] = iter(found.answers)
    written = [[next(answers[tagged]) for tagged in own.tagged] for own in parts]
    return await large(partial(_answer, asked, parts, written, desk.models[name]))


def _answer(asked: TranslateAsked, parts: list[Parts], written: list[list[Written]], model: Model) -> dict[str, Any]:
    texts, others = [], []
    for own, answers in zip(parts, written, strict=True):
        ranked = [(answer, *answer.alternatives) for answer in answers]
        best, *rest = (_joined(own, [row[min(place, len(row) - 1)] for row in ranked], model) for place in range(asked.alternatives + 1))
        texts.append(best)
        others.append(list(dict.fromkeys(each for each in rest if each != best)))
    one = isinstance(asked.q, str)
    answer: dict[str, Any] = {"translatedText": texts[0] if one else texts}
    if asked.alternatives:
        answer["alternatives"] = others[0] if one else others
    return answer


def _joined(own: Parts, answers: Sequence[Written], model: Model) -> str:
    each = zip(own.texts, own.tagged, answers, strict=True)
    looks = [aligned(model, text, answer) if tagged else None for text, tagged, answer in each]
    return own.joined([answer.text for answer in answers], looks)


@router.get("/languages", responses={200: {"model": list[Language]}})
async def languages(request: Request, desk: TheDesk) -> Response:
    """What can be translated into what."""
    if not has_key(desk.settings, request.headers, (await _given(request)).get("api_key")):
        return no_key(request.url.path)
    targets = list(dict.fromkeys(code for model in _translators(desk).values() for code in _writes(desk, model)))
    if not targets:
        return Json([])
    reads = desk.settings.reads
    others = [{"code": code, "name": name_of(code), "targets": []} for code in targets if code != reads]
    return Json([{"code": reads, "name": name_of(reads), "targets": targets}, *others])


@router.post("/detect", responses={200: {"model": list[Detected]}}, openapi_extra=_body(DetectAsked))
async def detect(request: Request, desk: TheDesk) -> Response:
    """Which language a text is in, where a model is loaded whose labels are languages."""
    given = await _given(request)
    if not has_key(desk.settings, request.headers, given.get("api_key")):
        return no_key(request.url.path)
    asked = _valid(DetectAsked, given)
    name = next((name for name, model in desk.models.items() if _tells_languages(model)), None)
    if name is None:
        raise RegardError("no model here tells languages apart; serve a classifier whose labels are their codes, such as en and it")
    found = await desk.ask(request, name, "classify", [Ask(asked.q)])
    likely = sorted(found.answers[0].probabilities.items(), key=lambda item: -item[1])
    return Json([{"confidence": round(100 * chance, 1), "language": label} for label, chance in likely])


def _tells_languages(model: Model) -> bool:
    labels = getattr(model.config, "labels", None) or ()
    return bool(labels) and all(label in NAMES for label in labels)


def _translators(desk: Desk) -> dict[str, Model]:
    return {name: model for name, model in desk.models.items() if "translate" in model.verbs}


def _writes(desk: Desk, model: Model) -> tuple[str, ...]:
    """The codes of the languages that a translator writes. Without tags it writes one, whose name only a person knows."""
    return model.languages or ((desk.settings.writes,) if desk.settings.writes else ())


def _translator(desk: Desk, source: str, target: str) -> tuple[str, str | None]:
    """The model that translates so, and the tag to tell it."""
    if source not in ("auto", desk.settings.reads):
        raise ConfigError(f"{source[:20]!r} is not supported as a source; the models here read {desk.settings.reads!r}")
    able = _translators(desk)
    for name, model in able.items():
        if target in _writes(desk, model):
            return name, target if model.languages else None
    known = sorted({code for model in able.values() for code in _writes(desk, model)})
    if not known:
        raise ConfigError("no model here translates into a language whose code is known; start the server with --writes to say which")
    raise ConfigError(f"{target[:20]!r} is not supported as a target; {nearest(target[:20], known)}")


async def _given(request: Request) -> dict[str, Any]:
    """The fields of a request, whichever way they were sent. A name that is given again makes a list, as q=…&q=… does."""
    found: dict[str, list[Any]] = {}
    for name, value in request.query_params.multi_items():
        found.setdefault(name, []).append(value)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in FORMS:
        most = ESCAPED * desk_of(request).settings.limits.characters
        async with request.form(max_files=0, max_fields=MOST_FIELDS, max_part_size=most) as form:
            for name, field in form.multi_items():
                if isinstance(field, UploadFile):
                    raise HTTPException(400, f"{name[:20]!r} is a file; send it as text")
                found.setdefault(name, []).append(field)
    given = {name: values[0] if len(values) == 1 else values for name, values in found.items()}
    return given | (_json(await request.body(), desk_of(request).settings.limits) if kind == "application/json" else {})


def _json(body: bytes, limits: Limits) -> dict[str, Any]:
    try:
        given = parsed(body, limits) if body else {}
    except (ValueError, RecursionError):
        raise HTTPException(400, 'the body is no JSON that can be read; send an object such as {"q": "…", "target": "it"}') from None
    if not isinstance(given, dict):
        raise HTTPException(400, "the body should be a JSON object")
    return given


def _valid(schema: type[Any], given: dict[str, Any]) -> Any:
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise HTTPException(400, f"{'.'.join(map(str, first['loc']))[:60]}: {first['msg']}") from None
