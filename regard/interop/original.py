"""A model that is to be exported, real sentences to ask it, and how close what came of it answers."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from regard.bundle import load_bundle
from regard.config import EncoderConfig, LanguageModelConfig, ModelConfig, RnnConfig
from regard.data.batch import Tokens
from regard.decoding.many import decode_many
from regard.decoding.search import Hypothesis
from regard.decoding.settings import GREEDY, Length, Rules
from regard.errors import RegardError, installing
from regard.models import Encoder, Generator, Network
from regard.text.tokenizer import Frame, Tokenizer

# Everyday and not so everyday: short and long, questions, numbers, names, quotes, accents, and a sign that few vocabularies know.
SENTENCES = (
    "I love you very much.",
    "Where is the station?",
    "The cat sleeps on the sofa while it rains outside.",
    "She bought three apples, two pears and a loaf of bread at the market.",
    "Yes.",
    "A young man in a blue shirt is riding his bicycle down a narrow street.",
    "If you don't hurry, we'll miss the last train to Vienna!",
    "He was born on 7 May 1833, and moved to the city when he was twenty-nine.",
    "Can you tell me how to get to the old bridge from here?",
    "My grandmother's recipe calls for flour, sugar, eggs & butter (250 g).",
    "They had never seen so many people in one place before.",
    "“Nobody told me,” she said, “that the café would be closed today.”",
    "Two dogs play with a red ball near the water.",
    "I would have called you earlier, but my phone was broken and I could not remember your number.",
    "Tom has lived in São Paulo for about 10 years.",
    "It costs €4.50; that is 15 % more than last year.",
    "What a lovely film, warm and funny from the first scene to the last!",
    "The children are building a castle of sand on the beach.",
    "Please turn off the light when you leave the room.",
    "Nothing is as boring as a story that everyone knows already ☂.",
)
CONTINUED = 24  # tokens that a language model writes for the check
PROMPT = 0.5  # of its context at most
BATCH = 16  # texts compared at once
SAME = 0.95  # of the answers, at least: where two words are as likely, rounding decides, and one in twenty may go elsewhere


class ExportError(RegardError):
    """A model can't be exported, or what came of it does not answer as the model does."""


def needed(package: str) -> Any:
    """A library that an export is made or checked with."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ExportError(f"this export needs {package}; install it with: {installing('interop')}") from None


@dataclass(frozen=True)
class Difference:
    """A text to which the export answers otherwise."""

    text: str
    ours: str
    theirs: str


@dataclass(frozen=True)
class Report:
    """What was exported, and how close it is."""

    made: str  # such as PegasusForConditionalGeneration
    texts: int  # that it was tried on
    measured: str  # what the difference is one of: logits, log-probabilities
    difference: float  # the largest
    allowed: float
    same: int  # texts with the very same answer
    wanted: float  # the share of them there must be
    others: tuple[Difference, ...] = ()

    @property
    def close(self) -> bool:
        return self.difference <= self.allowed and self.same >= self.wanted * self.texts

    def checked(self) -> Report:
        if not self.close:
            shown = "".join(f"\n  {other.text!r}\n    here: {other.ours!r}\n    there: {other.theirs!r}" for other in self.others[:3])
            raise ExportError(f"{self.made} does not answer as the model does, so nothing was written: {self}{shown}")
        return self

    def __str__(self) -> str:
        return (
            f"on {self.texts} texts {self.measured} differ by at most {self.difference:.1e} ({self.allowed:.0e} is allowed), "
            f"and {self.same} of {self.texts} answers are the same"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Original:
    """The model, in float32 on a CPU, with what it takes to ask it."""

    def __init__(self, folder: Path, sentences: Sequence[str] = SENTENCES) -> None:
        bundle = load_bundle(folder, dtype=torch.float32)
        self.folder, self.network = folder, bundle.model
        self.tokenizer = None if bundle.tokenizer is None else Tokenizer.load(bundle.tokenizer)
        other = None if bundle.source_tokenizer is None else Tokenizer.load(bundle.source_tokenizer)
        self.source_tokenizer = other or self.tokenizer
        self.sentences = tuple(sentences)

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @cached_property
    def exact(self) -> Network:
        """The same in float64."""
        return copy.deepcopy(self.network).double()

    @property
    def generator(self) -> Generator:
        assert isinstance(self.network, Generator)
        return self.network

    @property
    def encoder(self) -> Encoder:
        assert isinstance(self.network, Encoder)
        return self.network

    @property
    def frame(self) -> Frame:
        """What its family puts around a text that it reads."""
        config = self.config
        if isinstance(config, EncoderConfig):
            own = self.tokenizer
            return Frame((config.start_token,), (config.end_token,)) if own is None else Frame((own.start_id,), (own.end_id,))
        return Frame(before=(config.start_token,)) if isinstance(config, LanguageModelConfig) else Frame(after=(config.end_token,))

    @cached_property
    def names(self) -> list[str]:
        """The name of each token that is written, as the tokenizer's own file has it."""
        return _names(self.tokenizer, self.config.vocabulary)

    @cached_property
    def source_names(self) -> list[str]:
        if self.source_tokenizer is self.tokenizer:
            return self.names
        return _names(self.source_tokenizer, getattr(self.config, "source_vocabulary", None) or self.config.vocabulary)

    @property
    def room(self) -> int:
        """How many tokens of a text are read, with what goes around it."""
        return self.config.room if isinstance(self.config, EncoderConfig) else self.config.context

    @property
    def tags(self) -> tuple[str, ...]:
        return () if self.source_tokenizer is None else self.source_tokenizer.tags

    def tag(self, number: int) -> str | None:
        """The language that the sentence of that number is to be written in: each in turn."""
        return self.tags[number % len(self.tags)] if self.tags else None

    @cached_property
    def texts(self) -> list[list[int]]:
        """The sentences as tokens, with nothing around them; made up where there is no tokenizer."""
        if self.source_tokenizer is not None:
            return [self.source_tokenizer.encode(text, self.tag(number)) for number, text in enumerate(self.sentences)]
        chance = torch.Generator().manual_seed(0)
        vocabulary = getattr(self.config, "source_vocabulary", None) or self.config.vocabulary
        return [
            torch.randint(min(3, vocabulary - 1), vocabulary, (1 + number % 20,), generator=chance).tolist()
            for number in range(len(self.sentences))
        ]

    @cached_property
    def rows(self) -> list[list[int]]:
        """The sentences as the model reads them, cut where they are too long."""
        room = self.room if not isinstance(self.config, LanguageModelConfig) else max(1, int(PROMPT * self.room))
        framed = [self.frame.put(ids, room) if self.source_tokenizer is None else self.source_tokenizer.framed(ids, self.frame, room)
                  for ids in self.texts]  # fmt: skip
        return [ids or [self.config.start_token] for ids in framed]

    @cached_property
    def never(self) -> tuple[int, ...]:
        """Tokens that are never written: those that stand for no text, and those that the tokenizer does not know."""
        if self.tokenizer is None:
            return ()
        silent = self.tokenizer.special_ids - {self.config.end_token, *self.config.stop_tokens, *self.opening}
        return (*sorted(silent), *range(self.tokenizer.size, self.config.vocabulary))

    @property
    def opening(self) -> tuple[int, ...]:
        """What every output of an encoder-decoder from elsewhere begins with: BART writes <s> before all else."""
        frame = None if self.tokenizer is None else self.tokenizer.frame
        return () if frame is None or isinstance(self.config, LanguageModelConfig | EncoderConfig | RnnConfig) else frame.before

    @cached_property
    def _hypotheses(self) -> list[Hypothesis]:
        lengths = Length(plus=CONTINUED) if isinstance(self.config, LanguageModelConfig) else Length(plus=16, times=2.0)
        rules = Rules(max_length=lengths, never=self.never)
        prefixes = [self.opening] * len(self.rows) if self.opening else None
        return [found[0] for found in decode_many(self.generator, self.rows, GREEDY, rules, prefixes=prefixes)]

    @cached_property
    def written(self) -> list[list[int]]:
        """What the model makes of each sentence by greedy search, without the end token."""
        return [list(hypothesis.tokens) for hypothesis in self._hypotheses]

    @property
    def begun(self) -> list[list[int]]:
        """The same as a decoder reads it: after the start token, and as far as there is room."""
        return [[self.config.start_token, *ids][: self.config.context] for ids in self.written]

    def text(self, ids: Sequence[int]) -> str:
        """What was written, to be shown."""
        return " ".join(map(str, ids)) if self.tokenizer is None else self.tokenizer.decode(ids)

    def compare(self, outputs: Sequence[Sequence[int]]) -> tuple[int, tuple[Difference, ...]]:
        """How many outputs are what the model itself wrote, and the others. Where it had no more room to write, the rest is not asked."""
        shown = []
        for text, ours, theirs in zip(self.sentences, self._hypotheses, outputs, strict=True):
            shown.append((text, self.text(ours.tokens), self.text(theirs if ours.ended else theirs[: len(ours.tokens)])))
        others = tuple(Difference(*row) for row in shown if row[1] != row[2])
        return len(shown) - len(others), others

    def padded(self, rows: Sequence[Sequence[int]]) -> Tokens:
        return Tokens.pad(rows, self.config.pad_token)


def _names(tokenizer: Tokenizer | None, size: int) -> list[str]:
    library = None if tokenizer is None else tokenizers.Tokenizer.from_str(tokenizer.library_json())
    return [(None if library is None else library.id_to_token(id)) or f"<{id}>" for id in range(size)]


def in_batches(*lists: Sequence[list[int]]) -> Iterator[tuple[list[list[int]], ...]]:
    """Several lists side by side: one row alone, two, and then as many as logits over a vocabulary leave room for."""
    start = 0
    for size in chain((1, 2), repeat(BATCH)):
        if start >= len(lists[0]):
            return
        yield tuple(list(rows[start : start + size]) for rows in lists)
        start += size


def largest(ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> float:
    """The largest difference between two tensors; NaN anywhere is infinitely far."""
    apart = (ours.double() - theirs.double()).abs()
    apart = apart if real is None else apart[real]
    return float(apart.nan_to_num(float("inf")).max()) if apart.numel() else 0.0
