"""What may be said to the verbs that ask a model: every option once, with its help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class PrecisionName(StrEnum):
    """What is written may be written in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


class SplitName(StrEnum):
    """What of a text is translated on its own."""

    SENTENCES = "sentences"
    LENGTH = "length"
    NONE = "none"


MODEL_HELP = "The folder of a bundle, or one that comes with regard (regard models). Without it: one of those that can do this."
ModelOption = Annotated[Path | None, typer.Option("--model", "-m", envvar="REGARD_MODEL", help=MODEL_HELP)]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines are read from --input or standard input.")]
Input = Annotated[Path | None, typer.Option(help="A file of lines to read: plain text, or that in .gz, .xz or .zst.")]
Output = Annotated[Path | None, typer.Option(help="A file to write to; it is there when all is done, or not at all.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default a GPU where there is one.")]
Precision = Annotated[
    PrecisionName, typer.Option(help="Of the numbers: auto is int8 on a CPU where that is faster and next to nothing is lost.")
]
Columns = Annotated[str | None, typer.Option(help="Which columns or keys of the file, as 0,2 or source,target.")]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a table names its columns; without it, that is seen by the names, and said.",
        show_default=False,
    ),
]
Split = Annotated[
    SplitName | None,
    typer.Option(
        help="Translate each sentence of a line on its own, or lines whole (too long ones in parts, or never); by default as trained."
    ),
]
To = Annotated[str | None, typer.Option(help="The language to write, for a model that knows several.")]
Attention = Annotated[bool, typer.Option("--attention", help="With --format json: the weights behind each output, per layer and head.")]

BEAM, CHANCE, RULES = "Beam search", "Chance", "What may be written"
BeamSize = Annotated[int | None, typer.Option(help="Hypotheses kept open, 4 unless said otherwise; 1 is greedy.", rich_help_panel=BEAM)]
LengthPenalty = Annotated[float | None, typer.Option(help="α in score = log P / length^α; 1 unless said otherwise.", rich_help_panel=BEAM)]
NBest = Annotated[
    int | None,
    typer.Option(
        help="Give the best so many for each text, a line each: number of the text, score, output, tabs between.", rich_help_panel=BEAM
    ),
]
Coverage = Annotated[float | None, typer.Option(help="β: prefer outputs that looked at every source word.", rich_help_panel=BEAM)]
Groups = Annotated[int | None, typer.Option(help="Parts of the beam that are kept different from one another.", rich_help_panel=BEAM)]
Diversity = Annotated[float | None, typer.Option(help="How different the groups are kept.", rich_help_panel=BEAM)]
Temperature = Annotated[
    float | None, typer.Option(help="Draw words by chance; below 1 surer, above 1 bolder, 0 none.", rich_help_panel=CHANCE)
]
TopK = Annotated[int | None, typer.Option(help="Draw from the k likeliest only.", rich_help_panel=CHANCE)]
TopP = Annotated[float | None, typer.Option(help="Draw from the likeliest that together have this probability.", rich_help_panel=CHANCE)]
MinP = Annotated[float | None, typer.Option(help="Draw from those at least this share as likely as the likeliest.", rich_help_panel=CHANCE)]
Samples = Annotated[
    int | None, typer.Option(help="Draw so many outputs for each text; more than one are printed as with --n-best.", rich_help_panel=CHANCE)
]
Seed = Annotated[int | None, typer.Option(help="Of the chance; the same gives the same.", rich_help_panel=CHANCE)]
Mbr = Annotated[int | None, typer.Option(help="Draw so many and give the one most like all others, by chrF.", rich_help_panel=CHANCE)]
MaxLength = Annotated[
    str | None, typer.Option(help="Tokens written at most: a number, or 16+2x for 16 and twice the source's.", rich_help_panel=RULES)
]
MinLength = Annotated[str | None, typer.Option(help="Tokens written at least.", rich_help_panel=RULES)]
NoRepeat = Annotated[int | None, typer.Option(help="Write no run of so many tokens twice.", rich_help_panel=RULES)]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1: what was written already becomes less likely.", rich_help_panel=RULES)
]
Ban = Annotated[
    list[str] | None, typer.Option(help="A word not to write, by the tokens it is made of; may be given again.", rich_help_panel=RULES)
]
Require = Annotated[
    list[str] | None, typer.Option(help="A word that must be written (with a beam); may be given again.", rich_help_panel=RULES)
]
Speculate = Annotated[
    str | None,
    typer.Option(
        metavar="ngram|off|DRAFT",
        help="Guess words ahead, for speed alone: by what stood in the text before, or with a smaller model that has the same tokenizer.",
    ),
]
Prefix = Annotated[str | None, typer.Option(help="What each output must begin with.", rich_help_panel=RULES)]
