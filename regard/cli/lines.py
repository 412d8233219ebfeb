"""What the verbs share: the model that was named, lines in, and answers out in order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from regard.cli.app import Format
from regard.cli.options import PrecisionName

if TYPE_CHECKING:
    from regard.console import Messages, Results
    from regard.door import Model, Written
    from regard.recipe import DataFile

NUMBER = re.compile(r"[0-9]{1,9}")  # of a column; what is longer can be none, and is looked for as a name
LINES_AT_ONCE = {"cpu": 2048, "cuda": 16384}  # sorted by length and answered together
BATCHES_AT_ONCE = {"cuda": 2}  # while a GPU works on one, the host reads, tokenises and writes another


def columns_of(wanted: str | None) -> tuple[int | str, ...] | None:
    """Numbers or names of columns, with commas between."""
    return tuple(int(part) if NUMBER.fullmatch(part) else part for part in wanted.split(",")) if wanted else None


def data_file(data: str, target: str | None, columns: str | None, only: list[str] | None, header: bool | None) -> DataFile:
    from regard.recipe import DataFile

    kept: dict[str, tuple[str, ...]] = {}
    for condition in only or []:
        key, equals, value = condition.partition("=")
        if not equals:
            raise typer.BadParameter(f"--only {condition}: write a column or key and its value, as 2=tatoeba")
        kept[key] = (*kept.get(key, ()), value)
    sides = {"path": data} if target is None else {"source": data, "target": target}
    return DataFile(**sides, columns=columns_of(columns), only=kept, header=header)  # type: ignore[arg-type]


def given(**options: Any) -> Any:
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Machine:
    """Where a model is to run, and in what precision."""

    device: str | None = None
    precision: PrecisionName = PrecisionName.AUTO


def named_model(verb: str, folder: Path | None, machine: Machine, messages: Messages | None = None) -> Model:
    from regard.door import load
    from regard.door.verbs import shipped_for

    model = load(folder or shipped_for(verb), device=machine.device, precision=machine.precision.value)
    model.need(verb)
    if messages is not None:
        model.warn = lambda message: messages.warn(message, "warnings of this kind")
    return model


def guessing(asked: str | None, machine: Machine) -> str | Model | None:
    """Who guesses words ahead; a draft model is loaded once for all lines."""
    if asked in (None, "off", "ngram"):
        return asked
    from regard.door.guessing import draft_of

    return draft_of(asked, machine.device)


def each_line(
    verb: str,
    texts: Sequence[str] | None,
    folder: Path | None,
    machine: Machine,
    input: Path | None,
    output: Path | None,
    answers: Callable[[Model, list[str], int], list[Any]],
    write: Callable[[Results, int, str, Any], Any],
) -> None:
    """Reads lines, asks the model, writes what it says: in order, a batch at a time, so that memory stays the same for any file.

    On a GPU two batches are under way at the same time, and nobody can tell but by the clock.
    """
    from regard.cli.ahead import ahead
    from regard.console import Batch, line_by_line

    with line_by_line(texts or [], input, output) as (lines, results, messages):
        model = named_model(verb, folder, machine, messages)
        if not texts:
            model.place = lambda number: f"{lines.name}, line {number + 1}"
        kind = model.device.type
        size, at_once = (1, 1) if lines.interactive else (LINES_AT_ONCE.get(kind, 2048), BATCHES_AT_ONCE.get(kind, 1))

        def work(batch: Batch) -> list[Any]:
            with messages.kept(batch.warnings):
                return answers(model, batch.texts, batch.first)

        with closing(ahead(work, lines.ahead(size), at_once)) as answered:
            for batch, found in answered:
                messages.warn_of(batch.warnings)
                for number, (text, answer) in enumerate(zip(batch.texts, found.result(), strict=True), batch.first + 1):
                    write(results, number, text, answer)
                results.flush()
                lines.done(batch)
                del batch, found, answer  # or else they are kept until the next are there


def writing(format: Format, attention: bool, outputs: int | None, *, echo: bool = False) -> Callable[[Results, int, str, Written], None]:
    """How to print what a model wrote. Where several outputs of a text are asked for, each says which text it belongs to."""
    check_attention(format, attention)

    def write(results: Results, number: int, text: str, answer: Written) -> None:
        before = text if echo else ""
        if format is Format.JSON:
            results.json({**({"prompt": text} if echo else {}), **answer.as_json()})
        elif (outputs or 1) == 1:
            results.text(before + answer.text)
        else:
            for each in (answer, *answer.alternatives):
                results.text(f"{number}\t{each.score:.6f}\t{before}{each.text}")

    return write


def check_attention(format: Format, attention: bool) -> None:
    if attention and format is not Format.JSON:
        raise typer.BadParameter("--attention gives numbers, which need --format json")


def pair_of(model: Model, line: str, number: int) -> tuple[str, str]:
    source, tab, target = line.partition("\t")
    if not tab:
        from regard.errors import CorpusError

        raise CorpusError(f"{model.place(number)}: score takes a source, a tab and its translation, or the two as arguments: {line[:60]!r}")
    return source, target
