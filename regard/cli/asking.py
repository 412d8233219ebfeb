"""The verbs that ask a model: text in, answers out, one line for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.app import DataDir, Format, FormatOption, app

if TYPE_CHECKING:
    from regard.console import Results
    from regard.door import Model, Written

LINES_AT_ONCE = 2048  # sorted by length and answered together

ModelOption = Annotated[Path, typer.Option("--model", "-m", envvar="REGARD_MODEL", help="The folder of a bundle.", show_default=False)]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines are read from --input or standard input.")]
Input = Annotated[Path | None, typer.Option(help="A file of lines to read, plain, .gz, .xz or .zst.")]
Output = Annotated[Path | None, typer.Option(help="A file to write to; it is there when all is done, or not at all.")]
Device = Annotated[str | None, typer.Option(help="Such as cpu or cuda; by default a GPU where there is one.")]
To = Annotated[str | None, typer.Option(help="The language to write, for a model that knows several.")]
Attention = Annotated[bool, typer.Option("--attention", help="With --format json: the weights behind each output, per layer and head.")]
MaxLength = Annotated[str | None, typer.Option(help="Tokens written at most: a number, or 16+2x for 16 and twice the source's.")]
MinLength = Annotated[str | None, typer.Option(help="Tokens written at least.")]
NoRepeat = Annotated[int | None, typer.Option(help="Write no run of so many tokens twice.")]
RepetitionPenalty = Annotated[float | None, typer.Option(help="Above 1: what was written already becomes less likely.")]
Ban = Annotated[list[str] | None, typer.Option(help="A word never to write; may be given again.")]
Require = Annotated[list[str] | None, typer.Option(help="A word that must be written (with a beam); may be given again.")]
BeamSize = Annotated[int | None, typer.Option(help="Hypotheses kept open; 1 is greedy.")]
LengthPenalty = Annotated[float | None, typer.Option(help="α in score = log P / length^α.")]
NBest = Annotated[int | None, typer.Option(help="Give the best so many of a beam for each text.")]
Coverage = Annotated[float | None, typer.Option(help="β: prefer outputs that looked at every source word.")]
Groups = Annotated[int | None, typer.Option(help="Parts of the beam that are kept different from one another.")]
Diversity = Annotated[float | None, typer.Option(help="How different the groups are kept.")]
Temperature = Annotated[float | None, typer.Option(help="Draw words by chance; below 1 surer, above 1 bolder, 0 none.")]
TopK = Annotated[int | None, typer.Option(help="Draw from the k likeliest only.")]
TopP = Annotated[float | None, typer.Option(help="Draw from the likeliest that together have this probability.")]
MinP = Annotated[float | None, typer.Option(help="Draw from those at least this share as likely as the likeliest.")]
Samples = Annotated[int | None, typer.Option(help="Draw so many outputs for each text.")]
Seed = Annotated[int | None, typer.Option(help="Of the chance; the same gives the same.")]
Mbr = Annotated[int | None, typer.Option(help="Draw so many and give the one most like all others, by chrF.")]


@app.command()
def translate(
    texts: Texts = None,
    model: ModelOption = ...,  # type: ignore[assignment]
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
    prefix: Annotated[str | None, typer.Option(help="What each output must begin with.")] = None,
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
    attention: Attention = False,
    device: Device = None,
) -> None:
    """Translate texts, or lines of a file or of standard input: one line in, one line out, in order."""
    options = _given(
        beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, max_length=max_length, min_length=min_length,
        no_repeat=no_repeat, repetition_penalty=repetition_penalty, ban=ban, require=require, groups=groups, diversity=diversity,
        coverage=coverage, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, samples=samples, seed=seed, mbr=mbr,
    )  # fmt: skip

    def answers(loaded: Model, batch: list[str], first: int) -> list[Written]:
        return loaded.translate(batch, to, prefix=prefix, attention=attention, first=first, **options)

    _each_line("translate", texts, model, device, input, output, answers, lambda results, _, answer: _write(results, answer, format))


@app.command()
def generate(
    prompt: Annotated[list[str] | None, typer.Argument(help="Prompts; without any, lines of --input or standard input.")] = None,
    model: ModelOption = ...,  # type: ignore[assignment]
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
    attention: Attention = False,
    device: Device = None,
) -> None:
    """Continue prompts. One prompt is continued word by word as you watch; lines of a file give a line each."""
    options = _given(
        max_length=max_length, min_length=min_length, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, no_repeat=no_repeat, samples=samples, seed=seed, ban=ban, require=require,
        beam_size=beam_size, length_penalty=length_penalty, n_best=n_best, groups=groups, diversity=diversity,
    )  # fmt: skip
    at_once = {"samples", "beam_size", "n_best", "groups", "length_penalty", "diversity", "require"} & options.keys()
    if prompt is not None and len(prompt) == 1 and format is Format.TEXT and output is None and not at_once:
        loaded = _loaded("generate", model, device)
        print(prompt[0], end="", flush=True)
        for piece in loaded.stream(prompt[0], **options):
            print(piece, end="", flush=True)
        print()
        return

    def answers(loaded: Model, batch: list[str], first: int) -> list[Written]:
        return loaded.generate(batch, attention=attention, first=first, **options)

    def write(results: Results, text: str, answer: Written) -> None:
        for each in (answer, *answer.alternatives) if format is Format.TEXT else (answer,):
            if format is Format.JSON:
                results.json({"prompt": text, **each.as_json()})
            else:
                results.text(text + each.text)

    _each_line("generate", prompt, model, device, input, output, answers, write)


@app.command()
def classify(
    texts: Texts = None,
    model: ModelOption = ...,  # type: ignore[assignment]
    input: Input = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    device: Device = None,
) -> None:
    """Give each text its label."""

    def write(results: Results, _: str, answer: Any) -> None:
        results.json(answer.as_json()) if format is Format.JSON else results.text(f"{answer.label}\t{answer.probability:.4f}")

    _each_line("classify", texts, model, device, input, output, lambda m, batch, first: m.classify(batch, first=first), write)


@app.command()
def fill(
    texts: Texts = None,
    model: ModelOption = ...,  # type: ignore[assignment]
    choices: Annotated[int, typer.Option(min=1, help="How many words to show for each place.")] = 5,
    input: Input = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    device: Device = None,
) -> None:
    """Fill in words where a text says [MASK]."""

    def write(results: Results, _: str, answer: Any) -> None:
        if format is Format.JSON:
            return results.json(answer.as_json())
        places = [", ".join(f"{choice.word} {choice.probability:.3f}" for choice in place) for place in answer.choices]
        return results.text("\t".join((answer.text, *places)))

    _each_line("fill", texts, model, device, input, output, lambda m, batch, first: m.fill(batch, choices=choices, first=first), write)


@app.command()
def embed(
    texts: Texts = None,
    model: ModelOption = ...,  # type: ignore[assignment]
    pooling: Annotated[str | None, typer.Option(help="mean or first; by default as the model was made.")] = None,
    normalise: Annotated[bool, typer.Option("--normalise", help="Vectors of length 1.")] = False,
    input: Input = None,
    output: Annotated[Path | None, typer.Option(help="A file to write to: JSON lines, or a matrix if it ends in .npy.")] = None,
    device: Device = None,
) -> None:
    """Give each text a vector: a JSON list a line, or a .npy matrix."""

    def answers(loaded: Model, batch: list[str], first: int) -> list[Any]:
        return list(loaded.embed(batch, pooling=pooling, normalise=normalise, first=first))

    def write(results: Results, _: str, vector: Any) -> None:
        results.numbers(vector.tolist())

    _each_line("embed", texts, model, device, input, output, answers, write)


@app.command()
def score(
    source: Annotated[str | None, typer.Argument(help="A source, or a text for a language model.")] = None,
    target: Annotated[str | None, typer.Argument(help="Its translation.")] = None,
    model: ModelOption = ...,  # type: ignore[assignment]
    to: To = None,
    input: Annotated[Path | None, typer.Option(help="A file of pairs, a tab between them; a language model: of texts.")] = None,
    output: Output = None,
    format: FormatOption = Format.TEXT,
    device: Device = None,
) -> None:
    """Give the log-probability of given translations, or of given texts."""

    def answers(loaded: Model, batch: list[str], first: int) -> list[Any]:
        if loaded.config.kind == "lm":
            return list(loaded.score(batch, first=first))  # type: ignore[arg-type]
        pairs = [_pair(line, first + number) for number, line in enumerate(batch)]
        return list(loaded.score([one for one, _ in pairs], [other for _, other in pairs], to=to, first=first))  # type: ignore[arg-type]

    def write(results: Results, _: str, answer: Any) -> None:
        results.json(answer.as_json()) if format is Format.JSON else results.text(str(answer))

    given = None if source is None else [source if target is None else f"{source}\t{target}"]
    _each_line("score", given, model, device, input, output, answers, write)


@app.command()
def evaluate(
    data: Annotated[str, typer.Option(help="Pairs, labelled or plain text, as for training.")],
    model: Annotated[list[Path], typer.Option("--model", "-m", help="The folder of a bundle; two are compared.")],
    to: To = None,
    target: Annotated[str | None, typer.Option(help="A file of translations, line by line, where --data has the sources alone.")] = None,
    columns: Annotated[str | None, typer.Option(help="Which columns or keys of the file, as 0,2 or source,target.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only rows whose column has a value, as 2=tatoeba; may be given again.")] = None,
    tokenize: Annotated[str, typer.Option(help="sacreBLEU's tokenizer; none for text that is in tokens already.")] = "13a",
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many rows alone.")] = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    mbr: Mbr = None,
    hypotheses: Annotated[Path | None, typer.Option(help="A file for what the model wrote.")] = None,
    format: FormatOption = Format.TEXT,
    data_dir: DataDir = None,
    device: Device = None,
) -> None:
    """Measure a model on data: BLEU, chrF and TER, perplexity, or accuracy; two models with their difference and whether it is real."""
    from rich.console import Console

    from regard.console import Results
    from regard.recipe import DataFile

    if len(model) > 2:
        raise typer.BadParameter("two models can be compared, not more")
    wanted = tuple(int(part) if part.isdigit() else part for part in columns.split(",")) if columns else None
    kept: dict[str, tuple[str, ...]] = {}
    for condition in only or []:
        key, _, value = condition.partition("=")
        kept[key] = (*kept.get(key, ()), value)
    sides = {"path": data} if target is None else {"source": data, "target": target}
    file = DataFile(**sides, columns=wanted, only=kept)  # type: ignore[arg-type]
    options = _given(beam_size=beam_size, length_penalty=length_penalty, mbr=mbr)
    found = []
    for folder in model:
        loaded = _loaded("evaluate", folder, device)
        more = {"tokenize": tokenize, **options} if "translate" in loaded.verbs else options
        found.append(loaded.evaluate(file, to=to, root=data_dir, limit=limit, **more))
    comparison = found[0].compared_with(found[1]) if len(found) == 2 else None
    if hypotheses is not None:
        with Results(hypotheses) as results:
            for output in found[0].outputs:
                results.text(output)
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
    if comparison is not None:
        comparison.show(console)


def _given(**options: Any) -> Any:
    return {name: value for name, value in options.items() if value is not None}


def _loaded(verb: str, folder: Path, device: str | None) -> Model:
    from regard.door import load

    model = load(folder, device=device)
    model._need(verb)
    model.warn = lambda message: print(f"regard: {message}", file=sys.stderr)
    return model


def _each_line(
    verb: str,
    texts: Sequence[str] | None,
    folder: Path,
    device: str | None,
    input: Path | None,
    output: Path | None,
    answers: Callable[[Model, list[str], int], list[Any]],
    write: Callable[[Results, str, Any], Any],
) -> None:
    """Reads lines, asks the model, writes what it says: in order, a batch at a time, so that memory stays the same for any file."""
    from regard.console import line_by_line

    with line_by_line(texts or [], input, output) as (lines, results, messages):
        model = _loaded(verb, folder, device)
        model.warn = lambda message: messages.warn(message.replace("text ", "line ", 1) if not texts else message, "lines too long")
        done = 0
        for batch in lines.batches(1 if lines.interactive else LINES_AT_ONCE):
            for text, answer in zip(batch, answers(model, batch, done), strict=True):
                write(results, text, answer)
            results.flush()
            done += len(batch)


def _write(results: Results, answer: Written, format: Format) -> None:
    if format is Format.JSON:
        results.json(answer.as_json())
    else:
        for each in (answer, *answer.alternatives):
            results.text(each.text)


def _pair(line: str, number: int) -> tuple[str, str]:
    source, tab, target = line.partition("\t")
    if not tab:
        from regard.errors import CorpusError

        raise CorpusError(f"line {number + 1} has no tab; score takes a source, a tab and its translation on each line: {line[:60]!r}")
    return source, target
