"""What may be written next: rules turn some words' scores down or off, from what has been written so far and nothing else.

Everything is a function of the history (sources, hypotheses, length), -1 where nothing stands, so no rule has a state to keep in step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.decoding.grammar import Grammatical
from regard.decoding.settings import Rules
from regard.errors import ConfigError
from regard.nn.cache import ALL

OFF = float("-inf")


def nothing_left(rules: Rules) -> str:
    """Why a source has no output."""
    if rules.required:
        return "no output has all required words; raise max_length, widen the beam, or lift a rule against them"
    return "the rules leave no word that may be written; lift one of them (banned, no_repeat, min_length)"


@dataclass
class Steering:
    """The rules made ready for a batch of sources."""

    rules: Rules
    ends: tuple[int, ...]  # tokens after which nothing more is written
    limit: Tensor  # (sources,), tokens written at most
    least: Tensor  # (sources,)
    forced: Tensor | None = None  # (sources, longest prefix), -1 after its end
    given: int = 0  # words of the history that were there before the first
    never: Tensor | None = None  # (n,), tokens that are never chosen
    grammar: Grammatical | None = None

    @classmethod
    def of(
        cls,
        rules: Rules,
        lengths: Sequence[int],
        end: int,
        *,
        stops: Sequence[int] = (),
        prefixes: Sequence[Sequence[int]] | None = None,
        most: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> Steering:
        """`lengths`: of the sources; `prefixes`: what each output must begin with; `most`: what the model has room for."""
        limits = [max(1, rules.max_length.of(length)) for length in lengths]
        if most is not None:
            limits = [min(limit, room) for limit, room in zip(limits, most, strict=True)]
        least = [min(rules.min_length.of(length), limit) for length, limit in zip(lengths, limits, strict=True)]
        forced = None
        if prefixes is not None and any(prefixes):
            longest = max(map(len, prefixes))
            for number, prefix in enumerate(prefixes):
                limits[number] = max(limits[number], len(prefix))  # what must be written may be
                if most is not None and len(prefix) > most[number]:
                    raise ConfigError(f"a prefix has {len(prefix)} tokens, and the model has room for {most[number]}; shorten it")
            forced = torch.tensor([[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes], device=device)
        never = torch.tensor(rules.never, device=device) if rules.never else None
        grammar = None if rules.grammar is None else Grammatical.of(rules.grammar, device)
        limit, fewest = torch.tensor(limits, device=device), torch.tensor(least, device=device)
        return cls(rules, (end, *stops), limit, fewest, forced, never=never, grammar=grammar)

    def silence(self, scores: Tensor) -> Tensor:
        """The scores themselves, with those of tokens turned off that are never chosen."""
        return scores if self.never is None else scores.index_fill_(-1, self.never, OFF)

    def is_end(self, words: Tensor) -> Tensor:
        """Which of the words (…) end what is written. One by one, since no graph can be recorded that fetches them from the host."""
        found = words == self.ends[0]
        for end in self.ends[1:]:
            found |= words == end
        return found

    @property
    def changes_nothing(self) -> bool:
        """Whether the scores are the model's own at every position."""
        rules = self.rules
        return (
            self.forced is None
            and self.grammar is None
            and not (rules.no_repeat or rules.banned or rules.required or rules.min_length.plus or rules.min_length.times)
            and rules.repetition_penalty == 1.0
        )

    def keep(self, sources: Tensor) -> Steering:
        forced = None if self.forced is None else self.forced.index_select(0, sources)
        return replace(self, limit=self.limit.index_select(0, sources), least=self.least.index_select(0, sources), forced=forced)

    def seat(self, new: Steering, places: Tensor, rows: Tensor | slice = ALL) -> None:
        """What holds for other sources, or for these rows of them, holds at these places."""
        self.limit[places], self.least[places] = new.limit[rows], new.least[rows]
        if self.forced is not None:
            self.forced[places] = -1
            if new.forced is not None:
                self.forced[places, : new.forced.shape[1]] = new.forced[rows]

    @property
    def only_turns_off(self) -> bool:
        """Whether words that may be chosen keep the model's own scores. A prefix may be made of words that other rules turn off."""
        return self.rules.repetition_penalty == 1.0 and self.forced is None

    def apply(self, scores: Tensor, history: Tensor, written: Tensor) -> Tensor:
        """Scores (sources, hypotheses, vocabulary) of the next word, after `written` (sources,) words; logits or log-probabilities alike.

        They are changed where they stand, if the rules change them.
        """
        if self.changes_nothing:
            return scores
        own = scores if self.forced is None else scores.clone()
        if self.rules.repetition_penalty != 1.0:
            scores = _less_repetition(scores, history, self.rules.repetition_penalty)
        if self.rules.no_repeat:
            _no_repeat(scores, history, self.rules.no_repeat)
        for word in self.rules.banned:
            _ban(scores, history, word)
        if self.grammar is not None:
            self.grammar.turn_off(scores, history)
        early = (written < self.least)[:, None]
        if self.rules.required:
            early = early | unmet(history[..., self.given :], self.rules.required)
        for end in self.ends:
            scores[..., end].masked_fill_(early, OFF)
        return scores if self.forced is None else self._force(scores, own, written)

    def _force(self, scores: Tensor, own: Tensor, written: Tensor) -> Tensor:
        """Where a prefix says the word, it alone can be chosen, whatever the other rules say of it."""
        assert self.forced is not None
        written = written[:, None]
        place = written.clamp(max=self.forced.shape[1] - 1)
        word = self.forced.gather(1, place).masked_fill(written >= self.forced.shape[1], -1)  # (sources, 1)
        other = torch.arange(scores.shape[-1], device=scores.device) != word
        return torch.where((word >= 0)[:, None], own.masked_fill(other[:, None], OFF), scores)


def _less_repetition(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    """CTRL's: what stands in the history already has its score divided where it is positive, multiplied where it is negative."""
    ids = history.clamp(min=0)
    old = scores.gather(2, ids)
    new = torch.where(old > 0, old / penalty, old * penalty).masked_fill(history < 0, OFF)
    penalised = torch.full_like(scores, OFF).scatter_reduce(2, ids, new, "amax")
    return torch.where(penalised == OFF, scores, penalised)


def _no_repeat(scores: Tensor, history: Tensor, size: int) -> None:
    """Turns off every word that would complete a run of `size` tokens for the second time."""
    padded = torch.nn.functional.pad(history, (0, 1), value=-1)  # so that the last run is there as its beginning alone
    if padded.shape[2] <= size:
        return
    runs = padded.unfold(2, size, 1)  # (sources, hypotheses, runs, size)
    ends = history_end(history)
    latest = last_words(history, ends, size - 1)  # (sources, hypotheses, size - 1)
    same = (runs[..., :-1] == latest[:, :, None]).all(-1) & (runs >= 0).all(-1)
    words = runs[..., -1].clamp(min=0)
    off = torch.where(same, OFF, float("inf")).to(scores.dtype)
    limit = torch.full_like(scores, float("inf")).scatter_reduce(2, words, off, "amin")
    scores.copy_(torch.minimum(scores, limit))


def _ban(scores: Tensor, history: Tensor, word: tuple[int, ...]) -> None:
    """Turns off the last token of a word where the others have just been written."""
    if len(word) == 1:
        scores[..., word[0]] = OFF
        return
    latest = last_words(history, history_end(history), len(word) - 1)
    scores[..., word[-1]].masked_fill_(_spells(latest, word[:-1]), OFF)


def _spells(words: Tensor, ids: Sequence[int]) -> Tensor:
    """Whether words (…, n) are just these. One by one, since no graph can be recorded that fetches them from the host."""
    same = words[..., 0] == ids[0]
    for place in range(1, len(ids)):
        same &= words[..., place] == ids[place]
    return same


def history_end(history: Tensor) -> Tensor:
    """Where each history ends (sources, hypotheses): after its last word, wherever it begins."""
    places = torch.arange(1, history.shape[2] + 1, device=history.device)
    return (
        ((history >= 0) * places).amax(-1) if history.shape[2] else torch.zeros(history.shape[:2], dtype=torch.long, device=history.device)
    )


def last_words(history: Tensor, ends: Tensor, count: int) -> Tensor:
    """The last `count` words of each history (sources, hypotheses, count), -1 where there are fewer."""
    if history.shape[2] == 0:
        return history.new_full((*history.shape[:2], count), -1)
    places = ends[..., None] + torch.arange(-count, 0, device=history.device)
    return history.gather(2, places.clamp(min=0)).masked_fill(places < 0, -1)


def unmet(history: Tensor, words: Sequence[Sequence[int]]) -> Tensor:
    """Whether a required word is still to be written (sources, hypotheses)."""
    return progress(history, words)[0] < sum(map(len, words))


def progress(history: Tensor, words: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """How many tokens of the required words each history has, and the token that would bring each word on.

    (sources, hypotheses) and (sources, hypotheses, words), -1 for a word that is there. A word counts in full once it is written
    anywhere, in part while its beginning is what was written last.
    """
    ends = history_end(history)
    total = torch.zeros(history.shape[:2], dtype=torch.long, device=history.device)
    furthest = torch.zeros_like(total)  # of the words that have been begun: tokens that two of them share are written once
    coming = []
    for word in words:
        size = len(word)
        met = torch.zeros_like(total, dtype=torch.bool)
        if history.shape[2] >= size:
            met = _spells(history.unfold(2, size, 1), word).any(-1)
        begun, following = torch.zeros_like(total), torch.full_like(total, word[0])
        for part in range(1, size):  # the longest beginning that stands at the end
            fits = _spells(last_words(history, ends, part), word[:part])
            begun, following = begun.masked_fill(fits, part), following.masked_fill(fits, word[part])
        total += met * size
        furthest = torch.maximum(furthest, begun.masked_fill(met, 0))
        coming.append(following.masked_fill(met, -1))
    return total + furthest, torch.stack(coming, -1)
