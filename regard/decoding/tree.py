"""How an output was found: a search tells this tree what it looks at, position by position, and why a hypothesis was dropped.

Only listening: everything is copied, nothing is given back. Without a tree a search does not know that there could be one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from regard.decoding.rules import OFF, Steering
from regard.decoding.settings import Length, Rules

if TYPE_CHECKING:
    from regard.decoding.sampling import Sampler
    from regard.decoding.search import BeamSearch, Candidates

MOST_SHOWN = 8  # of the words that one position of a lone hypothesis could have gone on with

State = Literal["kept", "finished", "pruned"]
Reason = Literal["beaten", "overtaken", "ended low", "cannot win", "ruled out", "too long", "displaced", "not drawn", "cut off"]


@dataclass
class Node:
    """A hypothesis, as its parent's and one word more."""

    parent: int | None  # its place in the list of nodes; the root has none
    position: int  # words so far
    word: int  # -1 for the root
    log_probability: float  # of the word, the model's own
    total: float  # log P of all words
    rank: float  # what it was ordered by
    state: State = "kept"
    reason: Reason | None = None
    rule: str | None = None  # that ruled it out
    group: int = 0
    chance: float | None = None  # that it was drawn with
    bound: float | None = None  # the best score that it could still have reached
    score: float | None = None  # of a finished one
    ended: bool = False  # by the end token
    place: int | None = None  # among the finished ones, at the end
    best: bool = False  # on the way to the answer


class Tree:
    """Every hypothesis that was looked at for one source. Parents come before children; within a position, the best come first."""

    def __init__(self) -> None:
        self.nodes = [Node(None, 0, -1, 0.0, 0.0, 0.0)]
        self.finished: list[int] = []  # best first, once `close` was called
        self.best: int | None = None  # where the answer ends
        self._open: list[list[int]] = []  # of each group (or sample), the nodes of its hypotheses
        self._off: list[Node] = []  # what the rules keep from being looked at, at this position
        self._ranks: dict[int, float] = {}  # what finished nodes are compared by
        self._places = 1  # for finished ones, in each group

    def __repr__(self) -> str:
        return f"<Tree of {len(self.nodes):,} nodes>"

    @property
    def positions(self) -> int:
        return max(node.position for node in self.nodes)

    # Beam search

    def reads(self, search: BeamSearch, logs: Tensor) -> None:
        """Before anything is chosen, from the log-probabilities (1, hypotheses, vocabulary): what the rules turn off."""
        if not self._open:
            self._open, self._places = [[0] for _ in range(search.groups)], search.width
        steering, own = search.steering, logs.clone()
        self._off = []
        if steering.changes_nothing and steering.never is None:
            return
        allowed = steering.silence(steering.apply(own.clone(), search.history, search.written))
        count = min(search.looked_at, own.shape[-1])
        totals = search.total[0].flatten().tolist()
        wide = self.shape(len(totals), search.groups)
        for hypothesis, (group, place) in enumerate(wide):
            row = min(hypothesis, own.shape[1] - 1)  # at first all groups share the one hypothesis
            if totals[hypothesis] == OFF:
                continue
            for word in own[0, row].topk(count).indices.tolist():
                if float(allowed[0, row, word]) == OFF and float(own[0, row, word]) > OFF:
                    log = float(own[0, row, word])
                    rule = _rule(steering, own[:, row : row + 1], search.history[:, row : row + 1], search.written, word)
                    node = self._child(self._open[group][place], word, log, totals[hypothesis] + log)
                    self._off.append(replace(node, group=group, state="pruned", reason="ruled out", rule=rule))

    @staticmethod
    def shape(hypotheses: int, groups: int) -> list[tuple[int, int]]:
        """The group of each hypothesis, and its place there."""
        return [(group, place) for group in range(groups) for place in range(hypotheses // groups)]

    def branches(self, search: BeamSearch, found: Candidates, rank: Tensor, score: Tensor, places: Tensor, closed: Tensor) -> None:
        """What was looked at (1, groups, looked_at), best first, and what becomes of it.

        `rank`: of those that are finished, -inf of the others; `places` (1, groups, width): of those that stay open, -1 for none; `closed`
        (1, groups): groups whose open hypotheses can't win any more.
        """
        length = int(search.written[0]) + 1
        limit = int(search.steering.limit[0])
        least = min((value for value in found.rank[0].flatten().tolist() if value > OFF), default=OFF)
        fresh: list[tuple[Node, float]] = [(node, OFF) for node in self._off if node.rank > least]  # else no rule was needed
        stay: list[list[Node]] = []
        for group in range(search.groups):
            going, here = places[0, group].tolist(), []
            for index in range(found.rank.shape[2]):
                if float(found.rank[0, group, index]) == OFF:
                    continue
                word = int(found.words[0, group, index])
                parent = self._open[group][int(found.parents[0, group, index])]
                node = self._child(parent, word, float(found.log[0, group, index]), float(found.rank[0, group, index]))
                node.group, node.ended = group, word in search.steering.ends
                if float(rank[0, group, index]) > OFF:
                    node.state, node.score = "finished", float(score[0, group, index])
                    node.reason = None if node.ended else "too long"
                elif index not in going:
                    node.state, node.reason = "pruned", "ended low" if node.ended else "too long" if length == limit else "beaten"
                elif bool(closed[0, group]):
                    node.state, node.reason = "pruned", "cannot win"
                    node.bound = node.total / limit**search.beam.length_penalty
                here.append((node, float(rank[0, group, index]), index))
            fresh += [(node, value) for node, value, _ in here]
            by_index = {index: node for node, _, index in here}
            stay.append([by_index[index] for index in going if index >= 0])
        self._add(fresh)
        numbers = {id(node): number for number, node in enumerate(self.nodes)}
        self._open = [[numbers[id(node)] for node in group] or [0] for group in stay]

    # One hypothesis for each sample

    def draws(self, search: Sampler, logs: Tensor, steered: Tensor, word: Tensor) -> None:
        """The word (samples, 1) that was taken, from log-probabilities (samples, 1, vocabulary) and what the rules made of the logits."""
        from regard.decoding.sampling import probabilities

        if not self._open:
            self._open = [[0] for _ in range(len(word))]
            self._places = len(word)
        greedy = search.sampling.temperature == 0
        fresh: list[tuple[Node, float]] = []
        chosen: dict[int, Node] = {}
        for sample in range(len(word)):
            if not bool(search.open[sample]):
                continue
            own, allowed = logs[sample, 0], steered[sample]
            chances = None if greedy else probabilities(allowed, search.sampling)
            taken = int(word[sample, 0])
            looked_at = dict.fromkeys((taken, *own.topk(min(MOST_SHOWN, len(own))).indices.tolist()))
            for choice in looked_at:
                node = self._child(self._open[sample][0], choice, float(own[choice]), OFF)
                node.rank, node.group = node.total, sample
                node.chance = None if chances is None else float(chances[choice])
                if choice == taken:
                    chosen[sample] = node
                    self._take(search, node, sample)
                elif float(allowed[choice]) == OFF:
                    history = search.history[sample : sample + 1]
                    node.rule = _rule(
                        _of(search.steering, sample), logs[sample : sample + 1], history, search.written[sample : sample + 1], choice
                    )
                    node.state, node.reason = "pruned", "ruled out"
                else:
                    node.state, node.reason = "pruned", "beaten" if greedy else "not drawn" if node.chance else "cut off"
                fresh.append((node, OFF if node.score is None else node.score))
        self._add(fresh)
        numbers = {id(node): number for number, node in enumerate(self.nodes)}
        for sample, node in chosen.items():
            self._open[sample] = [numbers[id(node)]]

    def _take(self, search: Sampler, node: Node, sample: int) -> None:
        length = int(search.written[sample]) + 1
        node.ended = node.word in search.steering.ends
        if node.ended or length == int(search.steering.limit[sample]):
            node.state, node.score = "finished", node.total / length**search.length_penalty
            node.reason = None if node.ended else "too long"

    def keep(self, samples: Tensor) -> None:
        """Only these samples go on."""
        self._open = [self._open[sample] for sample in samples.tolist()]

    # Both

    def _child(self, parent: int, word: int, log: float, rank: float) -> Node:
        before = self.nodes[parent]
        return Node(parent, before.position + 1, word, log, before.total + log, rank)

    def _add(self, fresh: list[tuple[Node, float]]) -> None:
        for node, rank in sorted(fresh, key=lambda pair: -pair[0].rank):
            if node.state == "finished":
                self._ranks[len(self.nodes)] = rank
            self.nodes.append(node)

    def close(self, words: Sequence[int], ended: bool) -> None:
        """When all is done: the finished ones in order, and the way to the answer, given by its words without an end token."""
        order = sorted(self._ranks, key=lambda number: -self._ranks[number])
        taken: dict[int, int] = {}
        for number in order:
            node = self.nodes[number]
            taken[node.group] = taken.get(node.group, 0) + 1
            if taken[node.group] > self._places:
                node.reason = "displaced"
            else:
                node.place = len(self.finished)
                self.finished.append(number)
        self.best = self._find(list(words), ended)
        for number in self.path(self.best):
            self.nodes[number].best = True
        continued = {node.parent for node in self.nodes if node.state != "pruned"}
        for number, node in enumerate(self.nodes):
            if node.state == "kept" and number not in continued:
                node.reason = "overtaken"

    def _find(self, words: list[int], ended: bool) -> int | None:
        """The finished node of an output."""
        for number in self.finished:
            node = self.nodes[number]
            found = [self.nodes[step].word for step in self.path(number)][::-1][1:]
            if node.ended == ended and (found[:-1] if ended else found) == words:
                return number
        return None

    def path(self, number: int | None) -> Iterator[int]:
        """From a node back to the root."""
        while number is not None:
            yield number
            number = self.nodes[number].parent


def _of(steering: Steering, row: int) -> Steering:
    return steering.keep(torch.tensor([row], device=steering.limit.device))


def _rule(steering: Steering, scores: Tensor, history: Tensor, written: Tensor, word: int) -> str:
    """Which rule turns a word off after one history: each is tried alone."""
    rules = steering.rules
    place = int(written)
    if steering.forced is not None and place < steering.forced.shape[1] and int(steering.forced[0, place]) >= 0:
        return "prefix"
    if steering.never is not None and word in steering.never.tolist():
        return "never"
    alone = {
        "banned": Rules(banned=rules.banned),
        "no_repeat": Rules(no_repeat=rules.no_repeat),
        "min_length": Rules(min_length=Length(plus=1)),
        "required": Rules(required=rules.required),
    }
    if steering.grammar is not None:
        tried = scores.clone()
        steering.grammar.turn_off(tried, history)
        if float(tried[0, 0, word]) == OFF:
            return "grammar"
    for name, rule in alone.items():
        least = steering.least if name == "min_length" else torch.zeros_like(steering.least)
        tried = replace(steering, rules=rule, forced=None, least=least, grammar=None).apply(scores.clone(), history, written)
        if float(tried[0, 0, word]) == OFF:
            return name
    return "several"
