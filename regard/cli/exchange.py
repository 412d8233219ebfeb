"""The verb that brings models in from elsewhere."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.app import app

if TYPE_CHECKING:
    from regard.storage import Precision


class PrecisionName(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(help="A local Hugging Face folder, a GGUF file, or a model file (.bin) of llama2.c.")],
    out: Annotated[Path, typer.Argument(help="Where to write the bundle.")],
    tokenizer: Annotated[
        Path | None, typer.Option(help="The tokenizer file of a llama2.c model; by default tokN.bin or tokenizer.bin beside it.")
    ] = None,
    precision: Annotated[
        PrecisionName | None, typer.Option(help="How the weights of a GGUF or llama2.c file are kept; float32 unless said otherwise.")
    ] = None,
) -> None:
    """Turn a model from elsewhere into a bundle, with its tokenizer: text in, text out.

    A Hugging Face folder, a GGUF file (Llama-type models, quantised or not), or a llama2.c file: what it is shows by itself.
    """
    from regard.bundle import TOKENIZER, read_config
    from regard.training.lock import refuse_others
    from regard.view.summary import describe, summarise

    refuse_others(out)
    _import(source, out, tokenizer, precision)
    if not (out / TOKENIZER).is_file():
        print(f"regard: {source} has no {TOKENIZER}, so the bundle takes token ids, not text", file=sys.stderr)
    summary = summarise(read_config(out))
    print(f"{out}: {describe(summary.config)}, {summary.parameters:,} parameters", file=sys.stderr)


def _import(source: Path, out: Path, tokenizer: Path | None, precision: PrecisionName | None) -> None:
    from regard.errors import ConversionError

    kept: Precision | None = None if precision is None else precision.value
    if tokenizer is not None and source.suffix != ".bin":
        raise typer.BadParameter("--tokenizer is for llama2.c files; the others have theirs with them")
    if source.is_file() and (source.suffix == ".gguf" or _begins_with(source, b"GGUF")):
        from regard.interop.gguf import import_gguf

        import_gguf(source, out, kept)
    elif source.is_file() and source.suffix == ".bin":
        from regard.interop.llama2c import import_llama2c

        import_llama2c(source, out, tokenizer, kept)
    elif source.is_file():
        raise ConversionError(
            f"{source} is a file of no kind that is known here; give a Hugging Face folder, a .gguf or a llama2.c .bin file"
        )
    else:
        from regard.interop.huggingface import import_folder

        if precision is not None:
            raise typer.BadParameter("--precision is for GGUF and llama2.c files; a Hugging Face folder keeps its own")
        import_folder(source, out)


def _begins_with(file: Path, magic: bytes) -> bool:
    with file.open("rb") as content:
        return content.read(len(magic)) == magic
