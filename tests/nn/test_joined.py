"""A product with its non-linearity at the end is the two in turn."""

from __future__ import annotations

import copy

import pytest
import torch

from regard.nn import joined, record, using
from regard.nn.layers import FeedForward

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("rows", [1, 3, 64, 300])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ["relu", "gelu-tanh", "gelu", "silu", "swiglu"])
@torch.no_grad()
def test_a_product_and_what_follows_it(activation: str, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(rows)
    exact = FeedForward(64, 192, activation).cuda().double().eval()
    network, x = copy.deepcopy(exact).to(dtype), torch.randn(rows, 2, 64, device="cuda", dtype=dtype)
    wanted = copy.deepcopy(network).double()(x.double())
    found = network(x)
    assert joined.activates(activation, network.widen, x) == (activation in ("relu", "gelu-tanh"))
    assert (found.double() - wanted).abs().max() < (0.02 if dtype == torch.bfloat16 else 0.003)
    assert found.shape == x.shape


@torch.no_grad()
def test_not_where_somebody_looks() -> None:
    network, x = FeedForward(64, 192).cuda().bfloat16().eval(), torch.randn(2, 2, 64, device="cuda", dtype=torch.bfloat16)
    assert joined.activates("relu", network.widen, x)
    with record(network) as taps:
        network(x)
    assert (taps["inner"] >= 0).all()
    with using("explicit"):
        assert not joined.activates("relu", network.widen, x)
    with torch.autocast("cuda"):
        assert not joined.activates("relu", network.widen, x)
    assert not joined.activates("relu", network.widen, x.float())
    assert not joined.activates("relu", network.train().widen, x)
    with torch.enable_grad():
        assert not joined.activates("relu", network.eval().widen, x)
