"""The work itself, in a thread of its own: texts of one kind, and what becomes of each."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch

from regard.door import Model
from regard.door.one_by_one import OneByOne
from regard.door.writing import NO_OUTPUT, generate
from regard.errors import RegardError
from regard.serve.arrivals import Arrivals
from regard.serve.queue import Ask, Company, Entry, Kind, Outcome
from regard.serve.trace_work import Remembered, documents

LOG = logging.getLogger("regard.serve")


def work(
    models: Mapping[str, Model], remembered: Remembered, tables: int, kind: Kind, entries: Sequence[Entry], company: Company
) -> list[Outcome]:
    """What becomes of each text that was not settled before. Where one writes, others may come and go meanwhile."""
    model = models[kind.model]
    if (writing := _one_by_one(model, kind)) is None:
        return batch(models, remembered, kind, entries)
    arrivals = Arrivals(model, writing, entries, company, tables)
    try:
        arrivals.decode()
    except Exception:
        LOG.exception("%s could not %s %d texts together; they are tried again", kind.model, kind.verb, len(arrivals.unanswered))
    left = arrivals.unanswered  # and not within the exception, which would hold on to the table and its memory
    if left and model.kept is not None:
        model.kept.clear()
        torch.cuda.empty_cache()
    for entry, outcome in zip(left, batch(models, remembered, kind, left), strict=True):
        company.settle(entry, outcome)
    return []


def _one_by_one(model: Model, kind: Kind) -> OneByOne | None:
    """How texts of this kind are written from as they come; None where they aren't."""
    if kind.verb not in ("translate", "generate"):
        return None
    wishes: Any = dict(kind.options)
    attention = wishes.pop("attention", False)
    try:
        writing = OneByOne(model, "translate" if kind.verb == "translate" else "generate", wishes, attention=attention)
    except RegardError:
        return None  # which is said of each request when it is worked on
    return writing if writing.possible else None


def batch(models: Mapping[str, Model], remembered: Remembered, kind: Kind, entries: Sequence[Entry]) -> list[Outcome]:
    """All at once. Where one can't be answered, those of other requests are, as if it had never been there."""
    if not entries:
        return []
    jobs = list(dict.fromkeys(id(entry.job) for entry in entries))
    try:
        outcomes = _answered(models[kind.model], remembered, kind, [entry.ask for entry in entries])
        alone = _without_output(entries, outcomes) if len(jobs) > 1 else []
    except Exception as error:
        if len(jobs) == 1:
            if not isinstance(error, RegardError):
                LOG.exception("%s could not %s", kind.model, kind.verb)
            return [Outcome(error=error)] * len(entries)
        outcomes, alone = [Outcome()] * len(entries), jobs
    for job in alone:
        own = [index for index, entry in enumerate(entries) if id(entry.job) == job]
        for index, outcome in zip(own, batch(models, remembered, kind, [entries[index] for index in own]), strict=True):
            outcomes[index] = outcome
    return outcomes


def _without_output(entries: Sequence[Entry], outcomes: Sequence[Outcome]) -> list[int]:
    """Requests none of whose texts has an output. On their own that is an error, which should not depend on who else is asking."""
    written: dict[int, bool] = {}
    for entry, outcome in zip(entries, outcomes, strict=True):
        written[id(entry.job)] = written.get(id(entry.job), False) or outcome.answer is not NO_OUTPUT
    return [job for job, any_output in written.items() if not any_output]


def _answered(model: Model, remembered: Remembered, kind: Kind, asks: Sequence[Ask]) -> list[Outcome]:
    """All of them at once. Warnings go to the text that they are about."""
    heard = _Heard(asks)
    ours = copy(model)  # the same network, with ears of its own
    ours.place, ours.warn = heard.place, heard.warn
    options = dict(kind.options)
    found = documents(ours, asks, options, remembered) if kind.verb == "trace" else VERBS[kind.verb](ours, asks, options)
    return [Outcome(answer, tuple(heard.warnings[index])) for index, answer in enumerate(found)]


class _Heard:
    """What a model says about texts while it works. It asks where a text stands right before it says something about it."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.asks = asks
        self.warnings: list[list[str]] = [[] for _ in asks]
        self._index = 0

    def place(self, index: int) -> str:
        self._index = index
        return f"text {self.asks[index].place + 1}"

    def warn(self, message: str) -> None:
        self.warnings[self._index].append(message)


def _translate(model: Model, asks: Sequence[Ask], options: dict[str, Any]) -> list[Any]:
    tags = [ask.to for ask in asks if ask.to is not None]  # of all, or of none
    prefix = [ask.prefix or "" for ask in asks] if any(ask.prefix is not None for ask in asks) else None
    return model.translate(_texts(asks), tags or None, prefix=prefix, numbers=[ask.number for ask in asks], **options)


def _generate(model: Model, asks: Sequence[Ask], options: dict[str, Any]) -> list[Any]:
    wishes: Any = options
    prompts = [ask.text if ask.ids is None else list(ask.ids) for ask in asks]
    return list(generate(model, prompts, False, 0, wishes, [ask.number for ask in asks]))


def _classify(model: Model, asks: Sequence[Ask], options: dict[str, Any]) -> list[Any]:
    return model.classify(_texts(asks), **options)


def _fill(model: Model, asks: Sequence[Ask], options: dict[str, Any]) -> list[Any]:
    return model.fill(_texts(asks), **options)


def _embed(model: Model, asks: Sequence[Ask], options: dict[str, Any]) -> list[Any]:
    return model.embed(_texts(asks), **options).tolist()


def _score(model: Model, asks: Sequence[Ask], options: dict[str, Any]) -> list[Any]:
    targets = [ask.target for ask in asks if ask.target is not None]
    # Where some have one and some have none, the latter are at fault, or the former: asked again, each request alone, they learn it.
    return model.score(_texts(asks), targets if targets else None, **options)


def _texts(asks: Sequence[Ask]) -> list[str]:
    return [ask.text for ask in asks]


VERBS = {"translate": _translate, "generate": _generate, "classify": _classify, "fill": _fill, "embed": _embed, "score": _score}
