"""Two systems on the same examples: is the difference real, or the luck of the examples?

The examples are drawn anew many times, with replacement, and both systems are measured on each draw (paired bootstrap). A difference that
such draws hardly ever make by chance is called real: p < 0.05.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from regard.errors import ConfigError, CorpusError
from regard.evaluation.metrics import check_tokenizer, finite
from regard.evaluation.tables import plain_table, show_signatures

Values = Sequence[float] | NDArray[Any]  # one for each example
REAL = 0.05
SEED = 12345  # sacreBLEU's own
DRAWN_AT_ONCE = 1 << 20  # examples, so that memory stays small
MOST_DRAWN = 30_000_000  # by sacreBLEU, which holds some 72 bytes of each


@dataclass(frozen=True)
class Figure:
    """A value, and the 95 % interval that the draws give it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """One figure of both systems. The difference is that of the second from the first."""

    figure: str
    a: Figure
    b: Figure
    difference: float
    interval: tuple[float, float] | None  # of the difference; sacreBLEU gives none
    p: float
    higher_is_better: bool = True
    signature: str | None = field(default=None, repr=False)

    @property
    def real(self) -> bool:
        return self.p < REAL

    def sentence(self, names: tuple[str, str]) -> str:
        """What this means, in words."""
        if not self.real:
            return f"{self.figure}: no difference that this data could show (p = {self.p:.2g})"
        better = names[(self.difference > 0) == self.higher_is_better]
        return f"{better} is better by {self._amount()} (p = {self.p:.2g})"

    def _amount(self) -> str:
        size = abs(self.difference) * (100 if self.figure == "accuracy" else 1)
        shown = f"{size:.1f}" if size >= 1 else f"{size:.2g}"
        return f"{shown} {'points of accuracy' if self.figure == 'accuracy' else self.figure}"


@dataclass(frozen=True)
class Comparison:
    """All figures of two systems, and what it took to compare them."""

    names: tuple[str, str]
    differences: tuple[Difference, ...]
    examples: int
    resamples: int
    seed: int

    def __getitem__(self, figure: str) -> Difference:
        return next(row for row in self.differences if row.figure == figure)

    def sentence(self) -> str:
        """What this means, in words: one line, or one for each figure where they differ in it."""
        if not any(row.real for row in self.differences):
            chances = [f"{row.p:.2g}" + (f" for {row.figure}" if len(self.differences) > 1 else "") for row in self.differences]
            return f"no difference that this data could show (p = {', '.join(chances)})"
        return "\n".join(row.sentence(self.names) for row in self.differences)

    def as_json(self) -> dict[str, Any]:
        rows = [asdict(row) | {"real": row.real, "sentence": row.sentence(self.names)} for row in self.differences]
        return finite(asdict(self) | {"differences": rows, "sentence": self.sentence()})

    def show(self, console: Console | None = None) -> None:
        """Prints a table of the figures with their intervals, and a plain sentence."""
        console = console or Console()
        table = plain_table(header=True)
        table.add_column(no_wrap=True)
        for name in self.names:
            table.add_column(Text(name), justify="right", overflow="fold")
        table.add_column("difference", justify="right", no_wrap=True)
        table.add_column("p", justify="right", no_wrap=True)
        for row in self.differences:
            scale, unit = (100, " %") if row.figure == "accuracy" else (1, "")
            cells = [_cell(scale, unit, system.value, (system.low, system.high)) for system in (row.a, row.b)]
            label = Text.assemble(row.figure, ("" if row.higher_is_better else "\nlower is better", "dim"))
            table.add_row(label, *cells, _cell(scale, "", row.difference, row.interval, sign="+"), f"{row.p:.2g}")
        console.print(table)
        facts = f"{self.examples:,} examples drawn {self.resamples:,} times, seed {self.seed}; 95 % intervals below"
        console.print(Text(facts, style="dim"))
        signatures = [(row.figure, row.signature) for row in self.differences if row.signature is not None]
        if signatures:
            show_signatures(signatures, console)
        console.print()
        console.print(Text(self.sentence(), style="bold"))


def paired_bootstrap(
    a: Sequence[str],
    b: Sequence[str],
    references: Sequence[str],
    *,
    names: tuple[str, str] = ("A", "B"),
    tokenize: str = "13a",
    ter: bool = True,
    resamples: int = 1000,
    seed: int = SEED,
) -> Comparison:
    """BLEU, chrF and TER of two systems' translations, compared by sacreBLEU: the figures of `sacrebleu … --paired-bs`.

    Its p counts one tail, so about one in ten pairs of equally good systems gets a p below 0.05. And it calls a difference of nothing at
    all significant; here, p is never less than what so few differing translations can show, and 1 where figures are equal.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER
    from sacrebleu.significance import PairedTest

    _check_lengths([(names[0], len(a)), (names[1], len(b)), ("the references", len(references))], resamples)
    check_tokenizer(tokenize)
    if seed < 1:
        raise ConfigError(f"seed {seed}: sacreBLEU needs 1 or more, for it takes 0 as none")
    if resamples * len(references) > MOST_DRAWN:
        fewer = MOST_DRAWN // len(references)
        remedy = f"take {fewer:,} resamples" if fewer >= 1000 else f"compare on {MOST_DRAWN // resamples:,} sentences"
        raise CorpusError(f"{resamples:,} resamples of {len(references):,} sentences are more than sacreBLEU can hold; {remedy}")
    # force: no complaint that text in tokens is in tokens
    metrics = {"BLEU": BLEU(tokenize=tokenize, force=True), "chrF": CHRF()} | ({"TER": TER()} if ter else {})
    with _sacrebleu_seed(seed):  # one job: a fork of a process that has threads may hang
        test = PairedTest([("a", a), ("b", b)], metrics, [references], test_type="bs", n_samples=resamples, n_jobs=1)
        signatures, results = test()
    least = _least_p(sum(one != other for one, other in zip(a, b, strict=True)))
    rows = []
    for name, column in zip(metrics, signatures, strict=True):  # in one order, but by the names that the metrics give themselves
        first, second = cast(list[Any], results[column])
        one, other = _sacrebleu_figure(first), _sacrebleu_figure(second)
        p = 1.0 if one.value == other.value else max(float(second.p_value), least)
        rows.append(Difference(name, one, other, other.value - one.value, None, p, name != "TER", str(signatures[column])))
    return Comparison(names, tuple(rows), len(references), resamples, seed)


def compare_accuracy(a: Values, b: Values, *, names: tuple[str, str] = ("A", "B"), resamples: int = 10_000, seed: int = SEED) -> Comparison:
    """The accuracy of two systems, from which of the same examples each got right."""
    _check_lengths([(names[0], len(a)), (names[1], len(b))], resamples)
    row = _compare("accuracy", names, (a, b), np.ones(len(a)), lambda share: share, resamples, seed, higher_is_better=True)
    return Comparison(names, (row,), len(a), resamples, seed)


def compare_perplexity(
    a: Values,
    b: Values,
    counts: Values,
    *,
    names: tuple[str, str] = ("A", "B"),
    resamples: int = 10_000,
    seed: int = SEED,
) -> Comparison:
    """The perplexity of two models, from each example's summed surprise (nats) and how many tokens it is the sum of.

    Both are divided by the same counts, as only then they can be compared: for models with different tokenizers, count words or characters.
    """
    _check_lengths([(names[0], len(a)), (names[1], len(b)), ("the counts", len(counts))], resamples)
    row = _compare("perplexity", names, (a, b), counts, np.exp, resamples, seed, higher_is_better=False)
    return Comparison(names, (row,), len(a), resamples, seed)


def _compare(
    figure: str,
    names: tuple[str, str],
    totals: tuple[Values, Values],
    counts: Values,
    measure: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    resamples: int,
    seed: int,
    *,
    higher_is_better: bool,
) -> Difference:
    """A ratio of sums, `measure`d: over all examples, and over each draw of them."""
    a, b, weights = (np.asarray(values, dtype=np.float64) for values in (*totals, counts))
    for name, column in zip((*names, "the counts"), (a, b, weights), strict=True):
        odd = np.flatnonzero(~np.isfinite(column))
        if len(odd):
            raise CorpusError(f"example {odd[0] + 1} of {name} is {column[odd[0]]}, which can't be summed; leave the example out of both")
    if (weights < 1).any():
        raise CorpusError(f"example {np.flatnonzero(weights < 1)[0] + 1} has no tokens; leave it out of both")
    # The gaps have a column of their own, so that equal systems differ by 0 and not by a rounding.
    columns = np.stack([a, b, b - a, weights], axis=1)  # (examples, 4)
    whole = columns.sum(axis=0)
    drawn = np.concatenate([times @ columns for times in _draws(len(columns), resamples, seed)])  # (resamples, 4)
    means, drawn_means = whole[:3] / whole[3], drawn[:, :3] / drawn[:, 3:]
    # The draws scatter about the difference seen; under no difference, they would scatter as far about 0.
    chance = np.abs(drawn_means[:, 2] - means[2]) >= abs(means[2]) * (1 - 1e-12)
    p = max((int(chance.sum()) + 1) / (resamples + 1), _least_p(int(np.count_nonzero(columns[:, 2]))))
    with np.errstate(over="ignore", invalid="ignore"):  # a perplexity may be too large for a number
        values, samples = measure(means[:2]), measure(drawn_means[:, :2])
        (low_a, low_b), (high_a, high_b) = np.quantile(samples, [0.025, 0.975], axis=0)
        gap = np.quantile(samples[:, 1] - samples[:, 0], [0.025, 0.975])
        return Difference(
            figure,
            Figure(float(values[0]), float(low_a), float(high_a)),
            Figure(float(values[1]), float(low_b), float(high_b)),
            difference=float(values[1] - values[0]),
            interval=(float(gap[0]), float(gap[1])),
            p=p,
            higher_is_better=higher_is_better,
        )


def _draws(examples: int, resamples: int, seed: int) -> Iterator[NDArray[np.float64]]:
    """How often each example is in each draw, some draws at a time: (draws, examples)."""
    chance = np.random.default_rng(seed)
    at_once = max(1, DRAWN_AT_ONCE // examples)
    for start in range(0, resamples, at_once):
        rows = min(at_once, resamples - start)
        chosen = chance.integers(examples, size=(rows, examples)) + examples * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float64)


def _least_p(differing: int) -> float:
    """The least p that so few differing examples can show, were each a fair coin: all the same way, either way. None at all show nothing.

    Without it, a handful of examples that agree would pass for certainty, as each draw of them agrees as well.
    """
    return min(1.0, 2.0 ** (1 - differing))


def _check_lengths(lengths: list[tuple[str, int]], resamples: int) -> None:
    if len({length for _, length in lengths}) > 1:
        found = ", ".join(f"{length:,} of {name}" for name, length in lengths)
        raise CorpusError(f"{found}; both systems need the same examples, in the same order")
    if not lengths[0][1]:
        raise CorpusError("there are no examples to compare on")
    if resamples < 100:
        raise ConfigError(f"{resamples} resamples say too little; take 1,000 or more")


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment alone."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before


def _sacrebleu_figure(result: Any) -> Figure:
    return Figure(float(result.score), float(result.mean - result.ci), float(result.mean + result.ci))


def _cell(scale: float, unit: str, value: float, interval: tuple[float, float] | None, sign: str = "") -> Text:
    shown = Text(f"{value * scale:{sign}.2f}{unit}", style="bold")
    if interval is not None:
        shown.append(f"\n{interval[0] * scale:{sign}.2f} … {interval[1] * scale:{sign}.2f}", style="not bold dim")
    return shown
