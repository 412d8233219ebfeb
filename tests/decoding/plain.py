"""Beam search as it is told: hypothesis by hypothesis, on lists, asking the model anew for every word. What the fast one must equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.models import Generator, LanguageModel


@dataclass(frozen=True)
class Output:
    tokens: tuple[int, ...]
    log_probability: float
    ended: bool

    def score(self, length_penalty: float) -> float:
        return self.log_probability / max(1, len(self.tokens) + self.ended) ** length_penalty


@torch.no_grad()
def log_probabilities(model: Generator, source: list[int], words: tuple[int, ...]) -> Tensor:
    """Of every word at every position (words + 1, vocabulary), in one teacher-forced pass, without a cache."""
    if isinstance(model, LanguageModel):
        prefix = torch.tensor([len(source)]) if model.config.mask == "prefix" else None
        return model(Tokens.pad([[*source, *words]]), prefix)[0, len(source) - 1 :].double().log_softmax(-1)
    return model(Tokens.pad([source]), Tokens.pad([[model.config.start_token, *words]]))[0].double().log_softmax(-1)


def plain_beam_search(model: Generator, source: list[int], *, size: int, max_length: int, length_penalty: float) -> list[Output]:
    """The `size` best of all, best first. Runs to the last position: whoever stops earlier must come to the same."""
    end = model.config.end_token
    open: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[Output] = []
    for position in range(max_length):
        candidates = []
        for words, total in open:
            logs = log_probabilities(model, source, words)[-1]
            candidates += [(total + float(log), words, word) for word, log in enumerate(logs)]
        candidates.sort(key=lambda candidate: -candidate[0])
        candidates = candidates[: 1 if size == 1 else 2 * size]
        open = []
        for rank, (total, words, word) in enumerate(candidates):
            if position + 1 == max_length or word == end:
                if rank < size:
                    finished.append(Output(words if word == end else (*words, word), total, word == end))
            elif len(open) < size:
                open.append(((*words, word), total))
    return sorted(finished, key=lambda output: -output.score(length_penalty))[:size]
