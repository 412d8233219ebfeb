"""The verbs that ask a model: text in, answers out, one line for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.app import DataDir, Format, FormatOption, app
from regard.cli.chatting import continue_aloud, converse, lines_typed, typed
from regard.cli.lines import Machine, check_attention, data_file, each_line, given, guessing, named_model, pair_of, writing
from regard.cli.music import is_piece, write_piece
from regard.cli.options import (
    MODEL_HELP,
    Attention,
    Ban,
    BeamSize,
    Columns,
    Coverage,
    Device,
    Diversity,
    Groups,
    Header,
    Input,
    LengthPenalty,
    MaxLength,
    Mbr,
    MinLength,
    MinP,
    ModelOption,
    NBest,
    NoRepeat,
    Output,
    Precision,
    PrecisionName,
    Prefix,
    RepetitionPenalty,
    Require,
    Samples,
    Seed,
    Speculate,
    Split,
    Temperature,
    Texts,
    To,
    TopK,
    TopP,
)
from regard.limits import MOST, MOST_CHOSEN_AMONG, MOST_CONTEXT

if TYPE_CHECKING:
    from regard.console import Results
    from regard.door import Model, Written
    from regard.door.judging import Evaluation


@app.command()
def translate(
    texts: Texts = None,
    model: ModelOption = None,
    to: To = None,
    input: Input = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: NBest = None,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    no_repeat: NoRepeat = None,
    repetition_penalty: RepetitionPenalty = None,
    ban: Ban = None,
    require: Require = None,
    prefix: Prefix = None,
    groups: Groups = None,
    diversity: Diversity = None,
    coverage: Coverage = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    samples: Samples = None,
    seed: Seed = None,
    mbr: Mbr = None,
    split: Split = None,
    attention: Attention = False,
    precision: Precision = PrecisionName.AUTO,
    device: Device = None,
) -> None:
    """Translate texts, or lines of a file or of standard input: one line in, one line out, in order.

    An empty line gives an empty line. Sentences of a line are translated one by one by a model that was trained on single ones, as
    the one that comes with regard was. What is too long for the model is translated in parts, with a warning that names its line.
    """
    options = given(
        beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, max_length=max_length, min_length=min_length,
        no_repeat=no_repeat, repetition_penalty=repetition_penalty, ban=ban, require=require, groups=groups, diversity=diversity,
        coverage=coverage, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, samples=samples, seed=seed, mbr=mbr,
        split=split and split.value,
    )  # fmt: skip

    def answers(loaded: Model, batch: list[str], first: int) -> list[Written]:
        return loaded.translate(batch, to, prefix=prefix, attention=attention, first=first, **options)

    each_line("translate", texts, model, Machine(device, precision), input, output, answers, writing(format, attention, n_best or samples))


@app.command()
def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, lines of --input or standard input.")] = None,
    model: ModelOption = None,
    input: Input = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    max_length: MaxLength = None,
    min_length: MinLength = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat: NoRepeat = None,
    samples: Samples = None,
    seed: Seed = None,
    ban: Ban = None,
    require: Require = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    n_best: NBest = None,
    groups: Groups = None,
    diversity: Diversity = None,
    mbr: Mbr = None,
    attention: Attention = False,
    chat: Annotated[bool, typer.Option("--chat", help="Hold a conversation, each prompt or line being your turn.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: what the model is told before anybody speaks.")] = None,
    speculate: Speculate = None,
    precision: Precision = PrecisionName.AUTO,
    device: Device = None,
) -> None:
    """Continue prompts: by chance, with a temperature of 0.8 and a top-p of 0.95 unless said otherwise, or with a beam.

    A prompt is continued word by word as you watch. Several prompts, or lines, give a line each; breaks in it become spaces.
    With --chat, a model that was taught conversations replies and remembers what was said.
    A model of music writes a piece with --output piece.mid, from nothing or from --input primer.mid.
    """
    machine = Machine(device, precision)
    options = given(
        max_length=max_length, min_length=min_length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, no_repeat=no_repeat, samples=samples, seed=seed, ban=ban, require=require,
        beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, groups=groups, diversity=diversity, mbr=mbr,
        speculate=guessing(speculate, machine),
    )  # fmt: skip
    if chat:
        converse(named_model("generate", model, machine), prompt, system, input, output, format, options)
        return
    if system is not None:
        raise typer.BadParameter("--system is said before a conversation; add --chat")
    if is_piece(input, output):
        write_piece(named_model("generate", model, machine), input, output, prompt, options)
        return
    at_once = {"samples", "mbr", "beam_size", "n_best", "groups", "length_penalty", "diversity", "require"} & options.keys()
    watched = (len(prompt) == 1 if prompt else typed()) and format is Format.TEXT and input is None and output is None
    if watched and not at_once:
        check_attention(format, attention)
        continue_aloud(named_model("generate", model, machine), prompt or lines_typed("> "), options)
        return

    def answers(loaded: Model, batch: list[str], first: int) -> list[Written]:
        return loaded.generate(batch, attention=attention, first=first, **options)

    each_line("generate", prompt, model, machine, input, output, answers, writing(format, attention, n_best or samples, echo=True))


@app.command()
def classify(
    texts: Texts = None,
    model: ModelOption = None,
    input: Input = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    device: Device = None,
) -> None:
    """Give each text its label, a tab and how likely it is."""

    def write(results: Results, _: int, __: str, answer: Any) -> None:
        results.json(answer.as_json()) if format is Format.JSON else results.text(f"{answer.label}\t{answer.probability:.4f}")

    each_line("classify", texts, model, Machine(device), input, output, lambda m, batch, first: m.classify(batch, first=first), write)


@app.command()
def fill(
    texts: Texts = None,
    model: ModelOption = None,
    choices: Annotated[int, typer.Option(min=1, max=MOST_CHOSEN_AMONG, help="How many words to show for each place.")] = 5,
    input: Input = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    device: Device = None,
) -> None:
    """Fill in words where a text says [MASK]: the filled text, a tab, and the likeliest words for each place."""

    def write(results: Results, _: int, __: str, answer: Any) -> None:
        if format is Format.JSON:
            return results.json(answer.as_json())
        places = [", ".join(f"{choice.word} {choice.probability:.3f}" for choice in place) for place in answer.choices]
        return results.text("\t".join((answer.text, *places)))

    each_line(
        "fill", texts, model, Machine(device), input, output, lambda m, batch, first: m.fill(batch, choices=choices, first=first), write
    )


@app.command()
def embed(
    texts: Texts = None,
    model: ModelOption = None,
    pooling: Annotated[str | None, typer.Option(help="mean or first; by default as the model was made.")] = None,
    normalise: Annotated[
        bool | None, typer.Option("--normalise/--no-normalise", help="Vectors of length 1, or not; by default as the model was made.")
    ] = None,
    input: Input = None,
    output: Annotated[Path | None, typer.Option(help="A file to write to: JSON lines, or a matrix if it ends in .npy.")] = None,
    device: Device = None,
) -> None:
    """Give each text a vector: a JSON list a line, or a .npy matrix."""

    def answers(loaded: Model, batch: list[str], first: int) -> list[Any]:
        return list(loaded.embed(batch, pooling=pooling, normalise=normalise, first=first))

    def write(results: Results, _: int, __: str, vector: Any) -> None:
        results.numbers(vector.tolist())

    each_line("embed", texts, model, Machine(device), input, output, answers, write)


@app.command()
def score(
    source: Annotated[str | None, typer.Argument(help="A source, or a text for a language model.")] = None,
    target: Annotated[str | None, typer.Argument(help="Its translation.")] = None,
    model: ModelOption = None,
    to: To = None,
    input: Annotated[Path | None, typer.Option(help="A file of pairs, a tab between them; a language model: of texts.")] = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    device: Device = None,
) -> None:
    """Give the log-probability of given translations, or of given texts: of their tokens and of the end.

    For what translate wrote, that is its log_probability, if it ended by itself and is read as the tokens it was written in.
    """

    def answers(loaded: Model, batch: list[str], first: int) -> list[Any]:
        if "generate" in loaded.verbs and target is None:
            return loaded.score(batch, first=first)
        if source is not None and target is not None:
            pairs = [(source, target)]
        else:
            pairs = [pair_of(loaded, line, number) for number, line in enumerate(batch, first)]
        return loaded.score([one for one, _ in pairs], [other for _, other in pairs], to=to, first=first)

    def write(results: Results, _: int, __: str, answer: Any) -> None:
        results.json(answer.as_json()) if format is Format.JSON else results.text(str(answer))

    each_line("score", None if source is None else [source], model, Machine(device), input, output, answers, write)


@app.command()
def evaluate(
    data: Annotated[str, typer.Option(help="Pairs, labelled or plain text, as for training.")],
    model: Annotated[
        list[Path] | None, typer.Option("--model", "-m", envvar="REGARD_MODEL", help=f"{MODEL_HELP} Two are compared.")
    ] = None,
    to: To = None,
    target: Annotated[str | None, typer.Option(help="A file of translations, line by line, where --data has the sources alone.")] = None,
    columns: Columns = None,
    header: Header = None,
    only: Annotated[list[str] | None, typer.Option(help="Only rows whose column has a value, as 2=tatoeba; may be given again.")] = None,
    tokenize: Annotated[str, typer.Option(help="sacreBLEU's tokenizer; none for text that is in tokens already.")] = "13a",
    limit: Annotated[int | None, typer.Option(min=1, max=MOST, help="The first so many rows alone.")] = None,
    stride: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_CONTEXT, help="Perplexity of all lines as one text, by a window that moves on by so many tokens."),
    ] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    mbr: Mbr = None,
    seed: Seed = None,
    split: Split = None,
    hypotheses: Annotated[
        list[Path] | None, typer.Option(help="A file for what the model wrote, a line for each row; given again for the second model.")
    ] = None,
    format: FormatOption = Format.TEXT,
    data_dir: DataDir = None,
    precision: Precision = PrecisionName.AUTO,
    device: Device = None,
) -> None:
    """Measure a model on data: BLEU, chrF and TER, perplexity, or accuracy; two models with their difference and whether it is real."""
    from rich.console import Console

    from regard.console import Messages, Results

    asked: Sequence[Path | None] = model or [None]
    if len(asked) > 2:
        raise typer.BadParameter("two models can be compared, not more")
    if len(hypotheses or []) > len(asked):
        raise typer.BadParameter("--hypotheses is given more often than --model")
    file = data_file(data, target, columns, only, header)
    options = given(beam_size=beam_size, length_penalty=length_penalty, mbr=mbr, seed=seed, split=split and split.value)
    found: list[Evaluation] = []
    with Messages() as messages, ExitStack() as files:
        outputs = [files.enter_context(Results(path)) for path in hypotheses or []]  # what can't be written is said now, not in an hour
        for folder in asked:
            loaded = named_model("evaluate", folder, Machine(device, precision), messages)
            if outputs and not {"translate", "classify"} & set(loaded.verbs):
                raise typer.BadParameter(f"--hypotheses: {loaded.name} writes nothing when it is evaluated")
            found.append(
                loaded.evaluate(
                    file, to=to, root=data_dir, limit=limit, tokenize=tokenize, stride=stride, progress=messages.progress, **options
                )
            )
            messages.finish()
        for results, each in zip(outputs, found, strict=False):
            for output in each.outputs:
                results.text(output)
        comparison = found[0].compared_with(found[1]) if len(found) == 2 else None
    if format is Format.JSON:
        with Results(None) as results:
            results.json(
                found[0].as_json()
                if comparison is None
                else {"models": [each.as_json() for each in found], "difference": comparison.as_json()}
            )
        return
    console = Console()
    for each in found:
        each.show(console)
        console.print()
    if comparison is not None:
        comparison.show(console)
