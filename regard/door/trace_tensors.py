"""From what a pass named (`nn/tap.py`) to what a trace shows: attention by kind, and the vectors of every stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from regard.door.trace_types import Layer, Looks, Norm, SubLayer, Vectors
from regard.nn.attention import Attention
from regard.nn.layers import AddNorm, Block, Stack
from regard.nn.tap import Taps

Side = Literal["source", "target"]


@dataclass(frozen=True)
class Kept:
    """Which layers, heads and positions are kept; None, or a sentence that is not named: all."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    positions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def rows(self, side: str, length: int) -> tuple[int, ...]:
        return tuple(place for place in self.positions.get(side, range(length)) if 0 <= place < length)


def looks(taps: Taps, stack: Stack, kind: str, kept: Kept, query: Side, key: Side, length: int, *, weights: bool) -> Looks | None:
    """Attention of one kind in all kept layers of a stack; None where there is none. `weights`: whether they were asked for."""
    name, module = ("decoder", "cross") if kind == "cross" else (kind, "attention")
    layers = [number for number in range(len(stack.layers)) if kept.layers is None or number in kept.layers]
    first = getattr(stack.layers[0], module)
    if not layers or first is None:
        return None
    assert isinstance(first, Attention)
    heads = tuple(range(first.heads)) if kept.heads is None else kept.heads
    group = first.heads // first.kv_heads
    keys = sorted({head // group for head in heads})  # the key heads that these use
    rows = kept.rows(query, length)

    def gathered(what: str, which: Sequence[int], places: Sequence[int] | None = None) -> Tensor | None:
        names = [f"{name}.layers.{layer}.{module}.{what}" for layer in layers]
        if not all(full in taps for full in names):
            return None
        found = torch.stack([taps[full][0, list(which)] for full in names]).float().cpu()  # (layers, heads, …)
        return found if places is None else found[:, :, list(places)]

    mask = taps.get(f"{name}.layers.{layers[0]}.{module}.mask")
    return Looks(
        *("scaled", query, key, tuple(layers), heads),
        kv=tuple(keys.index(head // group) for head in heads),
        rows=rows,
        weights=gathered("weights", heads) if weights else None,
        scores=gathered("scores", heads),
        mask=None if mask is None else mask[0, 0].expand(length, -1).cpu(),
        q=gathered("query", heads, rows),
        k=gathered("key", keys),
        v=gathered("value", keys),
    )


def recurrent_looks(taps: Taps, length: int) -> Looks:
    weights = taps["decoder.attention.weights"].float().cpu()  # (1, target, source)
    return Looks("additive", "target", "source", (0,), (0,), (0,), tuple(range(length)), weights=weights[None])


def stack_vectors(taps: Taps, name: str, stack: Stack, kept: Kept, side: str, length: int) -> Vectors:
    rows = kept.rows(side, length)

    def at(what: str) -> Tensor | None:
        found = taps.get(f"{name}.{what}")
        return None if found is None else found[0, list(rows)].float().cpu()

    def sublayer(path: str, around: nn.Module | None, inner: bool = False) -> SubLayer:
        assert isinstance(around, AddNorm)
        return SubLayer(at(f"{path}.output"), norm_of(around.norm), at(f"{path}.inner") if inner else None)

    layers = []
    for number, layer in enumerate(stack.layers):
        assert isinstance(layer, Block)
        if kept.layers is not None and number not in kept.layers:
            continue
        path = f"layers.{number}"
        layers.append(
            Layer(
                number,
                at(f"{path}.input"),
                sublayer(f"{path}.attention", layer.attention_add),
                sublayer(f"{path}.feedforward", layer.feedforward_add, inner=True),
                None if layer.cross is None else sublayer(f"{path}.cross", layer.cross_add),
            )
        )
    embeddings, placed = at("embeddings"), at("placed")
    added = None if embeddings is None or placed is None else placed - embeddings
    return Vectors(
        rows,
        embeddings,
        None if added is None or not added.any() else added,  # schemes inside attention add nothing here
        norm_of(stack.embedding_norm),
        tuple(layers),
        norm_of(stack.norm),
    )


def norm_of(module: nn.Module) -> Norm | None:
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        bias = getattr(module, "bias", None)
        return Norm(module.weight.detach().float().cpu(), None if bias is None else bias.detach().float().cpu())
    return None  # there is none at this place


def recurrent_vectors(taps: Taps, name: str, kept: Kept, side: str, length: int) -> Vectors:
    rows = kept.rows(side, length)

    def at(what: str) -> Tensor | None:
        found = taps.get(f"{name}.{what}")
        return None if found is None else found[0, list(rows)].float().cpu()

    return Vectors(rows, at("embeddings"), states=at("states"), contexts=at("contexts"))
