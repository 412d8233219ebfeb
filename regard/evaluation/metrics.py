"""How good outputs are: BLEU and chrF as sacreBLEU measures them, perplexity, accuracy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, CorpusError, nearest


@dataclass(frozen=True)
class Score:
    """A figure, and the signature that says how it was measured."""

    value: float
    signature: str = field(repr=False)


@dataclass(frozen=True)
class Scores:
    """Of translations against references. BLEU and chrF: 0 to 100, higher is better; TER: edits per 100 words, lower is better."""

    bleu: Score
    chrf: Score
    ter: Score | None = None

    def as_json(self) -> dict[str, Any]:
        return {name: score for name, score in asdict(self).items() if score is not None}


def translation_scores(hypotheses: Sequence[str], references: Sequence[str], *, tokenize: str = "13a", ter: bool = False) -> Scores:
    """sacreBLEU's figures for detokenised text. Text that is in tokens already, spaces between, is scored with tokenize = "none"."""
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    _check_pairs(hypotheses, references, "hypotheses", "references")
    check_tokenizer(tokenize)

    def measured(metric: Metric) -> Score:
        value = metric.corpus_score(hypotheses, [references]).score
        return Score(float(value), str(metric.get_signature()))

    # force: no complaint that text in tokens is in tokens
    bleu = measured(BLEU(tokenize=tokenize, force=tokenize == "none"))
    return Scores(bleu, measured(CHRF()), measured(TER()) if ter else None)


def check_tokenizer(name: str) -> None:
    """An error, where sacreBLEU has no such tokenizer, or lacks what that needs: a package, or a file that it would download unasked."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
    from sacrebleu.utils import SACREBLEU_DIR

    if name not in BLEU.TOKENIZERS:
        raise ConfigError(f"sacreBLEU has no tokenizer {name!r}; {nearest(name, BLEU.TOKENIZERS)}")
    if name in SPM_MODELS:
        address = SPM_MODELS[SPM_MODELS[name]["signature"]]["url"]
        file = Path(SACREBLEU_DIR, "models", address.rpartition("/")[2])
        if not file.is_file():
            raise ConfigError(f"sacreBLEU's tokenizer {name} needs {file}; download it from {address}, or choose another tokenizer")
    try:
        BLEU(tokenize=name)
    except (ImportError, RuntimeError, OSError) as error:
        raise ConfigError(f"sacreBLEU's tokenizer {name} can't be used: {' '.join(str(error).split())}; or choose another") from error


def perplexity(total: float, count: int) -> float:
    """Between how many equally likely tokens the model wavers, on average: from a summed loss and the tokens it is the sum of."""
    if count < 1:
        raise CorpusError("there are no tokens to measure perplexity on")
    try:
        return math.exp(total / count)
    except OverflowError:
        return math.inf


def accuracy(predicted: Sequence[Any], gold: Sequence[Any]) -> float:
    """The share of predictions that are right."""
    _check_pairs(predicted, gold, "predictions", "right answers")
    return sum(a == b for a, b in zip(predicted, gold, strict=True)) / len(gold)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """The share of hypotheses that are their reference, character by character."""
    return accuracy(hypotheses, references)


@dataclass(frozen=True)
class LabelScores:
    """How well one label is found. Where there is nothing to divide by, a figure is 0."""

    label: str
    precision: float  # of the times it was predicted, the share that was right
    recall: float  # of the times it was right, the share that was predicted
    f1: float  # the harmonic mean of the two
    count: int  # how often it was right


@dataclass(frozen=True)
class Confusion:
    """How often each label was taken for each: counts[i][j] times, labels[i] was right and labels[j] was predicted."""

    labels: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]

    @property
    def accuracy(self) -> float:
        return sum(row[i] for i, row in enumerate(self.counts)) / sum(map(sum, self.counts))

    @property
    def per_label(self) -> tuple[LabelScores, ...]:
        """Precision, recall and F1 of each label, in the order of the labels."""
        predicted = [sum(column) for column in zip(*self.counts, strict=True)]
        return tuple(self._scores(index, sum(row), predicted[index]) for index, row in enumerate(self.counts))

    @property
    def macro_f1(self) -> float:
        """The mean F1 of the labels: a rare one counts as much as a common one."""
        return sum(scores.f1 for scores in self.per_label) / len(self.labels)

    def as_json(self) -> dict[str, Any]:
        return {
            "labels": list(self.labels),
            "counts": [list(row) for row in self.counts],
            "accuracy": self.accuracy,
            "macro_f1": self.macro_f1,
            "per_label": [asdict(scores) for scores in self.per_label],
        }

    def _scores(self, index: int, count: int, predicted: int) -> LabelScores:
        hits = self.counts[index][index]
        return LabelScores(
            self.labels[index],
            precision=hits / predicted if predicted else 0.0,
            recall=hits / count if count else 0.0,
            f1=2 * hits / (predicted + count) if predicted + count else 0.0,
            count=count,
        )


def confusion(predicted: Sequence[str], gold: Sequence[str], labels: Sequence[str] | None = None) -> Confusion:
    """The table of right and predicted labels; without `labels`, of all that occur, in alphabetical order."""
    _check_pairs(predicted, gold, "predictions", "right answers")
    occurring = {*predicted, *gold}
    labels = sorted(occurring) if labels is None else labels
    strange = sorted(occurring - set(labels))
    if strange:
        raise CorpusError(f"the label {strange[0]!r} is not one of {', '.join(labels)}")
    times = Counter(zip(gold, predicted, strict=True))
    return Confusion(tuple(labels), tuple(tuple(times[right, taken] for taken in labels) for right in labels))


def finite(value: Any) -> Any:
    """The same for JSON, which knows neither infinity nor what is no number: they become null."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _check_pairs(given: Sequence[Any], wanted: Sequence[Any], given_name: str, wanted_name: str) -> None:
    if len(given) != len(wanted):
        raise CorpusError(f"{len(given)} {given_name} for {len(wanted)} {wanted_name}; each needs its own")
    if not given:
        raise CorpusError(f"there are no {given_name} to score")
