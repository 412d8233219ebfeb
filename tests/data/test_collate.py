"""Batches: shifted, masked and laid out as the task has it, the same examples whatever the layout or the share."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.collate import Batch, Form
from regard.data.loader import Cursor, Share, steps
from regard.data.noise import uniform
from regard.data.plan import Plan, make_plan
from regard.data.store import Item, Store, cached_store


def store_of(tmp_path: Path, count: int = 40, **more: Any) -> Store:
    random = np.random.default_rng(0)

    def sequence() -> list[int]:
        return [1, *random.integers(4, 50, random.integers(0, 12)).tolist(), 2]

    return cached_store(tmp_path, "k", 50, [[Item(sequence(), sequence(), label=index % 3) for index in range(count)]], print)


FORM = Form("translate", seed=3, max_length=16, vocabulary=50)


def contents(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """What each sequence reads and is asked for, whatever the layout."""
    if batch.target.edges is None:
        return [
            (ids[real].tolist(), labels[real].tolist())
            for ids, labels, real in zip(batch.target.ids, batch.labels, batch.target.real, strict=True)
        ]
    edges = batch.target.edges.tolist()
    found = [(batch.target.ids[0, a:b].tolist(), batch.labels[0, a:b].tolist()) for a, b in pairwise(edges) if b > a]
    counted = [bool(batch.counted[0, a:b].all()) for a, b in pairwise(edges) if b > a]
    return [pair for pair, counts in zip(found, counted, strict=True) if counts]


def test_the_target_is_shifted_by_its_start(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    indices = np.array([3, 0, 7])
    batch = FORM.collate(store, indices, epoch=0)
    for index, (read, labels) in zip(indices.tolist(), contents(batch), strict=True):
        whole = store.target[index].tolist()
        assert (read, labels) == (whole[:-1], whole[1:])
    assert batch.count == sum(len(store.target[index]) - 1 for index in indices)
    assert batch.source is not None
    assert batch.source.real is not None
    assert [ids[real].tolist() for ids, real in zip(batch.source.ids, batch.source.real, strict=True)] == [
        store.source[i].tolist() for i in indices
    ]  # type: ignore[index]
    assert (batch.labels[~batch.counted] == 0).all()


@pytest.mark.parametrize("task", ["translate", "lm"])
def test_packed_holds_what_padded_holds(tmp_path: Path, task: Any) -> None:
    store, indices = store_of(tmp_path), np.array([3, 0, 7, 39, 20])
    padded = replace(FORM, task=task).collate(store, indices, 0)
    packed = replace(FORM, task=task, packed=96).collate(store, indices, 0)
    assert contents(packed) == contents(padded)
    assert packed.count == padded.count
    assert packed.target.ids.shape == (1, 96)
    assert packed.target.edges is not None
    assert int(packed.target.edges.diff().max()) <= packed.target.longest == 16
    assert packed.target.edges[-1] == 96
    if packed.source is not None:
        assert packed.source.edges is not None
        assert packed.source.edges.shape == packed.target.edges.shape  # document by document, kernels go through both


def test_masked_words(tmp_path: Path) -> None:
    """15 % chosen; of these 80 % masked, 10 % replaced, 10 % left; never a special token; another choice in another epoch."""
    random = np.random.default_rng(0)
    store = cached_store(tmp_path, "k", 1000, [[Item([1, *random.integers(4, 1000, 198).tolist(), 2]) for _ in range(300)]], print)
    form = replace(FORM, task="mlm", max_length=256, vocabulary=1000)
    batch = form.collate(store, np.arange(300), epoch=0)
    original = torch.from_numpy(np.stack([store.target[i] for i in range(300)]).astype(np.int64))
    width = original.shape[1]
    ids, counted = batch.target.ids[:, :width], batch.counted[:, :width]
    assert torch.equal(batch.labels[:, :width], original)
    assert torch.equal(ids[~counted], original[~counted])
    assert not counted[:, 0].any()
    assert not counted[:, width - 1].any()
    chosen = counted[:, 1:-1].float().mean()
    masked = (ids[counted] == 3).float().mean()
    kept = (ids[counted] == original[counted]).float().mean()
    assert chosen == pytest.approx(0.15, abs=0.006)
    assert masked == pytest.approx(0.8, abs=0.015)
    assert kept == pytest.approx(0.1, abs=0.012)
    assert ids[counted].min() >= 3
    assert batch.count == int(counted.sum())
    assert not torch.equal(form.collate(store, np.arange(300), epoch=1).counted, batch.counted)


def test_noise_belongs_to_the_example(tmp_path: Path) -> None:
    """The same words are masked whether an example comes alone, in another order, or packed."""
    store = store_of(tmp_path)
    form = replace(FORM, task="mlm", mask_share=0.5)
    together = form.collate(store, np.array([5, 9, 2]), epoch=4)
    for row, index in enumerate((5, 9, 2)):
        alone = form.collate(store, np.array([index]), epoch=4)
        length = len(store.target[index])
        assert torch.equal(together.target.ids[row, :length], alone.target.ids[0, :length])
        assert torch.equal(together.counted[row, :length], alone.counted[0, :length])
    packed = replace(form, packed=64).collate(store, np.array([5, 9, 2]), epoch=4)
    assert packed.count == together.count


def test_uniform_numbers_are_uniform_and_repeat() -> None:
    numbers = uniform(7, 1, np.arange(1000)[:, None], np.arange(50))
    assert numbers.shape == (1000, 50)
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 2500) ** 2 / 2500).sum() < 45  # chi-square, 19 degrees of freedom, far below one in a thousand
    assert abs(np.corrcoef(numbers[:, 0], numbers[:, 1])[0, 1]) < 0.1
    assert np.array_equal(numbers, uniform(7, 1, np.arange(1000)[:, None], np.arange(50)))
    assert not np.array_equal(numbers, uniform(8, 1, np.arange(1000)[:, None], np.arange(50)))


def test_a_prefix_is_given_and_not_foretold(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    form = replace(FORM, task="lm", prefix_share=0.8)
    padded = form.collate(store, np.arange(20), 0)
    assert padded.prefix is not None
    assert int(padded.prefix.max()) > 0
    for row, given in enumerate(padded.prefix.tolist()):
        length = len(store.target[row]) - 1
        assert given <= 0.8 * length
        assert padded.counted[row, :length].tolist() == [place >= given - 1 for place in range(length)]
    packed = replace(form, packed=256).collate(store, np.arange(20), 0)
    assert packed.count == padded.count
    assert packed.prefix is not None
    assert packed.prefix[:20].tolist() == padded.prefix.tolist()
    assert packed.prefix.shape == packed.target.lengths.shape


def test_what_an_example_gives_is_not_foretold(tmp_path: Path) -> None:
    """A source and its target in one stack: only the target counts, and a prefix mask lets the source see itself whole."""
    store = cached_store(tmp_path, "k", 50, [[Item([5, 6, 7, 2, 8, 9, 2], given=4), Item([5, 2, 8, 2], given=2)]], print)
    both = np.array([0, 1])
    causal = FORM.collate(store, both, 0)
    assert causal.prefix is None
    assert causal.source is None
    asked = [labels[counted].tolist() for labels, counted in zip(causal.labels, causal.counted, strict=True)]
    assert asked == [[8, 9, 2], [8, 2]]
    assert causal.count == 5
    assert causal.target.ids[0, :6].tolist() == [5, 6, 7, 2, 8, 9]
    prefixed = replace(FORM, prefix_share=0.5).collate(store, both, 3)
    assert prefixed.prefix is not None
    assert prefixed.prefix.tolist() == [4, 2]
    packed = replace(FORM, prefix_share=0.5, packed=32).collate(store, both, 0)
    assert packed.prefix is not None
    assert packed.prefix[:2].tolist() == [4, 2]
    assert packed.labels[packed.counted].tolist() == [8, 9, 2, 8, 2]


def stream_of(tmp_path: Path, lengths: tuple[int, ...], step: int) -> Store:
    """Texts that count upwards, in pieces that share their ends."""
    texts, first = [], 4
    for length in lengths:
        text = list(range(first, first + length))
        texts.append([Item(text[start : start + step + 1]) for start in range(0, length - 1, step)])
        first += length
    store = cached_store(tmp_path, str(lengths), 10000, texts, print)
    return replace(store, stream=step)


@pytest.mark.parametrize("packed", [None, 256])
@pytest.mark.parametrize("lengths", [(41,), (33, 24, 9), (5, 17)])
def test_a_stream_is_cut_elsewhere_in_every_epoch(tmp_path: Path, lengths: tuple[int, ...], packed: int | None) -> None:
    """Pieces of one text, as many and as long as before, in which each token is followed by the next; the last ends with the text."""
    store = stream_of(tmp_path, lengths, 8)
    ends = np.cumsum(lengths) + 3  # the last token of each text
    form = replace(FORM, task="lm", vocabulary=10000, packed=packed)
    every = np.arange(len(store))
    sizes = [len(store.target[index]) - 1 for index in every]
    cuts = set()
    for epoch in range(40):
        pieces = contents(form.collate(store, every, epoch))
        assert [len(read) for read, _ in pieces] == sizes
        for read, labels in pieces:
            assert read == list(range(read[0], read[0] + len(read)))
            assert labels == [token + 1 for token in read]
        text_of = [np.searchsorted(ends, [read[0], labels[-1]]).tolist() for read, labels in pieces]
        assert all(one == other for one, other in text_of)
        assert {labels[-1] for _, labels in pieces} >= set(ends.tolist())
        cuts.add(pieces[0][0][0])
    assert len(cuts) >= (7 if lengths[0] > 16 else 1)


def test_labels(tmp_path: Path) -> None:
    batch = replace(FORM, task="classify").collate(store_of(tmp_path), np.array([4, 5]), 0)
    assert batch.labels.tolist() == [1, 2]
    assert batch.count == 2


def plan_of(store: Store) -> Any:
    def plan(epoch: int) -> Plan:
        return make_plan(store.lengths, batch_tokens=64, seed=1, epoch=epoch)

    return plan


def test_a_cursor_continues_with_the_very_next_batch(tmp_path: Path) -> None:
    store, device = store_of(tmp_path), torch.device("cpu")
    whole = steps(store, plan_of(store), FORM, Share(), Cursor(), device)
    seen = [next(whole) for _ in range(len(plan_of(store)(0)) + 5)]  # into the second epoch
    whole.close()
    for index in (0, 3, len(plan_of(store)(0)) - 1, len(plan_of(store)(0))):
        resumed = steps(store, plan_of(store), FORM, Share(), seen[index].after, device)
        following = next(resumed)
        resumed.close()
        assert torch.equal(following.parts[0].target.ids, seen[index + 1].parts[0].target.ids)
        assert following.after == seen[index + 1].after


def test_shares_are_the_whole(tmp_path: Path) -> None:
    """Two processes of three parts each have between them what one process has in one."""
    store, device = store_of(tmp_path), torch.device("cpu")
    alone = steps(store, plan_of(store), FORM, Share(), Cursor(), device)
    shared = [steps(store, plan_of(store), FORM, Share(rank, 2, 3), Cursor(), device) for rank in range(2)]
    for _ in range(12):
        want, parts = next(alone).parts[0], [part for share in shared for part in next(share).parts]
        assert len(parts) == 6
        assert sum(part.count for part in parts) == want.count
        assert sorted(pair for part in parts if part.count for pair in contents(part)) == sorted(contents(want))
    for iterator in (alone, *shared):
        iterator.close()


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_parts_of_packed_rows_lose_nothing(tmp_path: Path, processes: int, accumulate: int) -> None:
    """However unevenly long the examples are, every part fits into its row, and all of them are there."""
    random = np.random.default_rng(1)
    lengths = np.clip(random.lognormal(3, 0.9, 600), 2, 129).astype(int).tolist()
    store = cached_store(tmp_path, "k", 50, [[Item([1, *[5] * (length - 1)], [4] * min(length, 128)) for length in lengths]], print)
    plan = make_plan(store.lengths, batch_tokens=1000, seed=1, epoch=0, packed=True)
    form = replace(FORM, max_length=129, packed=-(-1000 // (processes * accumulate)) + 130)
    shares = [
        steps(store, lambda epoch: plan, form, Share(rank, processes, accumulate), Cursor(), torch.device("cpu"))
        for rank in range(processes)
    ]
    counted = 0
    for _ in range(len(plan)):
        for share in shares:
            for part in next(share).parts:
                counted += part.count
                assert part.target.edges is not None
                assert (part.target.edges.diff() >= 0).all()
                assert part.count == int(part.counted.sum())
    for share in shares:
        share.close()
    assert counted == sum(length - 1 for length in lengths)


def test_trouble_does_not_keep_the_loader_from_closing(tmp_path: Path) -> None:
    """An error that waits behind full hands must not hold up whoever has had enough."""
    store = store_of(tmp_path)

    def breaks(epoch: int) -> Plan:
        if epoch:
            raise RuntimeError("no second epoch")
        return Plan(plan_of(store)(0).batches[:6])

    flow = steps(store, breaks, FORM, Share(), Cursor(), torch.device("cpu"))
    next(flow)
    flow.close()


def test_trouble_in_the_thread_is_heard(tmp_path: Path) -> None:
    def broken(epoch: int) -> Plan:
        raise RuntimeError("no plan")

    with pytest.raises(RuntimeError, match="no plan"):
        next(steps(store_of(tmp_path), broken, FORM, Share(), Cursor(), torch.device("cpu")))
