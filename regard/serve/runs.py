"""/api/runs: the figures of trainings as they are written, from a folder of runs.

A request never says a path: its name is compared with what lies in the folder.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from pydantic import BaseModel

from regard.errors import nearest
from regard.serve.bodies import Json
from regard.serve.desk import Desk, desk_of
from regard.serve.schemas import PROBLEMS

METRICS, RECIPE = "metrics.jsonl", "recipe.toml"
MOST_BYTES = 1 << 20  # of a file, in one answer
TAIL = 8192  # bytes in which the last record is found
MOST_RUNS = 200

router = APIRouter(prefix="/api/runs", tags=["runs"], responses=PROBLEMS)
TheDesk = Annotated[Desk, Depends(desk_of)]


class Run(BaseModel):
    """A training, and how far it is."""

    name: str
    updated: float
    step: int | None
    steps: int | None
    task: str | None


class Runs(BaseModel):
    runs: list[Run]


class Records(BaseModel):
    """Lines of a run's figures, and where the next ones begin."""

    name: str
    records: list[dict[str, Any]]
    since: int
    reset: bool
    more: bool


@router.get("", responses={200: {"model": Runs}})
def runs(desk: TheDesk) -> Response:
    """The trainings there are, the one written to last first."""
    found = [_card(name, folder) for name, folder in listed(desk.settings.runs).items()]
    found.sort(key=lambda run: (-run.updated, run.name))
    return Json(Runs(runs=found[:MOST_RUNS]).model_dump())


@router.get("/{name}", responses={200: {"model": Records}})
def records(name: str, desk: TheDesk, since: Annotated[int, Query(ge=0, lt=2**53)] = 0) -> Response:
    """What a training has written since a place in its file."""
    known = listed(desk.settings.runs)
    if name not in known:
        remedy = nearest(name[:60], known) if known else "regard serve --runs DIR shows those of a folder"
        raise HTTPException(404, f"there is no run {name[:60]!r} here; {remedy}")
    return Json(read(name, known[name] / METRICS, since).model_dump())


def listed(folder: Path | None) -> dict[str, Path]:
    """The runs in a folder by their names; a folder that is a run itself is the only one."""
    if folder is None:
        return {}
    try:
        inside = [folder] if (folder / METRICS).is_file() else sorted(folder.iterdir())
        return {path.resolve().name if path is folder else path.name: path for path in inside if (path / METRICS).is_file()}
    except OSError:
        return {}


def read(name: str, path: Path, since: int) -> Records:
    """The whole lines of a file from `since` on. One that was cut back, or rewritten, is read from its beginning."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, since - 1))
            reset = since > 0 and (since > size or file.read(1) != b"\n")
            start = 0 if reset else since
            file.seek(start)
            content = file.read(MOST_BYTES)
    except OSError:
        return Records(name=name, records=[], since=0, reset=since > 0, more=False)
    whole = content[: content.rfind(b"\n") + 1]
    if not whole and len(content) == MOST_BYTES:
        whole = content  # a line of a megabyte is no line of ours
    place = start + len(whole)
    found = [record for line in whole.splitlines() if (record := _record(line)) is not None]
    return Records(name=name, records=found, since=place, reset=reset, more=place < size and len(content) == MOST_BYTES)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # a line that a kill cut short
        return None
    return found if isinstance(found, dict) else None


def _card(name: str, folder: Path) -> Run:
    recipe = _recipe(folder / RECIPE)
    steps, task = recipe.get("training", {}), recipe.get("task")
    total = steps.get("steps") if isinstance(steps, dict) else None
    try:
        updated = (folder / METRICS).stat().st_mtime
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            last = [record for line in file.read().splitlines() if (record := _record(line)) is not None]
    except OSError:
        updated, last = 0.0, []
    step = last[-1].get("step") if last else None
    return Run(
        name=name,
        updated=updated,
        step=_count(step),
        steps=_count(total),
        task=task if isinstance(task, str) else None,
    )


def _count(found: object) -> int | None:
    """A number of steps, if it can be one: one of thousands of digits can't even be written out."""
    return found if isinstance(found, int) and 0 <= found < 2**53 else None


def _recipe(path: Path) -> dict[str, Any]:
    """What a recipe says; nothing, if it is damaged: the figures can be shown without it, and so can other runs."""
    try:
        if not path.is_file():  # a pipe would be waited for
            return {}
        with path.open("rb") as file:
            return tomllib.loads(file.read(MOST_BYTES).decode())
    except (OSError, ValueError, RecursionError):
        return {}
