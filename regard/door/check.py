"""The laws that every model of ours keeps, tried on one bundle: each with the largest difference that was found, and how much is allowed.

Everything is computed in float32, where rounding is small enough to be told from a mistake, on token ids drawn by chance: no law is about
what a model has learned. What is written in int8 by default keeps company in int8 too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.text import Text
from torch import Tensor

from regard.bundle import load_bundle, save_bundle
from regard.config import RnnConfig
from regard.data.batch import Tokens
from regard.decoding.many import score_many
from regard.decoding.ready import WrittenIn, precision_of
from regard.decoding.runner import decode
from regard.decoding.search import log_probabilities
from regard.decoding.settings import GREEDY, Beam, Length, Rules
from regard.door import Model, load
from regard.evaluation.tables import plain_table
from regard.models import Generator, LanguageModel, Network
from regard.nn import using
from regard.shipped import find_bundle
from regard.storage import read_tensors
from regard.text.tokenizer import Tokenizer

LENGTHS = (5, 1, 9, 3, 16, 2)  # of the sources, none like the next
WRITTEN = 12  # positions decoded
ROUNDING = 1e-4  # of the largest number that two ways of computing are compared by
SENTENCES = (
    "A short sentence.",
    "Café, naïve — “quoted” text; 3.14 and 10:30!",
    "Größe, straße, ñandú, çok, Ελληνικά, русский, हिन्दी, 中文, 日本語, 한국어, العربية",
    "emoji 🦆 and a family 👨‍👩‍👧",
    "<end> and [MASK] are ordinary words here",
    "two  spaces,\ta tab",
)


@dataclass(frozen=True)
class Law:
    """What should be equal, how far it was from that, and how far it may be."""

    name: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed  # False too for what is no number

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def check(name: str | Path, *, device: torch.device | str | None = None, precision: WrittenIn = "auto") -> list[Law]:
    """Every law that applies to the bundle. `precision`: as for `load`, for what has to hold in int8 too."""
    used = load(name, device=device, precision=precision)
    mode = precision_of(used.writer if isinstance(used.network, Generator) else used.network)
    model = used if mode == "float32" else load(name, device=device, precision="float32")
    trial = _Writing(model) if isinstance(model.network, Generator) else _Reading(model)
    laws = [*trial.laws(), *([_together_in_int8(used)] if mode == "int8" else []), _saved_is_loaded(find_bundle(name))]
    tokenizers = {"tokenizer": model._tokenizer, "source tokenizer": model._source_tokenizer}
    return laws + [_comes_back(f"{side}: text = tokens = text", each) for side, each in tokenizers.items() if each is not None]


def show(laws: Sequence[Law], console: Console) -> None:
    """Prints a table of the laws."""
    table = plain_table(header=True)
    for name, side in (("law", "left"), ("difference", "right"), ("allowed", "right"), ("", "left")):
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for law in laws:
        table.add_row(law.name, f"{law.difference:.1e}", f"{law.allowed:.1e}", "holds" if law.holds else Text("broken", style="bold"))
    console.print(table)


class _Reading:
    """An encoder: a vector for each token of a text."""

    def __init__(self, model: Model) -> None:
        self.network: Network = model.generator if isinstance(model.network, Generator) else model.encoder
        config = model.config
        self.special = {config.pad_token, config.start_token, config.end_token}
        self.special |= set() if model._tokenizer is None else model._tokenizer.special_ids
        self.chance = random.Random(0)
        self.texts = [self._ids(length, config.vocabulary) for length in LENGTHS if length + 2 <= config.context]

    def _ids(self, length: int, vocabulary: int) -> list[int]:
        ordinary = [id for id in range(vocabulary) if id not in self.special] or [0]
        return self.chance.choices(ordinary, k=length)

    def laws(self) -> Iterator[Law]:
        yield _law("batch-invariant: alone = among others", self.alone(), self.together())
        yield _law("padding-invariant: without = with padding", self.alone(), self.padded())
        if not isinstance(self.network.config, RnnConfig):
            yield _law("sdpa = explicit: fast attention = the formula", self.together(), self.explicit())

    def run(self, which: Sequence[int], padding: int = 0) -> list[Tensor]:
        """What the network makes of some texts at once, row by row, without padding."""
        tokens = _pad([self.texts[index] for index in which], padding, self.network.device)
        return [row[: len(self.texts[index])] for row, index in zip(self.network(tokens), which, strict=True)]

    @torch.inference_mode()
    def alone(self) -> list[Tensor]:
        return [row for index in range(len(self.texts)) for row in self.run([index])]

    @torch.inference_mode()
    def together(self) -> list[Tensor]:
        return self.run(range(len(self.texts)))

    @torch.inference_mode()
    def padded(self) -> list[Tensor]:
        return [row for index in range(len(self.texts)) for row in self.run([index], padding=min(7, self.room))]

    @property
    def room(self) -> int:
        """What the context leaves for padding."""
        return self.network.config.context - max(map(len, self.texts))

    def explicit(self) -> list[Tensor]:
        with using("explicit"):
            return self.together()


class _Writing(_Reading):
    """A model that writes: log-probabilities of what follows each token of a target, given its source."""

    def __init__(self, model: Model, network: Generator | None = None) -> None:
        super().__init__(model)
        config = model.config
        self.network = self.model = network or model.generator
        self.alike = isinstance(self.network, LanguageModel)  # source and target are one text
        limit = (config.context - 1) // 2 if self.alike else config.context - 1
        vocabulary = getattr(config, "source_vocabulary", None) or config.vocabulary
        self.sources = [self._ids(min(length, limit), vocabulary) for length in LENGTHS]
        self.written = min(WRITTEN, limit)
        exactly = Length(plus=self.written)
        greedy = decode(self.model, _pad(self.sources, 0, model.device), GREEDY, Rules(max_length=exactly, min_length=exactly))
        self.texts = [list(best[0].tokens) for best in greedy]

    def laws(self) -> Iterator[Law]:
        yield _law("cached = uncached: word by word = all at once", self.cached(), self.alone())
        yield from super().laws()
        yield _law("causal: what comes later changes nothing", self.shortened(), [row[:-1] for row in self.alone()])
        yield self._greedy_is_best()
        yield self._search_alone_is_together()
        yield self._score_is_rescoring()

    def run(self, which: Sequence[int], padding: int = 0) -> list[Tensor]:
        return self._read([self.sources[index] for index in which], [self.texts[index] for index in which], padding)

    @property
    def room(self) -> int:
        longest = max(map(len, self.sources))
        return self.network.config.context - (longest + self.written if self.alike else max(longest, self.written))

    def _read(self, sources: list[list[int]], targets: list[list[int]], padding: int = 0) -> list[Tensor]:
        """Log-probabilities of each word of the targets, and of what might stand there instead: (words, vocabulary)."""
        device = self.network.device
        if isinstance(self.network, LanguageModel):
            given = torch.tensor([len(source) for source in sources], device=device)
            whole = _pad([[*source, *target][:-1] for source, target in zip(sources, targets, strict=True)], padding, device)
            logs = log_probabilities(self.network(whole, given if self.network.config.mask == "prefix" else None))
            return [logs[row, len(source) - 1 :][: len(targets[row])] for row, source in enumerate(sources)]
        begun = [[self.network.config.start_token, *target[:-1]] for target in targets]
        logs = log_probabilities(self.network(_pad(sources, padding, device), _pad(begun, padding, device)))
        return [logs[row, : len(target)] for row, target in enumerate(targets)]

    @torch.inference_mode()
    def cached(self) -> list[Tensor]:
        state, logits = self.model.start(self.model.encode(_pad(self.sources, 0, self.network.device)), self.written)
        steps = [logits]
        for place in range(self.written - 1):
            words = torch.tensor([[text[place]] for text in self.texts], device=self.network.device)
            steps.append(self.model.step(words, state)[:, 0])
        return list(log_probabilities(torch.stack(steps, 1)))

    @torch.inference_mode()
    def shortened(self) -> list[Tensor]:
        return [row for source, text in zip(self.sources, self.texts, strict=True) for row in self._read([source], [text[:-1]])]

    def _greedy_is_best(self) -> Law:
        """How much likelier than the word that was chosen another one was, at most."""
        logs = torch.stack(self.alone()).clone()  # (sources, words, vocabulary)
        chosen = logs.gather(2, torch.tensor(self.texts, device=logs.device)[..., None]).squeeze(2)
        logs[..., [self.network.config.end_token, *self.network.config.stop_tokens]] = float("-inf")  # all were made to go on
        return _law("beam 1 = greedy: the likeliest word each time", [logs.amax(2)], [chosen])

    def _search_alone_is_together(self) -> Law:
        rules, device = Rules(max_length=Length(plus=self.written)), self.network.device
        together = decode(self.model, _pad(self.sources, 0, device), Beam(size=4), rules)
        alone = [decode(self.model, _pad([source], 0, device), Beam(size=4), rules)[0] for source in self.sources]
        scores = [torch.tensor([best[0].score for best in found]) for found in (together, alone)]
        return _law("batch-invariant: beam search alone = among others", [scores[0]], [scores[1]])

    def _score_is_rescoring(self) -> Law:
        rules = Rules(max_length=Length(plus=self.written), never=self.network.config.stop_tokens)  # it is the end token that ends them
        found = [best[0] for best in decode(self.model, _pad(self.sources, 0, self.network.device), Beam(size=4), rules)]
        end = self.network.config.end_token
        again = score_many(self.model, self.sources, [[*best.tokens, *([end] if best.ended else [])] for best in found])
        both = [[torch.tensor(logs) for logs in side] for side in ([best.log_probabilities for best in found], again)]
        return _law("score = rescoring: a beam's = one pass over it", *both)


def _together_in_int8(model: Model) -> Law:
    """As it is written: in float32 the last bit is no matter, here it may decide between two whole numbers."""
    law = _Writing(model, model.writer)._search_alone_is_together()
    return replace(law, name="batch-invariant in int8: beam search alone = among others")


def _pad(sequences: Sequence[Sequence[int]], more: int, device: torch.device) -> Tokens:
    """Rows of one length, with so much more padding than they need."""
    tokens = Tokens.pad(sequences, device=device)
    if not more:
        return tokens
    assert tokens.real is not None
    ids, real = (torch.nn.functional.pad(x, (0, more)) for x in (tokens.ids, tokens.real))
    return Tokens(ids, real, tail=True)


def _law(name: str, one: Sequence[Tensor], other: Sequence[Tensor]) -> Law:
    pairs = list(zip(one, other, strict=True))
    difference = max(float((a.double() - b.double()).abs().max()) if a.numel() else 0.0 for a, b in pairs)
    largest = max(float(b.abs().max()) if b.numel() else 0.0 for _, b in pairs)
    return Law(name, difference, ROUNDING * max(1.0, largest))


def _saved_is_loaded(folder: Path) -> Law:
    """Bit for bit: what is loaded, saved and loaded again."""
    bundle = load_bundle(folder)
    with TemporaryDirectory() as elsewhere:
        again = read_tensors(save_bundle(bundle.model, Path(elsewhere) / "bundle"))
    mine = bundle.model.state_dict()
    differences = [float((mine[key].double() - tensor.double()).abs().max()) for key, tensor in again.items() if tensor.numel()]
    return Law("saved = loaded: the weights, bit for bit", max(differences) if mine.keys() == again.keys() else float("inf"), 0.0)


def _comes_back(name: str, tokenizer: Tokenizer) -> Law:
    """How many of some texts in many scripts don't come back as they were, those aside that have something unknown in them."""
    lost = 0
    for text in SENTENCES:
        ids = tokenizer.encode(text, markup=False)
        if tokenizer.unknown_id in ids:
            continue
        back = tokenizer.decode(ids)
        # Words come back with single spaces, and tokenizers from elsewhere may normalise characters.
        exact = back in (text, text.lower()) or tokenizer.unknown_id is not None or tokenizer.frame is not None
        lost += not (exact and tokenizer.encode(back, markup=False) == ids)
    return Law(name, float(lost), 0.0)
