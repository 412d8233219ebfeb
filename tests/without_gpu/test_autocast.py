"""Decoding within autocast, as a validation does in training: half precision from weights in float32, by the kernel of one position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.settings import Beam, Rules
from regard.models import LanguageModel, Seq2Seq, build
from regard.nn import cache, few, instead
from regard.nn.attention import Attention
from regard.nn.cache import Cache, LayerCache
from regard.presets import preset
from regard.training.precision import keep_half
from tests.without_gpu import needs_kernels

HALVES = (torch.float16, torch.bfloat16)


def small(name: str) -> Seq2Seq | LanguageModel:
    torch.manual_seed(3)
    model = build(
        preset(name, layers=2, width=64, heads=4, kv_heads=2, feedforward=48, vocabulary=60, pad_token=0, start_token=1, end_token=2)
    )
    assert isinstance(model, Seq2Seq | LanguageModel)
    return model.eval()


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel of one position would be taken on a GPU, it is."""
    served = few.served_on_gpu

    def there(device: torch.device, *asked: Any) -> bool:
        return served(torch.device("cuda"), *asked)

    for module in (few, cache):
        monkeypatch.setattr(module, "served_on_gpu", there)


@needs_kernels
@pytest.mark.parametrize("name", ["transformer-base", "gpt2", "llama-tiny"])
def test_a_validation_decodes_with_the_kernel(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16, since the interpreter has no bfloat16. The same words as without it, with nearly the same scores."""
    model, source, rules = small(name), Tokens.pad([[5, 6, 7], [9, 10, 11, 12, 13, 14], [20]]), Rules(max_length=5, min_length=5)
    keep_half(model)
    with torch.autocast("cpu", torch.float16):
        want = decode(model, source, Beam(size=2), rules)
    calls: list[torch.dtype] = []
    in_one = Attention._in_one

    def counted(self: Attention, query: Tensor, key: Tensor, *rest: Any) -> Tensor:
        calls.append(key.dtype)
        return in_one(self, query, key, *rest)

    monkeypatch.setattr(Attention, "_in_one", counted)
    request.getfixturevalue("as_on_a_gpu")
    with torch.autocast("cpu", torch.float16):
        found = decode(model, source, Beam(size=2), rules)
    assert set(calls) == {torch.float16}
    assert [row[0].tokens for row in found] == [row[0].tokens for row in want]
    for mine, others in zip(found, want, strict=True):
        assert mine[0].score == pytest.approx(others[0].score, abs=5 * 2e-3)  # of five words, each to float16's rounding


@pytest.mark.parametrize("dtype", HALVES)
def test_a_cache_is_in_what_products_come_in(dtype: torch.dtype) -> None:
    model = small("gpt2")
    assert Cache.of(model.config, model.decoder, 1, 4).key.dtype == torch.float32
    with torch.autocast("cpu", dtype):
        assert Cache.of(model.config, model.decoder, 1, 4).key.dtype == dtype
        double = small("gpt2").double()
        assert Cache.of(double.config, double.decoder, 1, 4).key.dtype == torch.float64


@pytest.mark.parametrize("dtype", HALVES)
def test_a_cache_of_another_kind_is_read_by_the_definition(dtype: torch.dtype, as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries in half precision over keys in float32: no kernel multiplies these. It is said once, and nothing else happens."""
    monkeypatch.setattr(instead, "_told", set())
    attention = Attention(64, 4).eval().to(dtype)
    layer = LayerCache(*(torch.zeros(1, 4, 8, 16) for _ in range(2)), torch.tensor([0]), 8)
    with torch.no_grad(), torch.autocast("cpu", dtype):
        with pytest.warns(
            UserWarning,
            match=rf"attention of one position has a faster way on a GPU, but its operands are in {str(dtype)[6:]} and float32; PyTorch",
        ):
            first = attention(torch.ones(1, 1, 64), cache=layer)
        assert torch.equal(attention(torch.ones(1, 1, 64), cache=layer), first)
    assert layer.key[:, :, 0].any()
