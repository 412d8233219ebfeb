"""The kernel for one position on a GPU: the formula of the paper, a cache that is written, and decoding that comes out the same."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.decoding.runner import decode
from regard.decoding.settings import Beam, Rules
from regard.models import build
from regard.nn import few, joined
from regard.nn.cache import KeyValues
from regard.nn.masks import Mask
from regard.presets import preset

pytestmark = pytest.mark.gpu
WITHIN = {torch.bfloat16: 2e-2, torch.float16: 3e-3}


def formula(query: Tensor, key: Tensor, value: Tensor, visible: Tensor | None, scale: float) -> Tensor:
    """In float64: (rows, queries, heads × width). Who sees nothing has nothing."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, 1) for x in (key, value))
    scores = query.double() @ key.transpose(2, 3) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dtype", WITHIN)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "width"), [(8, 8, 1, 64), (8, 8, 4, 64), (12, 4, 5, 128), (4, 1, 3, 16), (6, 6, 16, 32)]
)
@pytest.mark.parametrize("used", [1, 63, 64, 200])
def test_a_cache_is_written_and_read(dtype: torch.dtype, heads: int, kv_heads: int, queries: int, width: int, used: int) -> None:
    from regard.nn.one_query import attend

    torch.manual_seed(used)
    rows, capacity = 3, 256
    keys, values = (torch.randn(rows, kv_heads, capacity, width, device="cuda", dtype=dtype) for _ in range(2))
    keys[:, :, used + queries :], values[:, :, used + queries :] = float("nan"), float("nan")  # what is not used is not looked at
    query = torch.randn(rows, queries, heads, width, device="cuda", dtype=dtype).transpose(1, 2)
    new = KeyValues(*(torch.randn(rows, queries, kv_heads, width, device="cuda", dtype=dtype).transpose(1, 2) for _ in range(2)))
    visible = torch.rand(rows, 1, queries, capacity, device="cuda") < 0.7
    visible[1, :, 0] = False
    slots = torch.arange(used, used + queries, device="cuda")
    before = keys[:, :, :used].clone()
    got = attend(query, keys, values, Mask(visible), width**-0.5, new=new, slots=slots)
    end = used + queries
    assert torch.equal(keys[:, :, :used], before)
    assert torch.equal(keys[:, :, used:end], new.key)
    assert torch.equal(values[:, :, used:end], new.value)
    want = formula(query, keys[:, :, :end], values[:, :, :end], visible[..., :end], width**-0.5)
    assert not got[1, 0].any()
    assert float((got.double() - want).abs().max()) < WITHIN[dtype]


@pytest.mark.parametrize("masked", [True, False])
def test_a_source_is_read(masked: bool) -> None:
    from regard.nn.one_query import attend

    torch.manual_seed(0)
    keys, values = (torch.randn(5, 8, 37, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    query = torch.randn(5, 8, 4, 64, device="cuda", dtype=torch.bfloat16)
    visible = (
        (torch.arange(37, device="cuda") < torch.tensor([37, 1, 20, 36, 5], device="cuda")[:, None])[:, None, None] if masked else None
    )
    got = attend(query, keys, values, Mask(visible), 0.125)
    assert float((got.double() - formula(query, keys, values, visible, 0.125)).abs().max()) < WITHIN[torch.bfloat16]


@pytest.mark.parametrize("place", ["before", "after"])
def test_sums_and_norms_in_one_kernel_are_those_apart(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    config = preset("transformer-base", layers=3, width=96, heads=4, feedforward=128, vocabulary=50, norm_place=place)
    model = build(config).eval().to("cuda", torch.float16)
    source, target = (Tokens.pad([[5, 6, 7], [9, 10, 11, 12]], device="cuda") for _ in range(2))
    used = []
    monkeypatch.setattr(joined, "run", lambda *given, run=joined.run, **more: used.append(1) or run(*given, **more))
    with torch.inference_mode():
        got = model(source, target)
        assert len(used) == 2
        monkeypatch.setattr(joined, "HAS_TRITON", False)
        want = model(source, target)
    assert len(used) == 2
    torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("kind", ["transformer-base", "gpt2", "llama-tiny"])
@pytest.mark.parametrize("size", [1, 4])
def test_decoding_with_it_is_decoding_without(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    shape = {"layers": 2, "width": 128, "heads": 4, "kv_heads": 4, "feedforward": 256, "vocabulary": 200}
    model = build(preset(kind, **shape, pad_token=0, start_token=1, end_token=2)).eval().to("cuda", torch.float16)
    source = Tokens.pad([[5, 6, 7], [9, 10, 11, 12, 13, 14], [20]], device="cuda")
    rules = Rules(max_length=24, min_length=24)
    with_it = decode(model, source, Beam(size=size), rules)
    monkeypatch.setattr(few, "HAS_TRITON", False)
    monkeypatch.setattr(joined, "HAS_TRITON", False)
    without = decode(copy.deepcopy(model), source, Beam(size=size), rules)
    for mine, others in zip(with_it, without, strict=True):
        assert mine[0].score == pytest.approx(others[0].score, abs=0.02)
