"""The kernels of a GPU, interpreted on a CPU, are their formulas."""

from __future__ import annotations

import pytest
import torch

from regard.decoding.settings import GREEDY, Beam
from regard.nn.masks import Boundaries
from tests.without_gpu import laws, needs_kernels
from tests.without_gpu.laws import DTYPES

pytestmark = [
    needs_kernels,
    pytest.mark.usefixtures("small_kernels"),
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero|overflow) encountered:RuntimeWarning"),  # NumPy's
]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@dtypes
@pytest.mark.parametrize("shape", [{}, {"group": 2}, {"masked": False}, {"writes": False, "queries": 1}], ids=str)
def test_one_query(dtype: torch.dtype, shape: dict[str, int]) -> None:
    laws.one_query_law(dtype, **shape)  # type: ignore[arg-type]


@dtypes
@pytest.mark.parametrize("rule", ["full", "causal", "window", "causal window"])
def test_short_documents(dtype: torch.dtype, rule: str) -> None:
    laws.short_law(dtype, rule, group=2 if rule == "causal" else 1)


@dtypes
def test_short_documents_across(dtype: torch.dtype) -> None:
    laws.short_law(dtype, "full", across=True)


@dtypes
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_add_norm(dtype: torch.dtype, dropout: float) -> None:
    laws.add_norm_law(dtype, dropout)


@dtypes
def test_add_norm_alone(dtype: torch.dtype) -> None:
    laws.add_norm_alone_law(dtype)


@dtypes
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_surprise(dtype: torch.dtype, smoothing: float) -> None:
    laws.surprise_law(dtype, smoothing)


@dtypes
@pytest.mark.parametrize("method", [GREEDY, Beam(size=2, n_best=2)], ids=["greedy", "beam"])
def test_search(dtype: torch.dtype, method: Beam) -> None:
    laws.search_law(dtype, method)


def test_pytorch_knows_all_of_a_custom_operation() -> None:
    """Its schema, its shapes without numbers, its gradients, and itself in a graph."""
    from regard.nn import residual, short

    x, change, weight, bias = (laws.normal(*shape).requires_grad_() for shape in ((6, 24), (6, 24), (24,), (24,)))
    torch.library.opcheck(residual._add_norm, (x, change, weight, bias, torch.tensor([5]), 0.0, 1e-5))
    edges = Boundaries(torch.tensor([0, 3, 8, 13], dtype=torch.int32), 5)
    seen = short.spans(edges, edges, 13, None, 1)
    query, key, value = (laws.normal(1, heads, 13, 16).requires_grad_() for heads in (2, 1, 1))
    torch.library.opcheck(short.short_attention, (query, key, value, seen, short.spans(edges, edges, 13, 1, None), 0.25, True))
