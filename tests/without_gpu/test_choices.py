"""Which way a GPU takes, as a table: asked with tensors that say they are on a GPU and hold nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.nn import backends, few, instead, joined
from regard.nn.masks import Boundaries, Mask, Packed
from regard.training import fused, loss
from tests.without_gpu import needs_kernels

pytestmark = needs_kernels
F32, BF16, F16, F64 = torch.float32, torch.bfloat16, torch.float16, torch.float64


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for known in ("_told", "_given_up"):
        monkeypatch.setattr(instead, known, set())
    monkeypatch.setattr(instead, "_started", {})
    with FakeTensorMode():
        yield


@contextmanager
def autocast(dtype: torch.dtype | None) -> Iterator[None]:
    """That of a GPU, which `torch.autocast` refuses to be where there is none."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", dtype is not None)
    torch.set_autocast_dtype("cuda", dtype or BF16)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def there(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.empty(shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize(
    ("query", "cache", "served"),
    [(BF16, BF16, True), (F16, F16, True), (F32, F32, False), (BF16, F32, None), (F16, BF16, None), (F64, F64, False)],
)
@torch.no_grad()
def test_attention_of_one_position(query: torch.dtype, cache: torch.dtype, served: bool | None) -> None:
    """None: the definition, and it is said."""
    given = there(2, 4, 1, 64, dtype=query), [there(2, 4, 8, 64, dtype=cache)] * 2, None, None
    if served is None:
        with pytest.warns(UserWarning, match="attention of one position"):
            assert not few.few_on_gpu(*given)
    else:
        assert few.few_on_gpu(*given) is served
    with torch.enable_grad():
        assert not few.few_on_gpu(*given)
    assert not few.few_on_gpu(given[0], given[1], None, there(2, 4, 1, 8))


@pytest.mark.parametrize("cast", [None, BF16])
@pytest.mark.parametrize(("weights", "x", "served"), [(BF16, BF16, True), (F16, F16, True), (F32, BF16, False), (F32, F32, False)])
@torch.no_grad()
def test_a_product_with_its_activation(weights: torch.dtype, x: torch.dtype, served: bool, cast: torch.dtype | None) -> None:
    linear = nn.Linear(8, 8, device="meta").eval()
    linear.weight, linear.bias = (nn.Parameter(there(*shape, dtype=weights)) for shape in ((8, 8), (8,)))
    with autocast(cast):
        assert joined.activates("relu", linear, there(2, 1, 8, dtype=x)) == (served and cast is None)


@pytest.mark.parametrize(("x", "cast", "served"), [(BF16, BF16, True), (F16, F16, True), (F32, BF16, False), (BF16, None, False)])
def test_layers_made_for_training(x: torch.dtype, cast: torch.dtype | None, served: bool) -> None:
    with autocast(cast):
        assert fused.halved(there(2, 8, dtype=x)) == served


def test_norms_of_other_kinds_are_not_joined() -> None:
    x, layer, root = there(2, 1, 8, dtype=BF16), nn.LayerNorm(8, device="cuda"), nn.RMSNorm(8, device="cuda")
    assert joined.joins([layer, layer], x)
    assert not joined.joins([layer, root], x)
    assert not joined.joins([layer, nn.LayerNorm(8, bias=False, device="cuda")], x)


@pytest.mark.parametrize(("dtype", "served"), [(BF16, True), (F16, True), (F32, True), (F64, False)])
def test_the_loss(dtype: torch.dtype, served: bool) -> None:
    if served:
        assert loss._served(there(3, 8, dtype=dtype))
    else:
        with pytest.warns(UserWarning, match="its logits are in float64"):
            assert not loss._served(there(3, 8, dtype=dtype))


def fails(*given: object, **named: object) -> torch.Tensor:
    raise RuntimeError("no kernel image is available")


@pytest.mark.parametrize(("dtype", "served"), [(BF16, True), (F16, False)])
def test_short_documents(dtype: torch.dtype, served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their kernels can't be started in a dtype, those for long ones do it, and it is said once."""
    edges, taken = Boundaries(torch.empty(3, device="cuda", dtype=torch.int32), 16), []

    def short(query: torch.Tensor, *given: object) -> torch.Tensor:
        taken.append("short")
        return query * 1.0 if query.dtype == BF16 else fails()

    monkeypatch.setattr(backends, "_attend_short", short)
    monkeypatch.setattr(backends, "_attend_long", lambda query, *given: taken.append("long") or query)
    monkeypatch.setattr(backends, "_try", lambda attend, dtype, device, width: attend(there(1, 1, 32, width, dtype=dtype)))
    query, mask = there(1, 2, 32, 16, dtype=dtype), Mask(packed=Packed(edges, edges, True, None))

    def attend() -> None:
        taken.clear()
        backends.varlen(query, query, query, mask=mask, bias=None, scale=1.0, dropout=0.0)

    if served:
        attend()
    else:
        with pytest.warns(UserWarning, match=r"attention of short documents .* can't be started \(no kernel image is available\)"):
            attend()
    attend()
    assert taken == ["short" if served else "long"]


def test_packed_rows_want_kernels_that_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "HAS_TRITON", False)
    monkeypatch.setattr(backends, "_attend_long", fails)
    with pytest.warns(UserWarning, match="attention of packed documents has a faster way on a GPU"):
        assert not backends.varlen_starts(BF16, torch.device("cpu"), 64)


def test_a_wide_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "mm", fails)
    with pytest.warns(UserWarning, match="the gradient of a vocabulary has a faster way on a GPU"):
        assert loss._wide_product(there(3, 4, dtype=BF16), there(4, 5, dtype=BF16), F32).dtype == F32
    assert loss._wide_product(there(3, 4, dtype=BF16), there(4, 5, dtype=BF16), F32).shape == (3, 5)
