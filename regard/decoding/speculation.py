"""Words guessed ahead: several are read in one pass, and those are kept that would have been chosen anyway.

Reading a few words takes hardly longer than reading one, since it is the weights that have to be fetched. So the word chosen last and some
guesses at what follows are read together, and the search then chooses word after word from their logits, exactly as without. A guess that
is the word chosen has saved a pass; from the first that is not, what was read is taken back. Chance is a function of seed, number and
position, so this holds for what is drawn as well: guesses decide how fast it goes, and never what is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from time import perf_counter
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.sampling import Sampler, draw, probabilities, uniform
from regard.errors import ConfigError
from regard.models import Generator, LanguageModel
from regard.models.state import StackState
from regard.nn.few import FEW

MOST = FEW - 1  # guesses at once: with the word before them as many as are read in the fastest way
LONGEST = 4  # words that a guess goes by, at most
WORD = 0.04  # of a pass, that each further word in it takes
HOPES = (0.05, 0.05, 0.35, 0.5, 0.75)  # how often guesses are right that go by none, one, … LONGEST words, before any was looked at
FRESH = 0.1  # how much the latest counts, at least; the first ones count more
GAIN = 1.05  # times as many words a second are worth a try; less is lost in what can't be foreseen
REST = 32  # positions without a guess, where guessing takes time and has not paid


class Guess(NamedTuple):
    """What may come next, word after word."""

    words: Sequence[int]
    known: int = 0  # words that the guess goes by: the more, the likelier it is right


class Guesser(Protocol):
    """Knows one source, and guesses how what is written for it goes on."""

    free: bool  # takes next to no time, so that it can be asked to see whether it would have been right

    def guess(self, written: Sequence[int], most: int) -> Guess:
        """So many words at most that may follow those written so far, of which there is one or more."""


Speculation = Callable[[Generator, Tokens, Sampler], Guesser]  # begins a guesser for a lone source and its search


class Ngrams:
    """Guesses that a text repeats itself: what followed when the last few words stood there before, in the source or in what is written."""

    free = True

    def __init__(self, before: Sequence[int]) -> None:
        self.text = list(before)
        self.given, self.seen = len(self.text), 0
        self.places: dict[tuple[int, ...], int] = {}  # after which place words stood last

    @classmethod
    def begin(cls, model: Generator, source: Tokens, _: Sampler) -> Ngrams:
        ids = _ids(source)
        if isinstance(model, LanguageModel):
            return cls(ids)
        # What an encoder-decoder reads is another text than the one it writes, and may be in other words.
        return cls([] if getattr(model.config, "source_vocabulary", None) is not None else [*ids, -1])

    def guess(self, written: Sequence[int], most: int) -> Guess:
        self.text += written[len(self.text) - self.given :]
        self._remember(len(self.text) - 1)
        for known in range(min(LONGEST, len(self.text)), 0, -1):
            place = self.places.get(tuple(self.text[-known:]))
            if place is not None:
                return Guess(self.text[place : place + most], known)
        return Guess(())

    def _remember(self, end: int) -> None:
        """All runs of words that end before this place."""
        for place in range(self.seen + 1, end + 1):
            for known in range(1, min(LONGEST, place) + 1):
                self.places[tuple(self.text[place - known : place])] = place
        self.seen = max(self.seen, end)


class Drafted:
    """Guesses what a smaller model would write, with the same chance. Its cache takes back what was not chosen."""

    free = False

    def __init__(self, draft: Generator, source: Tokens, search: Sampler) -> None:
        self.draft, self.search = draft, search
        self.read: list[int] = []  # of what is written, in its cache
        length = source.ids.shape[1]
        continued = isinstance(draft, LanguageModel)
        self.room = min(search.limit, draft.config.context - (length if continued else 0))
        self.state: StackState | None = None
        if self.room > 0 and length <= draft.config.context:  # or else it has nothing to say
            state, _ = draft.start(draft.encode(source), self.room)
            assert isinstance(state, StackState)
            self.state = state

    def guess(self, written: Sequence[int], most: int) -> Guess:
        most = min(most, self.room + 1 - len(written))
        if self.state is None or most < 1:
            return Guess(())
        kept = _shared(self.read, written[:-1])
        self.state.forget(len(self.read) - kept)
        logits = self.draft.extend(self._tensor(written[kept:]), self.state)[:, -1]
        guessed = [self._chosen(logits, len(written))]
        while len(guessed) < most:
            logits = self.draft.step(self._tensor(guessed[-1:]), self.state)[:, -1]
            guessed.append(self._chosen(logits, len(written) + len(guessed)))
        self.read = [*written, *guessed[:-1]]
        return Guess(guessed, LONGEST)  # it goes by all there are

    def _chosen(self, logits: Tensor, place: int) -> int:
        """As the search would choose from these logits (1, vocabulary), but for its rules."""
        sampling, logits = self.search.sampling, self.search.steering.silence(logits)
        if not sampling.temperature:
            return int(logits.argmax())
        point = uniform(sampling.seed, self.search.numbers, torch.tensor([place], device=logits.device))
        return int(draw(probabilities(logits.float(), sampling), point))

    def _tensor(self, words: Sequence[int]) -> Tensor:
        return torch.tensor([words], device=self.draft.device)


def drafting(draft: Generator) -> Speculation:
    """Speculation by a draft model, which must be of the same kind as the one that writes, and have its words."""

    def begin(model: Generator, source: Tokens, search: Sampler) -> Guesser:
        if draft.config.kind != model.config.kind or draft.config.vocabulary < model.config.vocabulary:
            raise ConfigError(
                f"a draft of kind '{draft.config.kind}' with {draft.config.vocabulary} words can't guess for a model of kind "
                f"'{model.config.kind}' with {model.config.vocabulary}; take one of the same kind and with the same tokenizer"
            )
        if draft.device != model.device:
            raise ConfigError(f"the draft is on {draft.device} and the model on {model.device}; load both on the same device")
        return Drafted(draft, source, search)

    return begin


class Pace:
    """How many words ahead it pays to guess: by how often guesses have been right, and by what reading and guessing them takes."""

    def __init__(self) -> None:
        self.rates, self.seen = [*HOPES], [0] * len(HOPES)  # a word guessed right is one more to go by
        self.plain, self.ahead, self.guessed = (deque[float](maxlen=8) for _ in range(3))  # seconds: of passes, and of a guess a word

    def worth(self, known: int) -> int:
        """The number of guesses that brings most words a second; 0 if none does."""
        one = min(self.plain, default=min(self.ahead, default=1.0))
        first, each = max(1.0, min(self.ahead, default=one) / one), WORD + min(self.guessed, default=0.0) / one
        best, count, expected, chance = GAIN, 0, 1.0, 1.0
        for ahead in range(1, MOST + 1):
            chance *= self.rates[min(known + ahead - 1, LONGEST)]
            expected += chance
            rate = expected / (first + each * ahead)
            if rate > best:
                best, count = rate, ahead
        return count

    def learn(self, known: int, guessed: Sequence[int], chosen: Sequence[int]) -> None:
        """From what was guessed and what was chosen then, as far as they can be compared: up to the first that is wrong."""
        for place, (guess, word) in enumerate(zip(guessed, chosen, strict=False)):
            level = min(known + place, LONGEST)
            self.seen[level] += 1
            self.rates[level] += max(FRESH, 1 / (self.seen[level] + 2)) * ((guess == word) - self.rates[level])


class Ahead:
    """A lone source on its way, with guesses."""

    def __init__(self, model: Generator, state: StackState, search: Sampler, guesser: Guesser) -> None:
        """After the first word has been chosen."""
        self.model, self.state, self.search, self.guesser = model, state, search, guesser
        self.chosen = [self._word()]  # at the last position
        self.written = [*self.chosen]
        self.pace, self.resting = Pace(), 0
        self.passes = self.offered = self.accepted = 0

    def position(self, plain: Callable[[], None]) -> None:
        """Chooses the next word, and as many more as were guessed right. `plain`: the same without guesses."""
        guess = self._guess()
        count = self.pace.worth(guess.known) if self.guesser.free else len(guess.words)
        words = guess.words[:count]
        self.chosen = self._checked(words) if words else self._plain(plain)
        self.passes, self.offered, self.accepted = self.passes + 1, self.offered + len(words), self.accepted + len(self.chosen) - 1
        self.pace.learn(guess.known, words or guess.words[:1], self.chosen)
        self.written += self.chosen

    def _guess(self) -> Guess:
        most = min(MOST, self.search.limit - len(self.written) - 1)
        if most < 1:
            return Guess(())
        if not self.guesser.free:
            most = min(most, self._wanted())
            if most < 1:
                return Guess(())
        started = perf_counter()
        words, known = self.guesser.guess(self.written, most)
        words = list(takewhile(range(self.model.config.vocabulary).__contains__, words[:most]))
        if words and not self.guesser.free:
            self.pace.guessed.append((perf_counter() - started) / len(words))
        return Guess(words, known)

    def _wanted(self) -> int:
        """How many guesses to ask for that take time. Where they do not pay, one now and then, lest better times be missed."""
        wanted = self.pace.worth(LONGEST) if self.pace.guessed else 1  # at first nobody knows how long it takes
        if wanted:
            self.resting = 0
            return wanted
        self.resting = (self.resting + 1) % REST
        return 1 if self.resting == 0 else 0

    def _plain(self, plain: Callable[[], None]) -> list[int]:
        started = perf_counter()
        plain()
        chosen = [self._word()]
        self.pace.plain.append(perf_counter() - started)
        return chosen

    def _checked(self, words: Sequence[int]) -> list[int]:
        """Reads the word chosen last and those guessed in one pass, and gives those chosen: guesses that were right, and one more."""
        started = perf_counter()
        logits = self.model.extend(torch.tensor([[self.written[-1], *words]], device=self.model.device), self.state)
        chosen: list[int] = []
        for place in range(len(words) + 1):
            self.search.advance(logits[:, place : place + 1])
            chosen.append(self._word())
            if place == 0:  # what is chosen then would have to be chosen without guesses too
                self.pace.ahead.append((perf_counter() - started) / (1 + WORD * len(words)))
            if chosen[place:] != words[place : place + 1] or not self.going:
                break
        self.state.forget(1 + len(words) - len(chosen))
        return chosen

    @property
    def going(self) -> bool:
        return bool(self.search.open[0] & ~self.search.stuck[0])

    def _word(self) -> int:
        return int(self.search.words[0, 0])


def _ids(source: Tokens) -> list[int]:
    row: list[int] = source.ids[0].tolist() if source.real is None else source.ids[0][source.real[0]].tolist()
    return row


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many words both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
