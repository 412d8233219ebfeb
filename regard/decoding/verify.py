"""Whether a prepared copy of a model does what the model's definition says, on random tokens.

Everything that decoding asks of a model is tried: the source is encoded, the first logits come (prefill), two hypotheses take steps and
change places between (decode), and several tokens are read in a row (append). Logits of one precision must be equal but for rounding.
Where the copy is in a smaller precision, it must expect nearly the same: the Kullback-Leibler divergence of its next tokens is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.models import Encoder, Generator, LanguageModel, Memory, Network

Part = Literal["encode", "prefill", "decode", "append", "score", "fill", "classify"]

SPREAD = 1e-4  # of the distance from the lowest logit to the highest: how far rounding in float32 may move one of them
MEAN_KL, MOST_KL = 0.02, 0.2  # nats: what a smaller precision may change, on average and at most
READ, STEPS, APPENDED = 6, 2, 3  # tokens
ROUNDINGS = 64  # of the largest number: a float32 sum of large terms can't be better than this, however small its spread is

Say = Callable[[Part, Tensor], None]


@dataclass(frozen=True)
class Difference:
    """How far a copy is from the definition in one part of decoding; infinite where it failed."""

    part: Part
    spread: float  # the largest difference, as a share of the distance from the lowest number to the highest
    mean_kl: float  # nats; of vectors, which are no logits: 1 - cosine
    most_kl: float
    rounding: float  # the share that rounding in float32 alone may make
    failed: str | None = None  # the error, where there was one

    @property
    def equal(self) -> bool:
        """Whether both are the same but for rounding in float32."""
        return self.spread <= max(SPREAD, self.rounding)

    @property
    def alike(self) -> bool:
        """Whether both expect nearly the same, as is enough for a smaller precision."""
        return self.mean_kl <= MEAN_KL and self.most_kl <= MOST_KL


@dataclass(frozen=True)
class Verification:
    """What was found in each part. `precision`: of the copy; in "float32" both must be equal, in every other one alike."""

    precision: str
    parts: tuple[Difference, ...]
    blamed: tuple[str, ...] = ()  # packed weights that alone give something else than they should

    def blaming(self, names: Sequence[str]) -> Verification:
        return replace(self, blamed=tuple(names))

    @property
    def mean_kl(self) -> float:
        """Nats a token, over all parts that expect one."""
        found = [part.mean_kl for part in self.parts if part.part != "encode"]
        return sum(found) / len(found) if found else 0.0

    @property
    def passed(self) -> bool:
        if self.precision == "float32":
            return all(part.equal for part in self.parts)
        worst = [part.most_kl <= MOST_KL and (part.part != "encode" or part.alike) for part in self.parts]
        return self.mean_kl <= MEAN_KL and all(worst)

    @property
    def wrong(self) -> Difference | None:
        """The first part that differs by more than it may; what follows differs with it."""
        if self.passed:
            return None
        off = [part for part in self.parts if not (part.equal if self.precision == "float32" else part.alike)]
        return (off or list(self.parts))[0]

    @property
    def why(self) -> str:
        """What is wrong, to follow the name of what is."""
        wrong = self.wrong
        if wrong is None:
            return "is as the definition"
        if wrong.failed:
            return f"fails at {wrong.part} ({wrong.failed})"
        where = f"at {wrong.part}" + (f", where the product of {self.blamed[0]} is off," if self.blamed else "")
        if self.precision == "float32":
            return f"differs from the definition {where} by {wrong.spread:.2g} of the spread of its numbers"
        return f"differs from the definition {where} by {wrong.mean_kl:.2g} nats on average and {wrong.most_kl:.2g} at most"


def verify(definition: Network, prepared: Network, precision: str = "float32") -> Verification:
    """Compares a copy with the model that it was prepared from. `precision`: of the copy; in "float32" both must be equal."""
    return Walked(definition).compared(prepared, precision)


class Walked:
    """What a definition gives, computed once and compared with as many copies as there are."""

    def __init__(self, definition: Network, *, score: bool = True, seed: int = 0) -> None:
        """`score`: whole targets at once too, as judging reads them."""
        self.score, self.probe = score, _Probe(definition, seed)
        self.wanted: dict[Part, Tensor] = {}
        with torch.inference_mode():
            _walk(definition, self.probe, self.wanted.__setitem__, score=score)

    @torch.inference_mode()
    def compared(self, prepared: Network, precision: str = "float32") -> Verification:
        found: dict[Part, Tensor] = {}
        failed = None
        try:
            _walk(prepared, self.probe, found.__setitem__, score=self.score)
        except Exception as error:  # whatever a substitution does to a definition that it was not made for
            failed = said(error)
        return Verification(precision, tuple(_differences(self.wanted, found, failed)))


def said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class _Probe:
    """Random tokens: two sources, one of them shorter, and what follows."""

    def __init__(self, model: Network, seed: int) -> None:
        chance, config = torch.Generator().manual_seed(seed), model.config
        alone = isinstance(model, LanguageModel)  # source and target are one text
        self.read = max(1, min(READ, config.context - (1 + STEPS + APPENDED if alone else 0)))
        self.room = min(1 + STEPS + APPENDED, config.context - (self.read if alone else 0))
        self.steps, self.appended = min(STEPS, max(0, self.room - 1)), min(APPENDED, max(0, self.room - 1 - STEPS))
        device = model.device

        def words(vocabulary: int, *shape: int) -> Tensor:
            return torch.randint(vocabulary, shape, generator=chance).to(device)

        ids = words(getattr(config, "source_vocabulary", None) or config.vocabulary, 2, self.read)
        real = torch.arange(self.read) < torch.tensor([[self.read], [max(1, self.read - 2)]])
        self.source = Tokens(ids, real.to(device), tail=True) if self.read > 1 else Tokens(ids)
        self.chosen = [words(config.vocabulary, 2, 2) for _ in range(self.steps)]
        self.added = words(config.vocabulary, 2, self.appended)
        self.target = Tokens(words(config.vocabulary, 2, min(self.read, config.context)))
        self.prefix = self.source.lengths.clamp(max=2) if getattr(config, "mask", None) == "prefix" else None


def _walk(model: Network, probe: _Probe, say: Say, *, score: bool) -> None:
    """Through all that may be asked of a model; `say` is told what comes out of each part."""
    source, real = probe.source, probe.source.real
    if isinstance(model, Encoder):
        states = model(source)
        say("encode", states if real is None else states[real])
        if model.masked_words is not None:
            say("fill", model.fill(states if real is None else states[real]))
        if model.classifier is not None:
            say("classify", model.classify(states, source))
        return
    assert isinstance(model, Generator)
    memory: Memory = model.encode(source)
    if memory.states is not None:
        say("encode", memory.states if real is None else memory.states[real])
    state, logits = model.start(memory, probe.room, 2)
    say("prefill", logits)
    found = []
    rows = torch.zeros(2, 1, dtype=torch.long, device=logits.device)
    state.select(rows.expand(2, 2))
    for step, words in enumerate(probe.chosen):
        found.append(model.step(words, state))
        # Row 0: its hypotheses change places; row 1: the second takes the place of the first.
        state.select(torch.tensor([[1, 0], [1, 1]] if step == 0 else [[1, 1], [0, 1]], device=logits.device))
    if found:
        say("decode", torch.stack(found))
    state.select(rows)
    if probe.appended:
        say("append", model.extend(probe.added, state))
    if score:
        say("score", _scored(model, probe))


def _scored(model: Generator, probe: _Probe) -> Tensor:
    logits: Tensor
    if isinstance(model, LanguageModel):
        logits, real = model(probe.source, probe.prefix), probe.source.real
        return logits if real is None else logits[real]
    logits = model(probe.source, probe.target)
    return logits


def _differences(wanted: dict[Part, Tensor], found: dict[Part, Tensor], failed: str | None) -> Iterator[Difference]:
    for part, right in wanted.items():
        if part not in found:  # it came no further
            yield failure(part, failed)
            return
        yield difference(part, right, found[part])


def failure(part: Part, why: str | None) -> Difference:
    return Difference(part, float("inf"), float("inf"), float("inf"), 0.0, why)


def difference(part: Part, wanted: Tensor, found: Tensor) -> Difference:
    """Of two tensors (…, n). What is no number in both is equal."""
    if wanted.shape != found.shape:
        return failure(part, f"its numbers are {tuple(found.shape)} and should be {tuple(wanted.shape)}")
    wanted, found = wanted.detach().double().flatten(0, -2), found.detach().double().flatten(0, -2)
    divergence = 1 - torch.cosine_similarity(wanted, found) if part == "encode" else _divergence(wanted, found)
    both = wanted.isnan() & found.isnan()
    wanted, found = wanted.masked_fill(both, 0.0), found.masked_fill(both, 0.0)
    spread = (wanted.amax(-1) - wanted.amin(-1)).clamp(min=torch.finfo(torch.float64).tiny)
    share = ((wanted - found).abs().amax(-1) / spread).max()
    rounding = (ROUNDINGS * torch.finfo(torch.float32).eps * wanted.abs().amax(-1) / spread).max()
    share = share.nan_to_num(nan=float("inf"))
    return Difference(part, float(share), float(divergence.mean()), float(divergence.max()), float(rounding))


def _divergence(wanted: Tensor, found: Tensor) -> Tensor:
    before, after = wanted.log_softmax(-1), found.log_softmax(-1)
    return (before.exp() * (before - after)).sum(-1).clamp(min=0.0)
