"""A compiled decoder: the same words, and nothing is compiled again once it is warm."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.settings import Beam, Length, Method, Rules, Sampling
from regard.models import Generator, LanguageModel, Seq2Seq
from tests.families import sentences, small

METHODS: list[Method] = [Beam(size=3), Beam(size=1), Sampling(seed=4)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer-base", "llama-tiny"])
def test_compiled_decoding_never_recompiles_after_warm_up(name: str) -> None:
    """Batches of other sizes and lengths, and outputs long enough that more and more of the cache is read."""
    model = small(name, context=400)
    assert isinstance(model, Generator)
    assert isinstance(model, Seq2Seq | LanguageModel)
    batches = [Tokens.pad(sentences(*lengths, seed=len(lengths))) for lengths in ([4, 6], [7, 3, 9], [5] * 6, [11, 2, 2, 8])]
    rules = Rules(max_length=Length(plus=150))
    want = [[decode(model, batch, method, rules) for batch in batches] for method in METHODS]
    model.decoder.compile(dynamic=True)
    torch._dynamo.reset()
    for method in METHODS:
        for batch in batches[:2]:
            decode(model, batch, method, rules)
    counters = torch._dynamo.utils.counters
    graphs = counters["stats"]["unique_graphs"]
    for method, wanted in zip(METHODS, want, strict=True):
        for batch, expected in zip(batches, wanted, strict=True):
            found = decode(model, batch, method, rules)
            assert [[h.tokens for h in each] for each in found] == [[h.tokens for h in each] for each in expected]
    assert counters["stats"]["unique_graphs"] == graphs
