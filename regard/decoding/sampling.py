"""One hypothesis for each source: the likeliest word at every position, or words drawn by chance.

Chance is a function of (seed, number of the source, position) and of nothing else: a text continues in the same way alone, in any batch
and in any order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.decoding import fused
from regard.decoding.rows import Search
from regard.decoding.rules import OFF, Steering
from regard.decoding.search import Hypothesis, log_probabilities, on_host
from regard.decoding.settings import Sampling
from regard.nn.instead import give_up

if TYPE_CHECKING:
    from regard.decoding.tree import Tree


class Sampler(Search):
    """What has been written for a batch of sources, one hypothesis each. The counterpart of BeamSearch."""

    rows = ("numbers", "history", "logs", "written", "words", "open", "stuck")
    hypotheses = 1

    def __init__(
        self,
        sampling: Sampling,
        steering: Steering,
        numbers: Tensor,
        *,
        given: Tensor | None = None,
        length_penalty: float = 0.0,
        tree: Tree | None = None,
        room: int | None = None,
    ) -> None:
        """`numbers` (sources,): what chance goes by; `given`: what was there before the first word, -1 at padding; `room`: for so many
        words, where more are to come than these sources may write.
        """
        self.sampling, self.steering, self.numbers, self.length_penalty = sampling, steering, numbers, length_penalty
        self.tree = tree
        device, sources = steering.limit.device, len(steering.limit)
        self.limit = room or int(steering.limit.max())
        self.given = 0 if given is None else given.shape[1]
        self.history = torch.full((sources, 1, self.given + self.limit + 1), -1, device=device)
        if given is not None:
            self.history[:, 0, : self.given] = given
        self.logs = torch.zeros(sources, self.limit + 1, dtype=torch.double, device=device)
        self.written = torch.zeros(sources, dtype=torch.long, device=device)  # the end token counted
        self.words = torch.zeros(sources, 1, dtype=torch.long, device=device)
        self.parents = None
        self.open = torch.ones(sources, dtype=torch.bool, device=device)
        self.broken = torch.zeros((), dtype=torch.bool, device=device)
        self.stuck = torch.zeros(sources, dtype=torch.bool, device=device)  # the rules left no word

    def advance(self, logits: Tensor, weights: Tensor | None = None, real: Tensor | None = None) -> None:
        """From the logits (sources, 1, vocabulary) of the next word to the word chosen."""
        if fused.suits_greedy(self, logits):
            try:
                fused.greedy(self, logits)
            except Exception as error:
                give_up(fused.SEARCH, error)
            else:
                return
        logs = log_probabilities(logits, in_place=self.steering.only_turns_off)
        self.broken |= logs[..., 0].isnan().any()
        # Turned off or not, log-probabilities are logits less a number that is the same for all words. A penalty goes by their sign.
        own = logs if self.steering.only_turns_off else logits.to(logs.dtype, copy=True)
        own = own if self.tree is None else own.clone()
        steered = self.steering.silence(self.steering.apply(own, self.history, self.written))[:, 0]
        highest, word = steered.max(-1, keepdim=True)  # (sources, 1)
        if self.steering.never is not None or not self.steering.changes_nothing:
            self.stuck |= self.open & (highest[:, 0] == OFF)
        if self.sampling.temperature:
            word = draw(probabilities(steered, self.sampling), uniform(self.sampling.seed, self.numbers, self.written))
        if self.tree is not None:
            self.tree.draws(self, logs, steered, word)
        self.words.copy_(word)
        place = torch.where(self.open, self.written, self.limit)[:, None]  # whoever is done writes nothing where nobody reads
        self.history[:, 0].scatter_(1, self.given + place, torch.where(self.open[:, None], word, -1))
        self.logs.scatter_(1, place, logs[:, 0].gather(1, word).double())
        self.written += self.open
        self.open &= ~self.steering.is_end(word[:, 0]) & (self.written < self.steering.limit)

    def keep(self, sources: Tensor) -> None:
        super().keep(sources)
        if self.tree is not None:
            self.tree.keep(sources)

    def vacate(self, places: Tensor) -> None:
        self.open[places] = False

    def results(self, sources: Tensor) -> list[list[Hypothesis]]:
        tensors = (self.written, self.stuck, self.history[:, 0, self.given :], self.logs)
        written, stuck, words, logs = on_host(*(tensor.index_select(0, sources) for tensor in tensors))
        longest = int(written.max(initial=0))
        columns = (words[:, :longest].astype(int), logs[:, :longest], written.astype(int), stuck)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [[] if stuck else [self._hypothesis(words[:length], logs[:length])] for words, logs, length, stuck in rows]

    def _hypothesis(self, words: list[int], logs: list[float]) -> Hypothesis:
        ended = words[-1] in self.steering.ends
        return Hypothesis(tuple(words[:-1] if ended else words), tuple(logs), ended, sum(logs) / len(logs) ** self.length_penalty)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """What is drawn from (…, vocabulary): the softmax at a temperature, without the unlikely ones that are cut off."""
    # The likeliest are 0, so that next to no temperature leaves them alone instead of making all of them infinite.
    logits = (logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    if 0 < sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, -1).values[..., -1:]
        logits = logits.masked_fill(logits < least, OFF)
    if sampling.top_p < 1:
        ordered, order = logits.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p  # those before it have enough already
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), OFF)
    chances = logits.softmax(-1)
    if sampling.min_p:
        chances = chances.masked_fill(chances < sampling.min_p * chances.amax(-1, keepdim=True), 0.0)
        chances = chances / chances.sum(-1, keepdim=True)
    return chances


def draw(chances: Tensor, point: Tensor) -> Tensor:
    """The word (sources, 1) at which the summed chances pass a point (sources, 1) between 0 and 1."""
    summed = chances.double().cumsum(-1)
    return (summed <= point * summed[:, -1:]).sum(-1, keepdim=True).clamp(max=chances.shape[-1] - 1)


def uniform(seed: int, numbers: Tensor, place: Tensor) -> Tensor:
    """A number in [0, 1) for each source and position (sources, 1), as good as random, by splitmix64's mixing."""
    mixed = _mix(numbers.long() * -7046029254386353131 + seed)
    mixed = _mix(mixed + place * -4417276706812531889 + 1)
    return (_shift(mixed, 11).double() / 2**53)[:, None]


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)  # without the sign, which >> would carry along
