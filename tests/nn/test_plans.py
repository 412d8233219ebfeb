"""cuDNN's attention is left out while texts are read, and only then."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from regard.nn.plans import UNPLANNED, Unplanned, meets_any_shape


@pytest.fixture(params=[True, False])
def before(request: pytest.FixtureRequest) -> Iterator[bool]:
    found = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(request.param)
    yield request.param
    torch.backends.cuda.enable_cudnn_sdp(found)


def test_the_switch_is_put_back_as_it_was(before: bool) -> None:
    with UNPLANNED, UNPLANNED:
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
    with pytest.raises(ValueError, match="spilt"), UNPLANNED:
        raise ValueError("spilt")
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_by_the_last_of_several_threads(before: bool) -> None:
    switch, both = Unplanned(), Barrier(2, timeout=10)

    def within(_: int) -> bool:
        found = True
        for _ in range(200):
            both.wait()
            with switch:
                found &= not torch.backends.cuda.cudnn_sdp_enabled()
        return found

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(within, range(2)))
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


def test_on_a_cpu_nothing_is_switched() -> None:
    with torch.no_grad():
        assert not meets_any_shape(torch.zeros(1))


@pytest.mark.gpu
def test_on_a_gpu_unless_it_is_trained() -> None:
    x = torch.zeros(1, device="cuda")
    with torch.no_grad():
        assert meets_any_shape(x)
    assert not meets_any_shape(x)
