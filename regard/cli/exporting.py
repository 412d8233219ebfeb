"""The verb that takes models elsewhere."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.app import Format, FormatOption, app
from regard.limits import MOST


class TargetName(StrEnum):
    HUGGINGFACE = "huggingface"
    CTRANSLATE2 = "ctranslate2"
    ONNX = "onnx"


class PrecisionName(StrEnum):
    FLOAT32 = "float32"
    INT8 = "int8"


class HeadName(StrEnum):
    LABELS = "labels"
    MASKED_WORDS = "masked-words"
    NONE = "none"


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="The folder of a bundle, or one that comes with regard.")],
    out: Annotated[Path, typer.Argument(help="Where to write it: a new or empty folder.")],
    to: Annotated[TargetName, typer.Option(help="For which library.")],
    precision: Annotated[PrecisionName, typer.Option(help="Of the weights; int8 is for ctranslate2.")] = PrecisionName.FLOAT32,
    head: Annotated[
        HeadName | None, typer.Option(help="For huggingface: which of an encoder's heads; by default labels, else words.")
    ] = None,
    check: Annotated[Path | None, typer.Option(help="A file of lines to try it on, instead of a few of our own.")] = None,
    limit: Annotated[int, typer.Option(help="Of those lines, the first so many.", min=1, max=MOST)] = 1000,
    format: FormatOption = Format.TEXT,
) -> None:
    """Write a bundle for Hugging Face transformers, CTranslate2 or ONNX Runtime.

    What was written is loaded there and tried against the original: it says how close it is. Where it is not, or where the other library
    has no such model, nothing is written and the reason is said.
    """
    from itertools import islice

    from regard.console import Lines, Messages
    from regard.evaluation.metrics import finite
    from regard.interop.export import export as write
    from regard.shipped import find_bundle
    from regard.training.lock import refuse_others

    refuse_others(out)
    sentences: list[str] = []
    if check is not None:
        with Messages() as messages:
            messages.bar_wanted = False
            sentences = list(islice((line for line in Lines([], check, messages) if line.strip()), limit))
    report = write(
        find_bundle(model), to.value, out, precision=precision.value, head=None if head is None else head.value, sentences=sentences
    )
    if format is Format.JSON:
        print(json.dumps(finite({"model": str(model), "to": to.value, "out": str(out), **report.as_json()}), indent=2, ensure_ascii=False))
        return
    print(f"{out}: {report.made}; {report}", file=sys.stderr)
    for other in report.others:
        print(f"  {other.text}\n    here:  {other.ours}\n    there: {other.theirs}", file=sys.stderr)
