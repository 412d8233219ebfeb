"""The stand-ins can fail: each mistake that is planted here, in memory and for a moment, turns a law red."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch

from regard.decoding import fused, replay, sampling, search
from regard.decoding.settings import GREEDY, Beam
from regard.models import state
from regard.training import optim
from tests.without_gpu import laws, needs_kernels
from tests.without_gpu.recording import called, decoding_law, training_law

BEAM = Beam(size=2, n_best=2)


def plant(patch: pytest.MonkeyPatch, owner: ModuleType | type, name: str, right: str, wrong: str) -> None:
    """A function of a module or a class with one place in its source changed."""
    function = owner.__dict__[name]
    kind = type(function) if isinstance(function, classmethod | staticmethod) else None
    source = textwrap.dedent(inspect.getsource(function.__func__ if kind else function))
    assert source.count(right) == 1, f"{name} has {right!r} {source.count(right)} times; plant the mistake anew"
    known: dict[str, Any] = {}
    globals_ = owner.__dict__ if isinstance(owner, ModuleType) else inspect.getmodule(owner).__dict__
    exec("from __future__ import annotations\n" + source.replace(right, wrong), globals_, known)
    patch.setattr(owner, name, known[name])


def kernels(name: str) -> Any:
    """A module that has kernels: only where there is Triton."""
    from regard.decoding import fused_kernels
    from regard.nn import one_query, residual, short
    from regard.training import surprise

    return {module.__name__.rsplit(".", 1)[1]: module for module in (fused, fused_kernels, one_query, residual, short, surprise)}[name]


class Mistake(NamedTuple):
    """In a module of kernels: what is right there, what stands there for a moment, and the law that notices."""

    module: str
    function: str
    right: str
    wrong: str
    law: Callable[[], object]


F32 = torch.float32
IN_KERNELS = {
    "no rescaling of dropout": Mistake("residual", "_chance", "1 / (1 - dropout)", "1.0", lambda: laws.add_norm_law(F32, 0.3)),
    "too little dropout": Mistake("residual", "_chance", "dropout * 2**32", "dropout * 2**30", lambda: laws.add_norm_law(F32, 0.3)),
    "another epsilon": Mistake("residual", "add_norm_alone", "norm.eps", "0.1", lambda: laws.add_norm_alone_law(F32)),
    "no scale": Mistake("one_query", "attend", "scale * LOG2_E", "LOG2_E", lambda: laws.one_query_law(F32)),
    "no mask": Mistake("one_query", "attend", "visible is not None),", "False),", lambda: laws.one_query_law(F32)),
    "no writing": Mistake("one_query", "attend", "BLOCK, new is not None", "BLOCK, False", lambda: laws.one_query_law(F32)),
    "no scale, packed": Mistake("short", "attend", "seers, scale,", "seers, 1.0,", lambda: laws.short_law(F32, "causal")),
    "a window too wide": Mistake("short", "spans", "slots - before + 1", "slots - before", lambda: laws.short_law(F32, "window")),
    "no smoothing": Mistake("surprise", "surprise", "shape[1], smoothing", "shape[1], 0.0", lambda: laws.surprise_law(F32, 0.1)),
    "padding counts": Mistake("surprise", "surprise", "(0), vocabulary", "(0), logits.shape[1]", lambda: laws.surprise_law(F32, 0.0)),
    "what is never chosen": Mistake("fused_kernels", "_look", "tables.kinds", "tables.kinds * 0", lambda: laws.search_law(F32, GREEDY)),
    "no length penalty": Mistake("fused", "beam", "search.beam.length_penalty", "0.0", lambda: laws.search_law(F32, BEAM)),
}


@needs_kernels
@pytest.mark.usefixtures("small_kernels")
@pytest.mark.filterwarnings("ignore:.* encountered:RuntimeWarning")
@pytest.mark.parametrize("name", IN_KERNELS)
def test_a_kernel_that_is_called_wrongly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = IN_KERNELS[name]
    mistake.law()
    plant(monkeypatch, kernels(mistake.module), mistake.function, mistake.right, mistake.wrong)
    with pytest.raises(AssertionError):
        mistake.law()


REBOUND = "self.written = self.written + self.open"
IN_POSITIONS: dict[str, tuple[type, str, str, str, str]] = {
    "a host counter that a replay loses": (replay.Replayed, "__call__", "cache.used += new", "pass", "greedy"),
    "a buffer rebound, of a beam": (search.BeamSearch, "_go_on", "self.written += self.open", REBOUND, "beam"),
    "a buffer rebound, of samples": (sampling.Sampler, "advance", "self.written += self.open", REBOUND, "greedy"),
    "all buffers rebound": (search.BeamSearch, "_set", "old is not None and old.shape == value.shape", "False", "beam"),
    "lengths rebound": (state.StackState, "place", "self.lengths += 1", "self.lengths = self.lengths + 1", "greedy"),
    "what is visible rebound": (state.StackState, "select", "chosen.shape == self.visible.shape", "False", "beam"),
    "the host asks for a word": (
        sampling.Sampler,
        "advance",
        "self.words.copy_(word)",
        "self.words.copy_(word); word[0, 0].item()",
        "greedy",
    ),
}


@pytest.mark.parametrize("mistake", IN_POSITIONS)
def test_a_position_that_can_not_be_replayed(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, right, wrong, method = IN_POSITIONS[mistake]
    called("before", method, "plain", 2048, False, 14)  # what is wanted, as it is without the mistake
    plant(monkeypatch, owner, name, right, wrong)
    with pytest.raises((AssertionError, RuntimeError, IndexError, UserWarning)):  # spoiled words are none of the vocabulary
        decoding_law("before", method, "plain")


def test_a_learning_rate_that_is_baked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, optim.Optimizer, "set_lr", 'group["lr"].fill_(own)', 'group["lr"] = torch.tensor(own)')
    with pytest.raises(AssertionError, match=r"figures|weights"):
        training_law(tmp_path)
