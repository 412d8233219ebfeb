"""A step recorded once as a graph and then replayed with new numbers in the same places: a GPU need not be told each kernel anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.data.collate import Batch
from regard.decoding.replay import Graph
from regard.nn.instead import give_up

WARM = 3  # steps before recording: what compiles, tunes or allocates has then done so
RECORDED = "a step of training"
SPARE = 1.25  # room for more documents in a row than the first has


class Graphs(Protocol):
    """What records a step on the device: everything that is done there, and nothing that Python does."""

    def aside(self, work: Callable[[], Tensor]) -> Tensor:
        """Does it now, as it will be recorded."""
        ...

    def record(self, work: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
        """A recording of it, and what that writes."""
        ...


class CudaGraphs:
    """CUDA's."""

    def aside(self, work: Callable[[], Tensor]) -> Tensor:
        """On a stream of its own, as the recording will be: what is made for a stream on first use is then made."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            figures = work()
        here.wait_stream(aside)
        return figures.clone()

    def record(self, work: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
        graph = torch.cuda.CUDAGraph()
        chance = torch.cuda.default_generators[torch.cuda.current_device()]
        before = chance.clone_state()
        try:
            # Other threads may do as they like meanwhile: the loader makes the next batches. A recording that fails leaves its stream on.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, capture_error_mode="thread_local"):
                figures = work()
        except BaseException:
            chance.graphsafe_set_state(before)  # the state that was recorded with still takes itself for recording
            raise
        return graph, figures


class Replayed:
    """Calls `learn` with a batch and its counts, and from the fourth time on replays a recording of it. Batches of other shapes are called.

    All that `learn` does must be on the device: what Python does is done once, while recording. Where that can't be recorded, all batches
    are called. Recording computes nothing, so that all there is to `forget` then is what Python did: gradients that were never computed.
    """

    def __init__(
        self, learn: Callable[[Batch, Tensor], Tensor], graphs: Graphs | None = None, forget: Callable[[], None] = lambda: None
    ) -> None:
        self.learn, self.graphs, self.forget = learn, graphs or CudaGraphs(), forget
        self.calls, self.gave_up = 0, False
        self.place: Batch | None = None  # where the recording reads from
        self.counts: Tensor | None = None
        self.recording: tuple[Graph, Tensor] | None = None  # and what it writes

    def __call__(self, batch: Batch, counts: Tensor) -> Tensor:
        if self.gave_up:
            return self.learn(batch, counts)
        if self.place is None or self.counts is None:
            self.place, self.counts = roomy(batch), counts.clone()
        if not fits(batch, self.place):
            return self.learn(batch, counts)
        self.counts.copy_(counts)
        for new, old in zip(tensors(batch), tensors(self.place), strict=True):
            put(new, old)
        self.calls += 1
        learn = partial(self.learn, self.place, self.counts)
        if self.calls <= WARM:
            return self.graphs.aside(learn)
        self.recording = self.recording or self._record(learn)
        if self.recording is None:
            return self.learn(batch, counts)
        graph, figures = self.recording
        graph.replay()
        return figures.clone()

    def _record(self, learn: Callable[[], Tensor]) -> tuple[Graph, Tensor] | None:
        try:
            return self.graphs.record(learn)
        except Exception as error:
            self.forget()
            self.gave_up, self.place, self.counts = True, None, None
            give_up(RECORDED, error)
        return None


def tensors(batch: Batch) -> list[Tensor]:
    """Every tensor of a batch, always in the same order."""
    found: list[Tensor] = []

    def take(x: Tensor) -> Tensor:
        found.append(x)
        return x

    batch.map(take)
    return found


def roomy(batch: Batch) -> Batch:
    """A copy of a batch to write others over, with room for more documents: for their edges, and where each has a label for that too."""
    place = batch.map(with_room)
    if not batch.of_documents:
        return place
    labels, counted = (x.new_zeros(int(len(x) * SPARE)) for x in (batch.labels, batch.counted))
    put(batch.labels, labels)
    put(batch.counted, counted)
    return replace(place, labels=labels, counted=counted)


def with_room(x: Tensor) -> Tensor:
    """A copy of x to write others over. Edges, which alone are in int32, get some to spare."""
    made = x.new_empty(int(len(x) * SPARE) if x.dtype == torch.int32 else x.shape)
    put(x, made)
    return made


def put(new: Tensor, old: Tensor) -> None:
    """Writes one tensor over another. Where there is room for more documents than there are, the rest are empty and count for nothing."""
    old[: len(new)].copy_(new)
    if len(new) == len(old):
        return
    if new.dtype == torch.int32:
        old[len(new) :].copy_(new[-1:].expand(len(old) - len(new)))
    else:
        old[len(new) :].zero_()


def fits(batch: Batch, place: Batch) -> bool:
    """Whether a batch can be written over that one: all shapes are the same, and it has no more edges than there is room for."""

    def shape(tokens: Tokens | None) -> object:
        return tokens and (tokens.ids.shape, tokens.longest, tokens.tail, tokens.real is None, tokens.edges is None)

    def edges(tokens: Tokens | None) -> int:
        return 0 if tokens is None or tokens.edges is None else len(tokens.edges)

    sides = ((batch.target, place.target), (batch.source, place.source))
    same = all(shape(new) == shape(old) and edges(new) <= edges(old) for new, old in sides)
    labels = len(batch.labels) <= len(place.labels) if batch.of_documents else batch.labels.shape == place.labels.shape
    places = [None if each.places is None else each.places.shape for each in (batch, place)]
    return same and labels and places[0] == places[1] and batch.prefix is None and place.prefix is None
