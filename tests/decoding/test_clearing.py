"""Slots of the cache that no hypothesis can see any more are freed, which nobody notices; and what is changed in place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding import search
from regard.decoding.many import decode_many
from regard.decoding.pack import packed
from regard.decoding.products import FloatProduct, available
from regard.decoding.runner import decode
from regard.decoding.search import BLOCK, likeliest, log_probabilities
from regard.decoding.settings import GREEDY, Beam, Method, Rules, Sampling
from regard.decoding.tree import Tree
from regard.models import state
from regard.models.state import StackState
from regard.nn.cache import Cache
from tests.decoding import plain
from tests.decoding.lively import KINDS, SOURCES, assert_same, decoded, lively

NEVER = 10**9


# Slots


@pytest.mark.parametrize("method", [Beam(size=6, n_best=6), Beam(size=6, groups=2, n_best=6)], ids=["beam", "groups"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("rnn")])
def test_freeing_slots_changes_nothing(kind: str, method: Beam, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rules, freed = lively(kind), Rules(max_length=40, min_length=40), []
    batches = [SOURCES[3:6], *([source] for source in SOURCES[6:9])]  # nothing is freed before all sources can do without it
    original = Cache.gather

    def counted(self: Cache, slots: Tensor) -> None:
        freed.append(self.used - slots.shape[1])
        original(self, slots)

    monkeypatch.setattr(Cache, "gather", counted)
    found = {}
    for every in (NEVER, 1, 4, state.CLEAR_EVERY):
        freed.clear()
        monkeypatch.setattr(state, "CLEAR_EVERY", every)
        found[every] = [outputs for part in batches for outputs in decoded(model, part, method, rules)]
        assert bool(freed) == (every != NEVER)
        assert all(count > 0 for count in freed)
        assert_same(found[every], found[NEVER])


@pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
@pytest.mark.parametrize("kind", ["relative", "rotary", "window"])
def test_nor_for_a_model_that_is_packed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rules = lively(kind, torch.float32), Rules(max_length=30, min_length=8)
    monkeypatch.setattr(state, "CLEAR_EVERY", NEVER)
    wanted = decoded(model, SOURCES[:20], Beam(size=4), rules)
    monkeypatch.setattr(state, "CLEAR_EVERY", 1)
    assert_same(decoded(packed(model, FloatProduct), SOURCES[:20], Beam(size=4), rules), wanted, 1e-4)


@torch.inference_mode()
def test_slots_are_free_again_and_the_past_of_each_is_where_it_was() -> None:
    """Everyone goes on from one hypothesis, again and again: all that the others had is freed."""
    model, rows, size = lively("gpt2"), 2, 8
    source = Tokens.pad(SOURCES[2 : 2 + rows])
    state, _ = model.start(model.encode(source), room=20, hypotheses=size)
    assert isinstance(state, StackState)
    state.select(torch.zeros(rows, size, dtype=torch.long))
    generator, texts = torch.Generator().manual_seed(0), [list(row) for row in SOURCES[2 : 2 + rows]]
    most = 0
    for position in range(12):
        words = torch.randint(3, 31, (rows, size), generator=generator)
        logits = model.step(words, state)
        parent = int(torch.randint(size, (1,), generator=generator))
        for row, text in enumerate(texts):
            text.append(int(words[row, parent]))
            own = plain.log_probabilities(model, text, ())[-1]
            torch.testing.assert_close(logits[row, parent].log_softmax(-1), own, atol=1e-9, rtol=1e-9)
        state.select(torch.full((rows, size), parent))
        most = max(most, state.cache.used)
        assert bool((state.visible.sum(2) == torch.tensor([len(text) for text in texts])[:, None]).all()), position
    assert state.cache.used == int(state.cache.next) <= most < source.ids.shape[1] + 12 * size / 2
    assert not bool(state.visible[:, :, state.cache.used :].any())


def test_gathering_is_indexing() -> None:
    cache = Cache(2, 3, 2, 10, 4, dtype=torch.float64, device=torch.device("cpu"))
    cache.claim(torch.randint(50, (3, 9)))
    for part in (cache.key, cache.value):
        part.copy_(torch.randn_like(part))
    slots = torch.tensor([[8, 0, 3], [1, 1, 2], [5, 4, 7]])
    wanted = {name: torch.stack([getattr(cache, name)[:, row, :, slots[row]] for row in range(3)], 1) for name in ("key", "value")}
    positions = cache.positions.gather(1, slots)
    cache.gather(slots)
    assert (cache.used, int(cache.next)) == (3, 3)
    assert torch.equal(cache.positions[:, :3], positions)
    assert all(torch.equal(getattr(cache, name)[:, :, :, :3], tensor) for name, tensor in wanted.items())
    assert cache.claim(torch.zeros(3, 7, dtype=torch.long)).tolist() == [3, 4, 5, 6, 7, 8, 9]


# The likeliest words


@given(
    size=st.integers(BLOCK * BLOCK - 70, BLOCK * BLOCK + 200), rows=st.integers(1, 5), count=st.integers(1, BLOCK // 4 + 2),
    levels=st.sampled_from([0, 2, 50]), off=st.sampled_from([0.0, 0.5, 0.999, 1.0]), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_likeliest_are_those_of_topk(size: int, rows: int, count: int, levels: int, off: float, seed: int) -> None:
    """Of equal ones any may be chosen, but none twice."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, rows, size, generator=generator)
    scores = (scores * levels).round() if levels else scores
    scores = scores.masked_fill(torch.rand(scores.shape, generator=generator) < off, float("-inf"))
    values, words = likeliest(scores, count)
    assert torch.equal(values, scores.topk(count, -1).values)
    assert torch.equal(scores.gather(-1, words), values)
    assert all(len(set(row)) == count for row in words.flatten(0, 1).tolist())


def test_the_likeliest_of_a_view() -> None:
    """At first all groups share one hypothesis."""
    scores = torch.randn(3, 1, 1, 5000).expand(-1, 4, -1, -1)
    assert torch.equal(likeliest(scores, 8)[1], scores.topk(8, -1).indices)


def test_a_large_vocabulary_is_looked_at_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search over blocks finds what one without does: 31 words are not many, unless a block is of five."""
    wanted = {kind: decoded(lively(kind), SOURCES, Beam(size=3, n_best=3)) for kind in ("before", "gpt2")}
    monkeypatch.setattr(search, "BLOCK", 5)
    assert search.BLOCK**2 <= 31
    for kind, outputs in wanted.items():
        assert_same(decoded(lively(kind), SOURCES, Beam(size=3, n_best=3)), outputs)


# In place


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 5), (3, 4, 1000), (2, 1, 16001)])
def test_log_probabilities_in_place(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits = (torch.randn(shape) * 5).to(dtype)
    wanted = logits.to(torch.promote_types(dtype, torch.float32)).log_softmax(-1)
    kept = logits.clone()
    assert torch.equal(log_probabilities(logits), wanted)
    assert torch.equal(logits, kept)
    across = logits.transpose(0, -1).contiguous().transpose(0, -1)  # not as it lies in memory
    torch.testing.assert_close(log_probabilities(across, in_place=True), wanted)
    found = log_probabilities(logits, in_place=True)
    torch.testing.assert_close(found, wanted)
    assert (found.data_ptr() == logits.data_ptr()) == (dtype != torch.bfloat16)


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3, n_best=2), Sampling(seed=2)], ids=["greedy", "beam", "sampling"])
@pytest.mark.parametrize("rules", [
    Rules(max_length=8, banned=((5,), (7, 8))), Rules(max_length=8, no_repeat=1), Rules(max_length=8, min_length=6),
    Rules(max_length=8, banned=((5,),), repetition_penalty=1.5),
], ids=["banned", "no_repeat", "min_length", "penalty"])  # fmt: skip
@pytest.mark.parametrize("kind", ["before", "gpt2"])
def test_what_must_be_written_has_the_model_s_own_score_whatever_the_rules_say(kind: str, rules: Rules, method: Method) -> None:
    """The rules turn words off where the scores stand, and a prefix may be made of just these words."""
    model, prefixes = lively(kind), [[5, 5, 7, 8], [2, 9], [6, 6, 6]]
    found = decoded(model, SOURCES[3:6], method, rules, prefixes=prefixes)
    for source, prefix, outputs in zip(SOURCES[3:6], prefixes, found, strict=True):
        for output in outputs:
            words = [*output.tokens, 2] if output.ended else list(output.tokens)
            assert words[: len(prefix)] == prefix[: len(words)]
            own = plain.log_probabilities(model, source, tuple(words))
            assert output.log_probabilities == pytest.approx([float(own[place, word]) for place, word in enumerate(words)], abs=1e-9)


@pytest.mark.parametrize("method", [GREEDY, Beam(size=3), Sampling(seed=2)], ids=["greedy", "beam", "sampling"])
def test_a_tree_of_words_turned_off_has_the_model_s_own_scores(method: Method) -> None:
    """Every word that is shown as ruled out, by each of several rules, has the log-probability that the model gave it."""
    model, source = lively("gpt2"), SOURCES[4]
    free = decoded(model, [source], GREEDY)[0][0].tokens
    rules = Rules(max_length=8, banned=tuple((word,) for word in range(3, 31, 2)), no_repeat=1, min_length=4)
    tree = Tree()
    with_tree = decode(model, Tokens.pad([source]), method, rules, tree=tree)
    assert with_tree == decoded(model, [source], method, rules)
    assert free != with_tree[0][0].tokens
    ruled_out = [node for node in tree.nodes if node.reason == "ruled out"]
    assert len(ruled_out) > 5
    assert {"banned"} < {node.rule for node in ruled_out}

    def words_before(number: int) -> list[int]:
        node = tree.nodes[number]
        return [] if node.parent is None or number == 0 else [*words_before(node.parent), node.word]

    for node in ruled_out:
        own = plain.log_probabilities(model, source, tuple(words_before(node.parent)))[-1]
        assert node.log_probability == pytest.approx(float(own[node.word]), abs=1e-9)


# Batches without padding


@pytest.mark.parametrize("kind", ["before", "relative", "gpt2", "prefix", "rnn-attention"])
def test_sources_of_one_length_need_no_mask(kind: str) -> None:
    model, rules = lively(kind), Rules(max_length=12)
    sources = [source for source in SOURCES if len(source) == 5]
    assert len(sources) >= 3
    together = decode_many(model, sources, Beam(size=3), rules)
    assert_same(together, decoded(model, sources, Beam(size=3), rules))
    assert_same(together, decode_many(model, [*sources, SOURCES[0]], Beam(size=3), rules)[:-1])
