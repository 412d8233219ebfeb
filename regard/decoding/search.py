"""Choosing the words: greedy takes the most probable at each position, beam search keeps the best few hypotheses open.

Both work through the protocol of `Generator`, so every model family uses the same code. The choosing is done on the host, hypothesis by
hypothesis: plain to read, and what a faster search is to be measured against.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.config import ModelConfig
from regard.data.batch import Tokens
from regard.errors import ConfigError, RegardError
from regard.models import Generator, State


@dataclass(frozen=True)
class Hypothesis:
    """A finished output: its tokens, without the end token, and the sum of their log-probabilities, with it."""

    tokens: tuple[int, ...]
    log_probability: float
    ended: bool  # by the end token, rather than by the maximum length

    def score(self, length_penalty: float) -> float:
        """log P / length^α, the end token counted: α = 0 favours short outputs, 1 is the mean over positions."""
        return self.log_probability / max(1, len(self.tokens) + self.ended) ** length_penalty


@torch.no_grad()
def greedy(model: Generator, source: Tokens, *, max_length: int) -> list[Hypothesis]:
    """The most probable word at every position, until the end token or `max_length` tokens."""
    return [hypotheses[0] for hypotheses in beam_search(model, source, beam_size=1, max_length=max_length)]


@torch.no_grad()
def beam_search(
    model: Generator, source: Tokens, *, beam_size: int = 4, max_length: int, length_penalty: float = 0.0
) -> list[list[Hypothesis]]:
    """For each source its best hypotheses, at most `beam_size`, best first.

    At each position every open hypothesis is tried with every next word, and the `beam_size` most probable of all these are kept: those
    that end are finished, the others go on. A source is done when no open hypothesis of its own can still beat those it has finished.
    """
    if beam_size < 1 or max_length < 1 or length_penalty < 0:
        raise ConfigError("beam_size and max_length must be at least 1, length_penalty at least 0")
    state, logits = model.start(model.encode(source), max_length)
    beams = [Beam(beam_size, max_length, length_penalty, model.config) for _ in range(source.ids.shape[0])]
    logs = log_probabilities(logits)[:, None]  # (sources, open, vocabulary)
    while True:
        chosen = [beam.extend(log) for beam, log in zip(beams, logs.cpu(), strict=True)]
        if all(beam.done for beam in beams):
            return [beam.best() for beam in beams]
        logs = log_probabilities(_next(model, state, chosen, logs))


def log_probabilities(logits: Tensor) -> Tensor:
    """At least in float32: in half precision, neighbouring hypotheses would get the same score."""
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    if logs.isnan().any():
        raise RegardError("the model gave scores that are not numbers; its weights are damaged, or too large for this precision")
    return logs


def _next(model: Generator, state: State, chosen: list[list[tuple[int, int]]], logs: Tensor) -> Tensor:
    """Moves the state on to the chosen (open hypothesis, word) pairs of each source and gives their logits (sources, open, vocabulary)."""
    sources, before, _ = logs.shape
    rows = [number * before + parent for number, pairs in enumerate(chosen) for parent, _ in pairs]
    words = [[word] for pairs in chosen for _, word in pairs]
    if rows != list(range(sources * before)):  # greedy never moves a row
        state.reorder(torch.tensor(rows, device=logs.device))
    return model.step(torch.tensor(words, device=logs.device), state)[:, -1].unflatten(0, (sources, -1))


class Beam:
    """The open and finished hypotheses of one source."""

    def __init__(self, size: int, max_length: int, length_penalty: float, config: ModelConfig) -> None:
        self.size, self.max_length, self.length_penalty = size, max_length, length_penalty
        self.end_token = config.end_token
        self.open: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
        self.finished: list[Hypothesis] = []
        self.done = False

    def extend(self, logs: Tensor) -> list[tuple[int, int]]:
        """Takes the next log-probabilities (open, vocabulary) and gives the (open hypothesis, word) pairs that go on, `size` of them."""
        if self.done:
            return [(0, self.end_token)] * self.size
        scores = logs[: len(self.open)].double() + torch.tensor([[score] for _, score in self.open], dtype=torch.double)
        best = scores.flatten().topk(min(self.size, scores.numel()))
        opened: list[tuple[int, int]] = []
        hypotheses = []
        for score, index in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            parent, word = divmod(index, logs.shape[-1])
            tokens = self.open[parent][0]
            if word == self.end_token:
                self.finished.append(Hypothesis(tokens, score, ended=True))
            elif len(tokens) + 1 == self.max_length:
                self.finished.append(Hypothesis((*tokens, word), score, ended=False))
            else:
                opened.append((parent, word))
                hypotheses.append(((*tokens, word), score))
        self.open = hypotheses
        self.finished.sort(key=lambda hypothesis: -hypothesis.score(self.length_penalty))
        del self.finished[self.size :]
        self.done = not self.open or self._decided()
        return opened + [(0, self.end_token)] * (self.size - len(opened))

    def best(self) -> list[Hypothesis]:
        return self.finished

    def _decided(self) -> bool:
        """Log-probabilities only fall, and the longest output is forgiven most: that bounds what an open hypothesis can reach."""
        if len(self.finished) < self.size:
            return False
        hope = max(score for _, score in self.open) / self.max_length**self.length_penalty
        return hope <= self.finished[-1].score(self.length_penalty)
