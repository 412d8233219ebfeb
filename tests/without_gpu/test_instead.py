"""What a GPU's faster way can't do, or can't be started for, the definition does, and one line says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.decoding.settings import GREEDY, Rules
from regard.nn import attention, backends, few, instead, joined
from regard.nn.attention import Attention
from regard.nn.cache import LayerCache
from regard.nn.layers import AddNorm, FeedForward
from regard.presets import preset
from regard.training import fused, loss, objective, optim
from tests.decoding.lively import KINDS, LONGEST, SOURCES, lively, made_lively
from tests.without_gpu import laws, needs_kernels
from tests.without_gpu.recording import scheduled_as_on_a_gpu, trained, written
from tests.without_gpu.tape import Tape, Tapes


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(instead, "_told", set())
    monkeypatch.setattr(instead, "_given_up", set())
    monkeypatch.setattr(instead, "_started", {})
    return


class Broken:
    """A kernel that can't be started, in the forms in which they are called."""

    def __getitem__(self, grid: Any) -> Broken:
        return self

    def __call__(self, *given: Any, **named: Any) -> Any:
        raise RuntimeError("out of resource: shared memory.\nReduce it")


SAID = r"it can't be started \(out of resource: shared memory\.\); PyTorch's own operations do it"


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


@needs_kernels
@pytest.mark.parametrize("kernel", ["_norm_forward", "_norm_backward"])
def test_a_norm_after_a_sum(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the way back can't be started: amid a step it would be too late."""
    from regard.nn import residual

    torch.manual_seed(1)
    plain, x = AddNorm(preset("transformer-tiny", width=32)), torch.randn(2, 3, 32)
    torch.manual_seed(2)
    want = plain(x, torch.sin)
    monkeypatch.setattr(residual, kernel, Broken())
    monkeypatch.setattr(fused, "halved", lambda x: True)
    plain.__class__ = fused.FusedAddNorm
    torch.manual_seed(2)
    with pytest.warns(UserWarning, match=f"a norm after a sum in training has a faster way on a GPU, but {SAID}"):
        assert torch.equal(plain(x, torch.sin), want)
    torch.manual_seed(2)
    assert torch.equal(plain(x, torch.sin), want)
    torch.manual_seed(2)
    assert torch.equal(torch.compile(plain, fullgraph=True, backend="eager")(x, torch.sin), want)


def test_a_product_with_its_activation_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = FeedForward(16, 32), torch.randn(2, 3, 16)
    want = layer(x)
    layer.__class__ = fused.FusedFeedForward
    monkeypatch.setattr(fused, "halved", lambda x: True)
    monkeypatch.setattr(torch.ops.aten, "_addmm_activation", Broken())
    with pytest.warns(UserWarning, match=f"a product with its activation in training has a faster way on a GPU, but {SAID}"):
        assert torch.equal(layer(x), want)
    assert torch.equal(layer(x), want)


@torch.no_grad()
def test_a_product_with_its_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = FeedForward(16, 32).eval(), torch.randn(2, 3, 16)
    want = layer(x)
    monkeypatch.setattr(joined, "alone", lambda module, x: True)
    monkeypatch.setattr(torch, "_addmm_activation", Broken())
    with pytest.warns(UserWarning, match=f"a product with its activation has a faster way on a GPU, but {SAID}"):
        assert torch.equal(layer(x), want)
    assert torch.equal(layer(x), want)


def test_code_that_can_not_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", Broken())
    with pytest.warns(UserWarning, match=f"what lies between matrix products has a faster way on a GPU, but {SAID}"):
        assert not objective.compiles(torch.device("cpu"))
    assert not objective.compiles(torch.device("cpu"))


@needs_kernels
@pytest.mark.usefixtures("small_kernels")
@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
def test_what_can_be_started_is_tried_once_and_draws_no_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    from regard.nn import residual, short

    norm, product = fused.FusedAddNorm(preset("transformer-tiny", width=32)), fused.FusedFeedForward(16, 32)
    trials: list[Callable[[torch.dtype], bool]] = [
        lambda dtype: backends.short_starts(dtype, torch.device("cpu"), 16),
        norm.starts,
        product.starts,
    ]
    chance = torch.get_rng_state()
    with torch.inference_mode():
        assert all(trial(torch.float16) for trial in trials)
    assert torch.equal(torch.get_rng_state(), chance)
    for module, kernel in ((residual, "_norm_backward"), (short, "_short_backward_key"), (torch.ops.aten, "_addmm_activation")):
        monkeypatch.setattr(module, kernel, Broken())
    for trial in trials:
        with pytest.warns(UserWarning, match=SAID):
            assert not trial(torch.float32)
    assert all(trial(torch.float16) for trial in trials)


def test_out_of_memory_in_a_trial_is_not_remembered() -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        instead.starts("anything", full, torch.float32)
    assert instead.starts("anything", lambda: None, torch.float32)


def test_compiled_code_tries_nothing_and_heeds_what_was_tried() -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        width = x.shape[-1]
        return x + 1 if instead.starts("anything", lambda: tried.append(width), x.dtype, x.device, width) else x - 1

    tried: list[int] = []
    compiled = torch.compile(work, fullgraph=True, backend="eager")
    x = torch.ones(3)
    assert torch.equal(compiled(x), x + 1)
    assert not tried
    with pytest.warns(UserWarning, match="anything has a faster way"):
        instead.give_up("anything", RuntimeError("no"))
    assert torch.equal(compiled(x), x - 1)


@pytest.mark.parametrize("where", ["before the way back", "after it"])
def test_a_step_that_can_not_be_recorded_is_called(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost by it: weights, the optimizer's state and dropout go on from where they stood, to the bit."""
    want, tapes = trained(tmp_path / "called", None), Tapes()
    owner, name = (optim.Optimizer, "step") if where == "after it" else (objective.Objective, "forward")
    work = getattr(owner, name)

    def waits(self: Any, *given: Any, **named: Any) -> Any:
        found = work(self, *given, **named)
        if Tape.now is not None:
            torch.ones(3).sum().item()
        return found

    monkeypatch.setattr(owner, name, waits)
    with pytest.warns(UserWarning, match="a step of training has a faster way on a GPU, but it can't be started"):
        found = trained(tmp_path / "replayed", tapes)
    assert tapes.recorded == 1
    assert not tapes.replayed
    assert torch.equal(found[0], want[0])
    assert all(torch.equal(found[1][name], tensor) for name, tensor in want[1].items())
