"""What a trace is: every intermediate of one pass, by the names that the notes give them. docs/trace.md says what each holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import Tensor

from regard.decoding.tree import Node, Tree
from regard.door.results import Filled, Labelled, Written
from regard.door.schemes import Schemes
from regard.door.shown import Short, shown

Part = Literal["search", "output", "weights", "scores", "qkv", "vectors", "inner", "schemes"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, repr=False)
class Sentence(Short):
    """The tokens that a stack read."""

    tokens: tuple[str, ...]
    ids: tuple[int, ...]
    special: tuple[bool, ...]  # those that stand for no text
    words: tuple[int, ...]  # the number of the word that each is part of


@dataclass(frozen=True, repr=False)
class Target(Sentence):
    """The same for a decoder, and what it wrote: position i read token i and gave the probabilities of `next` i."""

    given: int  # tokens that were there before the first was chosen
    next: Sentence


@dataclass(frozen=True, repr=False)
class Looks(Short):
    """Attention of one kind, for the layers and heads that were kept. Scores, keys and values are whole; queries are of `rows`."""

    kind: Literal["scaled", "additive"]
    query: Literal["source", "target"]
    key: Literal["source", "target"]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv: tuple[int, ...]  # for each head, which of the keys and values it uses
    rows: tuple[int, ...]
    weights: Tensor | None = None  # (layers, heads, query, key)
    scores: Tensor | None = None
    mask: Tensor | None = None  # (query, key), True: may see; None: all may
    q: Tensor | None = None  # (layers, heads, rows, head_width)
    k: Tensor | None = None  # (layers, key heads, key, head_width)
    v: Tensor | None = None


@dataclass(frozen=True, repr=False)
class Norm(Short):
    """γ and β."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, repr=False)
class SubLayer(Short):
    """What attention or the feed-forward gives, before it is added, and the norm on its path."""

    output: Tensor | None  # (rows, width)
    norm: Norm | None
    inner: Tensor | None = None  # (rows, feedforward), after the activation


@dataclass(frozen=True, repr=False)
class Layer(Short):
    layer: int
    input: Tensor | None  # (rows, width)
    attention: SubLayer
    feedforward: SubLayer
    cross: SubLayer | None = None


@dataclass(frozen=True, repr=False)
class Vectors(Short):
    """What became of each token's vector in one stack; of a recurrent one, its states."""

    rows: tuple[int, ...]
    embeddings: Tensor | None = None  # (rows, width)
    positions: Tensor | None = None  # what is added to them
    embedding_norm: Norm | None = None
    layers: tuple[Layer, ...] = ()
    norm: Norm | None = None  # after the last layer
    states: Tensor | None = None
    contexts: Tensor | None = None


@dataclass(frozen=True)
class Word:
    """A token as it could be, or was, written."""

    token: str
    id: int
    logit: float
    probability: float
    rank: int  # 0: the likeliest


@dataclass(frozen=True, repr=False)
class Output(Short):
    """The likeliest words at some places, best first, by the model's own logits."""

    places: tuple[int, ...]
    words: tuple[tuple[Word, ...], ...]
    chosen: tuple[Word, ...] | None  # what was written at each
    logsumexp: tuple[float, ...]
    entropy: tuple[float, ...]  # in nats


@dataclass(frozen=True, repr=False)
class LabelOutput(Short):
    """The logits of each label, and the one vector that they were made from."""

    labels: tuple[str, ...]
    logits: Tensor  # (labels,)
    pooled: Tensor  # (width,)


@dataclass(frozen=True, repr=False)
class Search(Short):
    """How the output was found."""

    method: Literal["beam", "greedy", "sampling"]
    settings: Mapping[str, Any]
    rules: Mapping[str, Any]
    tree: Tree
    tokens: tuple[str, ...]  # of each node

    @property
    def nodes(self) -> list[Node]:
        return self.tree.nodes


@dataclass(frozen=True, repr=False)
class Trace:
    """Every intermediate of one pass. Parts that were not asked for, or that the family does not have, are None or empty."""

    model: Mapping[str, Any]
    verb: str
    text: str
    to: str | None
    answer: Written | Labelled | Filled | Tensor
    source: Sentence | None = None
    target: Target | None = None
    alignment: Tensor | None = None  # (outputs, source)
    search: Search | None = None
    output: Output | LabelOutput | None = None
    attention: Mapping[str, Looks] = field(default_factory=dict)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    schemes: Schemes | None = None

    def __repr__(self) -> str:
        """What was asked and answered, and a line for each part that is there."""
        answer = self.answer if isinstance(self.answer, Tensor) else str(self.answer)
        to = "" if self.to is None else f" to {shown(self.to)}"
        has = {side: None if own is None else shown(own.tokens) for side, own in (("source", self.source), ("target", self.target))}
        if self.search is not None:
            has["search"] = f"{self.search.method}, {len(self.search.nodes):,} nodes"
        if self.output is not None:
            has["output"] = f"{len(self.output.words)} places" if isinstance(self.output, Output) else shown(self.output.labels)
        has["alignment"] = None if self.alignment is None else shown(self.alignment)
        has["attention"] = ", ".join(f"{kind} {shown(own.weights)}" for kind, own in self.attention.items())
        has["vectors"] = ", ".join(f"{stack} of {len(own.rows)} tokens in {len(own.layers)} layers" for stack, own in self.vectors.items())
        has["schemes"] = None if self.schemes is None else ", ".join(self.schemes.each)
        first = f"Trace of {shown(self.model.get('name'))}: {self.verb} {shown(self.text)}{to} gives {shown(answer)}"
        return "\n".join([first, *(f"  {name}: {what}" for name, what in has.items() if what)])
