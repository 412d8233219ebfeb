"""What a GPU's faster way can't do, or can't be started for, the definition does, and one line says so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from regard.decoding.settings import GREEDY, Rules
from regard.nn import attention, few, instead
from regard.nn.attention import Attention
from regard.nn.cache import LayerCache
from regard.training import loss
from tests.decoding.lively import KINDS, LONGEST, SOURCES, lively, made_lively
from tests.without_gpu import laws
from tests.without_gpu.recording import scheduled_as_on_a_gpu, written
from tests.without_gpu.tape import Tapes


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(instead, "_told", set())
    monkeypatch.setattr(instead, "_given_up", set())
    return


def test_a_kernel_that_can_not_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, heads = LayerCache(*(torch.zeros(1, 4, 8, 16) for _ in range(2)), torch.tensor([0]), 8), Attention(64, 4).eval()

    def fails(*given: Any) -> Any:
        raise RuntimeError("Failed to find C compiler.\nPlease install one")

    with torch.no_grad():
        want = heads(torch.ones(1, 1, 64), cache=layer)
        monkeypatch.setattr(attention, "few_on_gpu", lambda *given: not instead.given_up(few.IN_ONE))
        monkeypatch.setattr(Attention, "_in_one", fails)
        with pytest.warns(UserWarning, match=r"it can't be started \(Failed to find C compiler\.\); PyTorch's own operations do it"):
            assert torch.equal(heads(torch.ones(1, 1, 64), cache=layer), want)
        assert torch.equal(heads(torch.ones(1, 1, 64), cache=layer), want)


def test_out_of_memory_is_not_the_kernels_fault() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        instead.give_up("anything", torch.OutOfMemoryError("CUDA out of memory"))
    assert not instead.given_up("anything")


def test_a_position_that_can_not_be_recorded_is_called() -> None:
    """Somebody's norm waits for the device."""

    class Waits(nn.Module):
        def __init__(self, norm: nn.Module) -> None:
            super().__init__()
            self.norm = norm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert float(x.sum()) < float("inf")
            return self.norm(x)

    model, tapes = made_lively(KINDS["before"]), Tapes()
    sources, rules = [[*source] for source in SOURCES[:6]], Rules(max_length=LONGEST)
    with scheduled_as_on_a_gpu(None):
        want = written(lively("before"), sources, GREEDY, rules)
    model.decoder.norm = Waits(model.decoder.norm)
    with scheduled_as_on_a_gpu(tapes), pytest.warns(UserWarning, match="a position of decoding has a faster way on a GPU, but it can't"):
        assert written(model, sources, GREEDY, rules) == want
    assert not tapes.replayed


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_vocabulary_with_padding_where_there_is_no_triton(smoothing: float) -> None:
    """The law of the kernel, for the definition in its place: columns that only round the vocabulary up count for nothing."""
    laws.surprise_law(torch.float32, smoothing, loss._surprise)
