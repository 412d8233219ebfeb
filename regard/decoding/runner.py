"""Runs a search over one batch: model and search in turn, position after position, without waiting for the device at each.

Sources that are done leave in chunks; where others wait for their places, `table` lets them in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding import reading
from regard.decoding.replay import Replayed, graphs_on, on, on_its_device
from regard.decoding.rows import Search
from regard.decoding.rules import Steering, nothing_left
from regard.decoding.sampling import Sampler
from regard.decoding.search import BeamSearch, Hypothesis
from regard.decoding.settings import Beam, Method, Rules, Sampling
from regard.decoding.speculation import Ahead, Guesser, Speculation
from regard.decoding.tree import Tree
from regard.errors import ConfigError, RegardError, ShapeError
from regard.models import Generator, LanguageModel, Memory, RnnSeq2Seq, State
from regard.models.state import StackState
from regard.nn import record, using
from regard.nn.tap import hooked

CHECK_EVERY = {"cpu": 1, "cuda": 8}  # positions between looks at what is done: each look makes the host wait for the device
APART = 1_000_003  # what chance goes by in two sources, so that samples of one are not those of the next
DROP_AT = {"cpu": 0.75, "cuda": 0.5}  # the others move together when no more than this share of the sources is left


@torch.inference_mode()
@on_its_device
def decode(
    model: Generator,
    source: Tokens,
    method: Method | None = None,
    rules: Rules | None = None,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
    partial: bool = False,
    tree: Tree | None = None,
    speculation: Speculation | None = None,
) -> list[list[Hypothesis]]:
    """For each source its hypotheses, best first: n_best of a beam, or as many samples as were asked for.

    `prefixes`: what each output must begin with; `numbers`: what chance goes by for each source, its place in the batch by default.
    A source for which the rules leave nothing to write is an error; with `partial` it has no hypotheses, and the others theirs.
    `tree`: is told of everything that is looked at, for a lone source; it changes nothing. `speculation`: guesses words ahead, for a lone
    source with one hypothesis; several are read together anyway.
    """
    method, rules = method or Beam(), rules or Rules()
    _check(model, source, rules, prefixes, numbers)
    if tree is not None and source.ids.shape[0] != 1:
        raise ShapeError(f"a tree is of one source, and {source.ids.shape[0]} were given; decode them one by one")
    memory = reading.encode(model, source)
    samples = method.samples if isinstance(method, Sampling) else 1
    rows = torch.arange(source.ids.shape[0], device=model.device).repeat_interleave(samples)
    if samples > 1:
        memory = memory.take(rows)
        prefixes = None if prefixes is None else [prefix for prefix in prefixes for _ in range(samples)]
    search = make_search(model, memory.tokens, method, rules, prefixes, _numbers(numbers, rows, samples), tree)
    run = Run.begin(model, memory, search)
    run.guess_ahead(_guesser(speculation, model, source, search))
    found = run.results()
    together = [[hypothesis for row in found[start : start + samples] for hypothesis in row] for start in range(0, len(found), samples)]
    if not partial and not all(together):
        raise ConfigError(f"source {together.index([]) + 1}: {nothing_left(rules)}")
    return together


def _check(
    model: Generator,
    source: Tokens,
    rules: Rules,
    prefixes: Sequence[Sequence[int]] | None = None,
    numbers: Sequence[int] | None = None,
) -> None:
    sources = source.ids.shape[0]
    if source.packed:
        raise ShapeError("decoding reads padded rows, not a packed one; use Tokens.pad")
    check_wishes(model, rules, prefixes)
    for what, given in (("prefixes", prefixes), ("numbers", numbers)):
        if given is not None and len(given) != sources:
            raise ShapeError(f"{len(given)} {what} for {sources} sources; give each source its own")


def check_wishes(model: Generator, rules: Rules, prefixes: Sequence[Sequence[int]] | None) -> None:
    """What can be said before anything is read."""
    if model.training:
        raise RegardError("the model is in training mode, where dropout makes every answer another; call model.eval() first")
    for word in (*rules.banned, *rules.required, *(prefixes or ())):
        if any(id >= model.config.vocabulary for id in word):
            raise ConfigError(f"{max(word)} is no token of this model; its vocabulary ends at {model.config.vocabulary - 1}")


def _numbers(numbers: Sequence[int] | None, rows: Tensor, samples: int) -> Tensor:
    """What chance goes by for each row: the number of its source, and which sample of it."""
    each = rows if numbers is None else torch.tensor(numbers, device=rows.device)[rows]
    return each * APART + torch.arange(len(rows), device=rows.device) % samples


def make_search(
    model: Generator,
    source: Tokens,
    method: Method,
    rules: Rules,
    prefixes: Sequence[Sequence[int]] | None,
    numbers: Tensor,
    tree: Tree | None = None,
    room: int | None = None,
) -> Search:
    """`room`: for so many words, where more are to come than these sources may write."""
    lengths = source.lengths.tolist()
    given, most = None, [model.config.context] * len(lengths)
    if isinstance(model, LanguageModel):
        given, most = _from_the_right(source), [model.config.context - length for length in lengths]
        if min(most) < 1:
            raise ConfigError(
                f"the prompt is {max(lengths)} tokens long and the model's context {model.config.context}: there is no room to go on; "
                "shorten the prompt"
            )
    end, stops = model.config.end_token, model.config.stop_tokens
    steering = Steering.of(rules, lengths, end, stops=stops, prefixes=prefixes, most=most, device=model.device)
    if rules.required and (not isinstance(method, Beam) or method.size == 1):
        raise ConfigError("required words need a beam, to keep hypotheses with and without them open; use a beam of 2 or more")
    if rules.required and isinstance(method, Beam) and method.groups > 1:
        raise ConfigError("required words and groups both say what a beam keeps open; choose one of the two")
    if isinstance(method, Beam):
        if method.size > 1 or method.coverage:
            return BeamSearch(method, steering, given=given, dtype=model.dtype, tree=tree, room=room)
        greedy = Sampling(temperature=0)
        return Sampler(greedy, steering, numbers, given=given, length_penalty=method.length_penalty, tree=tree, room=room)
    return Sampler(method, steering, numbers, given=given, tree=tree, room=room)


def _from_the_right(prompt: Tokens) -> Tensor:
    """Prompts with their padding, -1, on the left, so that what is written follows them at once."""
    if prompt.real is None:
        return prompt.ids
    order = prompt.real.long().argsort(dim=1, stable=True)
    return prompt.ids.masked_fill(~prompt.real, -1).gather(1, order)


def _guesser(speculation: Speculation | None, model: Generator, source: Tokens, search: Search) -> Guesser | None:
    if speculation is None:
        return None
    if not isinstance(search, Sampler):
        raise ConfigError("words can be guessed ahead for one hypothesis, and a beam has several; use a beam of 1, or sampling")
    if isinstance(model, RnnSeq2Seq):
        raise ConfigError("a recurrent model can't take back what it has read, so no words can be guessed ahead; leave speculation out")
    lone = len(search.numbers) == 1 and search.tree is None  # a tree is told position by position
    return speculation(model, source, search) if lone else None


def stream(
    model: Generator,
    source: Tokens,
    sampling: Sampling | None = None,
    rules: Rules | None = None,
    *,
    speculation: Speculation | None = None,
) -> Iterator[int]:
    """The words of one source as they are chosen; the end token is not given."""
    sampling = sampling or Sampling(temperature=0)
    _check(model, source, rules or Rules())
    with torch.inference_mode(), on(model):
        memory = reading.encode(model, source)
        search = make_search(model, memory.tokens, sampling, rules or Rules(), None, torch.zeros(1, dtype=torch.long, device=model.device))
        assert isinstance(search, Sampler)
        run = Run.begin(model, memory, search)
        run.guess_ahead(_guesser(speculation, model, source, search))
    while True:
        with torch.inference_mode(), on(model):
            run.check()
            words, going, stuck = run.chosen, bool(search.open[0]), bool(search.stuck[0])
        for word in words[:-1] if stuck else words:
            if word in search.steering.ends:
                return
            yield word
        if stuck:
            raise ConfigError(nothing_left(search.steering.rules))
        if not going:
            return
        with torch.inference_mode(), on(model):
            run.position()


class Run:
    """One batch on its way."""

    def __init__(self, model: Generator, search: Search, state: State | None = None, real: Tensor | None = None) -> None:
        """`real` (sources, length): which words of the sources are words, for a search that asks where the model looks."""
        self.model, self.search, self.state, self.real = model, search, state, real
        self.looks = isinstance(search, BeamSearch) and search.beam.coverage > 0
        self.left = list(range(len(search.open)))  # the sources that are still with us
        self.found: dict[int, list[Hypothesis]] = {}
        device = model.device.type
        self.check_every, self.drop_at = CHECK_EVERY.get(device, 1), DROP_AT.get(device, 0.5)
        self.replayed: Replayed | None = None
        self._record_anew()
        self.ahead: Ahead | None = None

    @classmethod
    def begin(cls, model: Generator, memory: Memory, search: Search, room: int | None = None) -> Run:
        """After the first word. `room`: for so many words in the state, where those to come are kept elsewhere."""
        run = cls(model, search, real=memory.tokens.real)

        def start() -> Tensor:
            run.state, logits = reading.start(model, memory, search.limit if room is None else room, search.hypotheses)
            return logits[:, None]

        run._choose(start)
        return run

    def guess_ahead(self, guesser: Guesser | None) -> None:
        """For a lone source, from now on."""
        if guesser is not None and isinstance(self.state, StackState) and isinstance(self.search, Sampler):
            self.ahead = Ahead(self.model, self.state, self.search, guesser)

    def results(self) -> list[list[Hypothesis]]:
        while self.ahead is not None and self.ahead.going:
            self.check()
            self.position()
        for position in range(1, self.search.limit if self.ahead is None else 1):
            if position % self.check_every == 0:
                self.check()
                if not self._drop_finished():
                    break
            self.position()
        self.check()
        self._collect([True] * len(self.left))
        return [self.found[number] for number in range(len(self.found))]

    @property
    def chosen(self) -> list[int]:
        """The words that the last position gave a lone source."""
        return [int(self.search.words[0, 0])] if self.ahead is None else self.ahead.chosen

    def position(self) -> None:
        """Reads the words chosen last and chooses the next."""
        if self.ahead is None:
            self._plain_position()
        else:
            self.ahead.position(self._plain_position)

    def _plain_position(self) -> None:
        state = self.state
        assert state is not None
        if self.replayed is not None and isinstance(state, StackState):
            self.replayed(state, self._step)
        else:
            self._step()

    def _step(self) -> None:
        state = self.state
        assert state is not None
        self._choose(lambda: self.model.step(self.search.words, state))

    def _choose(self, logits: Callable[[], Tensor]) -> None:
        with using("explicit") if self.looks else nullcontext(), record(self.model) if self.looks else nullcontext() as taps:
            given = logits()
        weights = self.model.looks(taps) if taps is not None else None
        if weights is not None and weights.shape[0] != given.shape[0]:  # a recurrent model's rows are hypotheses
            weights = weights.reshape(given.shape[0], -1, weights.shape[-1])
        self.search.advance(given, weights, self.real)
        if self.search.parents is not None and self.state is not None:
            self.state.select(self.search.parents)

    def check(self) -> None:
        if bool(self.search.broken):
            raise RegardError("the model gave scores that are not numbers; its weights are damaged, or too large for this precision")

    def _drop_finished(self) -> bool:
        """Lets sources that are done leave once enough of them are; False when none is left."""
        open = self.search.open.tolist()
        if not any(open):
            return False
        if sum(open) <= self.drop_at * len(open):
            self._collect([not going for going in open])
            stay = [place for place, going in enumerate(open) if going]
            self.left = [self.left[place] for place in stay]
            self.keep(torch.tensor(stay, device=self.model.device))
        return True

    def keep(self, sources: Tensor) -> None:
        """Only these sources are left, each as often as it is named."""
        assert self.state is not None
        self.search.keep(sources)
        self.state.keep(sources)
        self.real = None if self.real is None else self.real.index_select(0, sources)
        self._record_anew()

    def _record_anew(self) -> None:
        """Where positions are recorded: not where somebody looks, since what is replayed tells nobody."""
        watched = self.looks or self.search.tree is not None or hooked(self.model)
        graphs = None if watched else graphs_on(self.model.device)
        self.replayed = None if graphs is None else Replayed(graphs)

    def _collect(self, which: list[bool]) -> None:
        places = [place for place, wanted in enumerate(which) if wanted]
        found = self.search.results(torch.tensor(places, device=self.model.device))
        self.found |= {self.left[place]: hypotheses for place, hypotheses in zip(places, found, strict=True)}
