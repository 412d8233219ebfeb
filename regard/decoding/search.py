"""Beam search on the device: of all continuations of a source's hypotheses the most probable stay open.

score = log P(tokens) / length^α, the end token counted in both (+ β Σ log min(1, coverage) where that is asked for)

At each position the 2 × size most probable continuations of each source are looked at (more, where several tokens end a text). Those that
end and are among the best `size` are finished, and the best `size` that go on stay open. A source is done when none of its open hypotheses
can still win: log-probabilities only fall, and the longest output allowed is forgiven most, which bounds what each can reach. A beam of one
is greedy search: when its only hypothesis ends, nothing is left open.

Nothing here asks the device for a number: sources that are done simply have no open hypothesis left, and whoever runs the search
(`runner`) looks now and then. So no result depends on the batch, and a whole position can be replayed as one graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decoding import fused
from regard.decoding.rows import Search, put, write_at
from regard.decoding.rules import OFF, Steering, progress, unmet
from regard.decoding.settings import Beam
from regard.nn.cache import ALL
from regard.nn.instead import give_up

if TYPE_CHECKING:
    from regard.decoding.tree import Tree

BLOCK = 64  # words of a vocabulary that are looked at together
WORST = -1e9  # ranks what lacks a required word below everything that has it

Place = tuple[float, float, list[int], list[float], int, bool]  # the rank, score, words, log-probabilities, length and end of one finished


@dataclass(frozen=True)
class Hypothesis:
    """A finished output: its tokens, without the end token, and the log-probability of each, that of the end token last."""

    tokens: tuple[int, ...]
    log_probabilities: tuple[float, ...]
    ended: bool  # by the end token, rather than by the maximum length
    score: float  # what it was ranked by

    @property
    def log_probability(self) -> float:
        return sum(self.log_probabilities)


def log_probabilities(logits: Tensor, *, in_place: bool = False) -> Tensor:
    """At least in float32: in half precision, neighbours would get the same score. `in_place`: the logits are needed no more."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if in_place and wide.device.type == "cpu" and wide.is_contiguous() and not wide.requires_grad:  # new memory has to be cleared first
        return torch.log_softmax(wide, -1, out=wide)
    return wide.log_softmax(-1)


def likeliest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The highest scores (…, count) of a vocabulary, best first, and whose they are.

    On a CPU by blocks: those with the highest maxima hold all of them, and a maximum is found much faster than an order.
    """
    size = scores.shape[-1]
    if scores.device.type != "cpu" or size < BLOCK * BLOCK or count > BLOCK // 4:
        best = scores.topk(count, -1)
        return best.values, best.indices
    whole = size // BLOCK * BLOCK
    blocks = scores[..., :whole].unflatten(-1, (-1, BLOCK))
    chosen = blocks.amax(-1).topk(count, -1).indices  # (…, count)
    inside = blocks.gather(-2, chosen[..., None].expand(*chosen.shape, BLOCK)).flatten(-2)
    places = (chosen[..., None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(-2)
    if whole < size:
        inside = torch.cat((inside, scores[..., whole:]), -1)
        places = torch.cat((places, torch.arange(whole, size, device=scores.device).expand(*places.shape[:-1], -1)), -1)
    best = inside.topk(count, -1)
    return best.values, places.gather(-1, best.indices)


@dataclass
class Finished:
    """The best finished hypotheses of each group of each source, best first: (sources, groups, places, …)."""

    rank: Tensor  # what they are ordered by; -inf: no hypothesis
    score: Tensor
    words: Tensor  # (…, limit)
    logs: Tensor  # (…, limit)
    length: Tensor  # the end token counted
    ended: Tensor

    @classmethod
    def none(cls, sources: int, groups: int, places: int, limit: int, logs: torch.dtype, device: torch.device) -> Finished:
        shape = (sources, groups, places)
        rank = torch.full(shape, OFF, dtype=torch.double, device=device)
        words = torch.zeros(*shape, limit, dtype=torch.long, device=device)
        length, ended = torch.zeros(shape, dtype=torch.long, device=device), torch.zeros(shape, dtype=torch.bool, device=device)
        return cls(rank, rank.clone(), words, torch.zeros(*shape, limit, dtype=logs, device=device), length, ended)

    def add(self, new: Finished) -> None:
        """The best of both, as many as there are places."""
        rank, order = torch.cat((self.rank, new.rank), 2).topk(self.rank.shape[2], 2)
        for name in ("score", "words", "logs", "length", "ended"):
            old: Tensor = getattr(self, name)
            both = torch.cat((old, getattr(new, name)), 2)
            old.copy_(take(both, order))
        self.rank.copy_(rank)

    def keep(self, sources: Tensor) -> None:
        for name, tensor in vars(self).items():
            setattr(self, name, tensor.index_select(0, sources))

    def seat(self, new: Finished, places: Tensor, rows: Tensor | slice) -> None:
        for name, tensor in vars(self).items():
            put(tensor, getattr(new, name)[rows], places, *((0, 0) if name in ("words", "logs") else ()))


def take(table: Tensor, places: Tensor) -> Tensor:
    """Entries of the third dimension: table (sources, groups, n, …) and places (sources, groups, m) to (sources, groups, m, …)."""
    if table.dim() == 4:
        places = places[..., None].expand(-1, -1, -1, table.shape[3])
    return table.gather(2, places)


class BeamSearch(Search):
    """The open and finished hypotheses of a batch of sources. Groups are parts of a beam that are kept different; mostly there is one."""

    rows = ("total", "history", "logs", "words", "parents", "open", "written")

    def __init__(
        self,
        beam: Beam,
        steering: Steering,
        *,
        given: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        tree: Tree | None = None,
        room: int | None = None,
    ) -> None:
        """`given`: what was there before the first word (sources, length), -1 at padding, for rules that look back.

        `room`: for so many words, where more are to come than these sources may write.
        """
        self.beam, self.steering, self.tree = beam, steering, tree
        self.hypotheses, self.groups, self.width = beam.size, beam.groups, beam.size // beam.groups
        # Of these, enough go on although every hypothesis may end in each way. With one place, what is second best never goes on.
        self.looked_at = 1 if self.width == 1 else (1 + len(steering.ends)) * self.width
        device, sources = steering.limit.device, len(steering.limit)
        self.limit = room or int(steering.limit.max())
        self.total = torch.zeros(sources, self.groups, 1, dtype=torch.double, device=device)  # log P of the open ones; -inf: closed
        self.given = steering.given = 0 if given is None else given.shape[1]
        # (sources, hypotheses, given + limit, and one more where whoever is done may write)
        self.history = torch.full((sources, 1, self.given + self.limit + 1), -1, device=device)
        if given is not None:
            self.history[:, 0, : self.given] = given
        self.logs = torch.zeros(sources, 1, self.limit + 1, dtype=torch.promote_types(dtype, torch.float32), device=device)
        self.coverage: Tensor | None = None  # (sources, hypotheses, source length)
        self.finished = Finished.none(sources, self.groups, self.width, self.limit + 1, self.logs.dtype, device)
        self.written = torch.zeros(sources, dtype=torch.long, device=device)
        self.words = torch.zeros(sources, beam.size, dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.words)
        self.open = torch.ones(sources, dtype=torch.bool, device=device)
        self.broken = torch.zeros((), dtype=torch.bool, device=device)

    def advance(self, logits: Tensor, weights: Tensor | None = None, real: Tensor | None = None) -> None:
        """From the logits (sources, hypotheses, vocabulary) of the next word to the words chosen and whose continuations they are.

        `weights` (sources, hypotheses, source length): where each hypothesis looked, for coverage; `real`: which of them are words. The
        logits are not kept.
        """
        if fused.suits_beam(self, logits, weights):
            try:
                fused.beam(self, logits)
            except Exception as error:
                give_up(fused.SEARCH, error)
            else:
                return
        logs = log_probabilities(logits, in_place=True)
        self.broken |= logs[..., 0].isnan().any()
        if self.tree is not None:
            self.tree.reads(self, logs)
        logs = self.steering.silence(logs)
        apart = logs if self.steering.only_turns_off else logs.clone()  # of words that are turned off, nobody asks the model's own score
        steered = self._grouped(self.steering.apply(apart, self.history, self.written))
        logs = self._grouped(logs)
        chosen = [self._chosen(steered, logs, group=0)]
        times = torch.zeros_like(logs[:, 0, 0])  # (sources, vocabulary), how often the groups before chose each word
        for group in range(1, self.groups):
            going, places = chosen[-1].rank.masked_fill(self.steering.is_end(chosen[-1].words), OFF).topk(self.width, 1)
            times.scatter_add_(1, chosen[-1].words.gather(1, places), (going > OFF).to(times.dtype))
            chosen.append(self._chosen(steered - self.beam.diversity * times[:, None, None], logs, group))
        self._go_on(Candidates.stack(chosen), weights, real)

    def _grouped(self, scores: Tensor) -> Tensor:
        """(sources, hypotheses, vocabulary) to (sources, groups, width, vocabulary); at first all groups share the one hypothesis."""
        if scores.shape[1] == 1 and self.groups * self.width > 1:
            return scores[:, None].expand(-1, self.groups, -1, -1)
        return scores.unflatten(1, (self.groups, -1))

    def _chosen(self, steered: Tensor, logs: Tensor, group: int) -> Candidates:
        """The most probable continuations of a group's hypotheses (sources, looked_at), best first."""
        total, steered, logs = self.total[:, group], steered[:, group], logs[:, group]  # (sources, width), (…, vocabulary)
        values, words = likeliest(steered, min(self.looked_at, steered.shape[-1]))  # more of one hypothesis are never among the best
        required = self.steering.rules.required
        if required:
            histories = self._group_histories(group)
            values, words = _with_required(values, words, steered, progress(histories[..., self.given :], required)[1])
        each = words.shape[-1]
        rank = (total[:, :, None] + values).flatten(1)
        missing = max(0, self.looked_at - rank.shape[1])
        rank, flat = F.pad(rank, (0, missing), value=OFF), F.pad(words.flatten(1), (0, missing))
        if required:
            best = self._in_turn(rank, flat, histories, each)
            rank = rank.gather(1, best)
        else:
            rank, best = rank.topk(self.looked_at, 1)
        parents, words = (best // each).clamp(max=total.shape[1] - 1), flat.gather(1, best)
        log = logs.flatten(1).gather(1, parents * logs.shape[-1] + words).to(self.logs.dtype)
        return Candidates(rank, parents, words, log)

    def _in_turn(self, rank: Tensor, words: Tensor, histories: Tensor, each: int) -> Tensor:
        """The best candidates of every bank in turn, a bank being those with as many tokens of the required words (Post & Vilar 2018)."""
        required = self.steering.rules.required
        owner = (torch.arange(words.shape[1], device=words.device) // each).clamp(max=histories.shape[1] - 1)
        longer = write_at(histories.index_select(1, owner), self.given + self.written, words)
        bank = progress(longer[..., self.given :], required)[0]
        order = rank.argsort(dim=1, descending=True, stable=True)
        banks = bank.gather(1, order)
        rounds = F.one_hot(banks, sum(map(len, required)) + 1).cumsum(1).gather(2, banks[..., None]).squeeze(2)
        rounds = rounds.masked_fill(rank.gather(1, order) == OFF, words.shape[1] + 1)
        fullest_first = rounds * (sum(map(len, required)) + 1) - banks
        return order.gather(1, fullest_first.argsort(dim=1, stable=True)[:, : self.looked_at])

    def _group_histories(self, group: int) -> Tensor:
        return self.history if self.history.shape[1] == 1 else self.history.unflatten(1, (self.groups, -1))[:, group]

    def _go_on(self, found: Candidates, weights: Tensor | None, real: Tensor | None) -> None:
        """Finishes what ends among the best, keeps open the best of the rest, and closes sources that no open hypothesis can better."""
        length = (self.written + 1)[:, None, None]
        valid, ended = found.rank > OFF, self.steering.is_end(found.words)
        last = length == self.steering.limit[:, None, None]
        among_best = torch.arange(self.looked_at, device=ended.device) < self.width
        total = (take(self.total, found.parents) + found.log).masked_fill(~valid, OFF)
        history = write_at(self._of_parents(self.history, found.parents), self.given + self.written, found.words)
        logs = write_at(self._of_parents(self.logs, found.parents), self.written, found.log)

        score = total / length.double() ** self.beam.length_penalty
        coverage = None
        if weights is not None:
            before = weights if self.coverage is None else self.coverage + weights
            coverage = self._of_parents(before, found.parents)
            score = score + self.beam.coverage * _covered(coverage, real)
        rank = score.masked_fill(~(valid & among_best & (ended | last)), OFF)
        if self.steering.rules.required:
            rank = rank + WORST * unmet(history[..., self.given :].flatten(1, 2), self.steering.rules.required).view_as(rank)
        lengths = length.expand_as(found.words)
        self.finished.add(Finished(rank, score, history[..., self.given :], logs, lengths, ended))

        order = found.rank
        if self.steering.rules.required:  # they stand in the order that counts: every bank in turn
            order = -torch.arange(self.looked_at, device=ended.device, dtype=order.dtype).expand_as(order)
        still, places = order.masked_fill(~valid | ended | last, OFF).topk(self.width, 2)
        total = take(total, places).masked_fill(still == OFF, OFF)
        hope = total.amax(2) / self.steering.limit[:, None].double() ** self.beam.length_penalty
        closed = hope <= self.finished.rank[:, :, min(self.beam.n_best, self.width) - 1]
        if self.tree is not None:
            self.tree.branches(self, found, rank, score, places.masked_fill(still == OFF, -1), closed)
        self._set("total", total.masked_fill(closed[..., None], OFF))
        self._set("open", (self.total > OFF).flatten(1).any(1))
        # At first there is one hypothesis, which all groups continue; from then on each group has its own.
        first = torch.arange(self.groups, device=places.device)[:, None] * (0 if self.history.shape[1] == 1 else self.width)
        self._set("history", take(history, places).flatten(1, 2))
        self._set("logs", take(logs, places).flatten(1, 2))
        self._set("words", take(found.words, places).flatten(1, 2))
        self._set("parents", (take(found.parents, places) + first).flatten(1, 2))
        if coverage is not None:
            self._set("coverage", take(coverage, places).flatten(1, 2))
        self.written += self.open  # whoever is done may be here a while longer

    def _of_parents(self, table: Tensor, parents: Tensor) -> Tensor:
        """(sources, hypotheses, …) to what the parents (sources, groups, n) have: (sources, groups, n, …)."""
        if table.shape[1] == 1 and self.groups > 1:
            return take(table[:, None].expand(-1, self.groups, -1, -1), parents)
        return take(table.unflatten(1, (self.groups, -1)), parents)

    def _set(self, name: str, value: Tensor) -> None:
        """In place where it can be: buffers that stay where they are can be replayed."""
        old = getattr(self, name)
        if old is not None and old.shape == value.shape:
            old.copy_(value)
        else:
            setattr(self, name, value.clone())

    def keep(self, sources: Tensor) -> None:
        super().keep(sources)
        self.finished.keep(sources)
        if self.coverage is not None:
            self.coverage = self.coverage.index_select(0, sources)

    def vacate(self, places: Tensor) -> None:
        if self.history.shape[1] == 1:  # before the first word
            self.total = self.total.repeat(1, 1, self.width)
            self.history, self.logs = self.history.repeat(1, self.hypotheses, 1), self.logs.repeat(1, self.hypotheses, 1)
        self.total[places] = OFF
        self.open[places] = False

    def seat(self, new: BeamSearch, places: Tensor, rows: Tensor | slice = ALL) -> None:
        super().seat(new, places, rows)
        self.finished.seat(new.finished, places, rows)

    def results(self, sources: Tensor) -> list[list[Hypothesis]]:
        """The best hypotheses of these sources, at most n_best each, best first; none where the rules leave nothing to write."""
        tensors = (tensor[:, :, : self._looked_through].index_select(0, sources).flatten(1, 2) for tensor in vars(self.finished).values())
        rank, score, words, logs, length, ended = on_host(*tensors)
        longest = int(length.max(initial=0))
        columns = (rank, score, words[..., :longest].astype(int), logs[..., :longest], length.astype(int), ended.astype(bool))
        return [self._best(zip(*own, strict=True)) for own in zip(*(column.tolist() for column in columns), strict=True)]

    @property
    def _looked_through(self) -> int:
        """How many places of each group may hold what is asked for: two groups, or two ways to end, may come to the same."""
        alike = self.groups > 1 or len(self.steering.ends) > 1
        return self.width if alike and self.beam.n_best > 1 else min(self.beam.n_best, self.width)

    def _best(self, places: Iterable[Place]) -> list[Hypothesis]:
        best: list[Hypothesis] = []
        for rank, score, words, logs, length, ended in sorted(places, key=lambda place: -place[0]):
            if rank < WORST / 2 or len(best) == self.beam.n_best:
                break
            tokens = tuple(words[: length - ended])
            if all(tokens != other.tokens or ended != other.ended for other in best):
                best.append(Hypothesis(tokens, tuple(logs[:length]), ended, score))
        return best


def on_host(*tensors: Tensor) -> list[npt.NDArray[np.float64]]:
    """Tensors (sources, …) in one transfer, since a GPU is waited for at each. In float64, which holds any word exactly."""
    widths = [tensor.shape[1:].numel() for tensor in tensors]
    flat = torch.cat([tensor.reshape(-1, width).double() for tensor, width in zip(tensors, widths, strict=True)], 1).cpu().numpy()
    parts = np.split(flat, np.cumsum(widths)[:-1], axis=1)
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


@dataclass
class Candidates:
    """Continuations of hypotheses (sources, n), or of those of all groups (sources, groups, n), best first."""

    rank: Tensor  # what they are ordered by; -inf: none
    parents: Tensor  # within the group
    words: Tensor
    log: Tensor  # the model's own log-probability of the word

    @classmethod
    def stack(cls, groups: Sequence[Candidates]) -> Candidates:
        return cls(*(torch.stack(parts, 1) for parts in zip(*(vars(group).values() for group in groups), strict=True)))


def _with_required(values: Tensor, words: Tensor, steered: Tensor, coming: Tensor) -> tuple[Tensor, Tensor]:
    """The candidates of each hypothesis, and besides them the tokens (…, words) that would bring a required word on."""
    known = (coming < 0) | (coming[..., None] == words[:, :, None]).any(-1)
    earlier = (coming[..., None] == coming[:, :, None]) & torch.ones(coming.shape[-1], coming.shape[-1], device=words.device).tril(
        -1
    ).bool()
    coming = coming.clamp(min=0)
    more = steered.gather(2, coming).masked_fill(known | earlier.any(-1), OFF)
    return torch.cat((values, more), -1), torch.cat((words, coming), -1)


def _covered(coverage: Tensor, real: Tensor | None) -> Tensor:
    """Σ log min(1, attention that each word of the source got in all): (sources, groups, n)."""
    logs = coverage.clamp(1e-6, 1.0).log()
    return (logs if real is None else logs.masked_fill(~real[:, None, None], 0.0)).sum(-1).double()
