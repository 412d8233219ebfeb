"""Training does not wait for its own figures, and what it does instead of waiting changes nothing."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.config import Transformer
from regard.data.batch import Tokens
from regard.data.collate import Batch
from regard.decoding.replay import Graph
from regard.errors import TrainingError
from regard.models import build
from regard.nn import instead
from regard.nn.attention import Attention
from regard.nn.backends import varlen_starts
from regard.presets import preset
from regard.recipe import TrainingSettings
from regard.training.fused import FusedAddNorm, FusedFeedForward, fuse
from regard.training.objective import Objective, compiles
from regard.training.optim import make_optimizer
from regard.training.precision import keep_half
from regard.training.replay import CudaGraphs, Replayed, fits, put, tensors, with_room
from regard.training.run import recipe_of, run_recipe
from regard.training.trainer import StoppedError, Trainer
from tests.families import small
from tests.training.test_run import QUIET, losses, recipe, same_weights

Learned = tuple[list[float], torch.Tensor]  # the losses, and how far the weights went
MODEL = {"width": 128, "heads": 4, "norm_place": "after", "dropout": 0.1}  # all of the fast path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def patient(monkeypatch: pytest.MonkeyPatch, every: int = 7) -> None:
    """As on a GPU: figures are looked at now and then."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(Trainer, "_due", lambda self: self.progress.step % every == 0 or self.progress.step == self.settings.steps)


@pytest.mark.parametrize("settings", [{}, {"ema": 0.9}, {"optimizer": "muon"}])
def test_looking_later_tells_and_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    wanted = recipe(tmp_path, training=settings, model={"dropout": 0.2})
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        run_recipe(wanted, tmp_path / "at once", console=QUIET)
    patient(monkeypatch)
    run_recipe(wanted, tmp_path / "later", console=QUIET)
    assert same_weights(tmp_path / "at once", tmp_path / "later")
    assert losses(tmp_path / "at once") == losses(tmp_path / "later")


@pytest.mark.usefixtures("ctrl_c")
def test_a_stop_between_two_looks_saves_and_tells_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    wanted = recipe(tmp_path, model={"dropout": 0.2})
    run_recipe(wanted, tmp_path / "whole", console=QUIET)
    update = Trainer._update

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        if self.progress.step == 25:
            os.kill(os.getpid(), signal.SIGINT)
        return update(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", interrupted)
        with pytest.raises(StoppedError, match="stopped after step 26"):
            run_recipe(wanted, tmp_path / "stopped", console=QUIET)
    assert len(losses(tmp_path / "stopped")) == 26
    run_recipe(recipe_of(tmp_path / "stopped"), tmp_path / "stopped", resume=True, console=QUIET)
    assert same_weights(tmp_path / "whole", tmp_path / "stopped")
    assert losses(tmp_path / "whole") == losses(tmp_path / "stopped")


def test_a_sick_run_is_noticed_at_the_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    forward, calls = Objective.forward, []

    def sick(self: Objective, batch: Any) -> torch.Tensor:
        calls.append(1)
        return forward(self, batch) * (float("nan") if len(calls) > 8 else 1.0)

    monkeypatch.setattr(Objective, "forward", sick)
    with pytest.raises(TrainingError, match="not finite 5 times in a row, up to step 13"):
        run_recipe(recipe(tmp_path), tmp_path / "run", console=QUIET)
    assert len(calls) == 14  # the look after step 14; the checkpoint of step 10 looked too


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_must_not_be_taken_changes_nothing(fused: bool) -> None:
    model = small("transformer-base", "sdpa").float()
    optimizer = make_optimizer(model, TrainingSettings(lr=0.1, weight_decay=0.1), fused=fused)

    def step(unless: bool) -> None:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("nan") if unless else 1.0)
        optimizer.step(unless=torch.tensor(unless))

    step(False)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    step(True)
    assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    assert all(torch.equal(state[name][key], value) for name, kept in optimizer.state_dict().items() for key, value in kept.items())
    step(False)
    assert any(not torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", ["transformer-base", "llama-tiny", "bert-base"])
def test_between_layers_everything_is_half_within_autocast_alone(name: str) -> None:
    model = small(name, "sdpa").float()
    keep_half(model)
    seen: list[torch.dtype] = []
    for module in model.modules():
        if isinstance(module, nn.LayerNorm | nn.RMSNorm):
            module.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    tokens = Tokens.pad([[3, 4, 5], [6]])
    call = (lambda: model(tokens, tokens)) if name == "transformer-base" else (lambda: model(tokens))
    call()
    assert set(seen) == {torch.float32}
    seen.clear()
    with torch.autocast("cpu", torch.bfloat16):
        call()
    assert set(seen) == {torch.bfloat16}


def batches(seed: int, *, packed: bool, device: str) -> Batch:
    """The same pairs, packed or padded; how many there are depends on the seed."""
    torch.manual_seed(seed)
    lengths = torch.randint(1, 30, (200,)).tolist()
    count = next(index for index in range(200) if sum(lengths[: index + 1]) > 500)
    texts = [torch.randint(4, 30, (length + 1,)).tolist() for length in lengths[:count]]
    fill = 512 - sum(lengths[:count])
    rows = [text[:-1] for text in texts]
    labels = [text[1:] for text in texts]
    if packed:
        rows, labels = [*rows, [0] * fill], [*labels, [0] * fill]
        target = replace(Tokens.pack(rows, device=device), longest=32)
        counted = torch.arange(512, device=device)[None] < 512 - fill
        return Batch(target, Tokens.pack(labels, device=device).ids, counted, 512 - fill, 512 - fill, target)
    target, wanted = Tokens.pad(rows, device=device), Tokens.pad(labels, device=device)
    assert target.real is not None
    return Batch(target, wanted.ids, target.real, 512 - fill, 512 - fill, Tokens.pad(rows, device=device))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["transformer-base", "gpt2"])
def test_the_fast_path_is_the_model(name: str) -> None:
    """Packed, compiled, in half precision, some logits at a time, against padded and explicit in float32; and compiled once for all."""
    config = preset(name, layers=2, width=128, heads=2, feedforward=256, vocabulary=30, context=64, dropout=0.0, attention_dropout=0.0,
                    pad_token=0, start_token=1, end_token=2)  # fmt: skip
    assert isinstance(config, Transformer)
    exact = Objective(build(config, "explicit").cuda(), 0.1)
    fast = Objective(build(config, "varlen").cuda(), 0.1, compiled=True)
    keep_half(fast.model)
    fuse(fast.model)
    fast.model.load_state_dict(exact.model.state_dict())
    torch._dynamo.utils.counters.clear()
    for seed in range(3):
        want = exact(batches(seed, packed=False, device="cuda"))
        with torch.autocast("cuda", torch.bfloat16):
            got = fast(batches(seed, packed=True, device="cuda"))
        for objective, total in ((exact, want), (fast, got)):
            objective.zero_grad()
            total.backward()
        slopes = [torch.cat([p.grad.flatten() for p in objective.parameters() if p.grad is not None]) for objective in (fast, exact)]
        apart = float((slopes[0] - slopes[1]).norm() / slopes[1].norm())
        off = float(got.detach() / want.detach()) - 1
        print(f"{name}: loss {off:.1e}, gradients {apart:.1e}")
        assert abs(off) < 2e-3
        assert apart < 3e-2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_step_waits_for_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update = Trainer._update

    def watched(self: Trainer, *arguments: Any) -> Any:
        torch.cuda.set_sync_debug_mode("error" if self.progress.step not in (0, 1, 2, 3) else "default")  # those compile and record
        try:
            return update(self, *arguments)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Trainer, "_update", watched)
    wanted = recipe(tmp_path, training={"steps": 24, "log_every": 6, "validate_every": 24, "checkpoint_every": 12}, model=MODEL)
    run_recipe(wanted, tmp_path / "run", console=QUIET)
    assert len(losses(tmp_path / "run")) == 4
    assert losses(tmp_path / "run")[-1] < losses(tmp_path / "run")[0]


def test_two_passes_that_agree_are_one() -> None:
    """R-Drop without dropout: both passes say the same, so the loss is that of one. With dropout it is more."""
    batch = batches(0, packed=False, device="cpu")
    model = small("transformer-base", dropout=0.5)
    one, two = Objective(model, 0.1)(batch), Objective(model, 0.1, r_drop=3.0)(batch)
    torch.testing.assert_close(one, two)
    model.train()
    torch.manual_seed(0)
    agreeing = Objective(model, 0.1, r_drop=1e-9)(batch)
    torch.manual_seed(0)
    assert Objective(model, 0.1, r_drop=3.0)(batch) > agreeing


def test_layers_made_for_a_gpu_are_the_same_elsewhere() -> None:
    plain, fused = small("transformer-base"), small("transformer-base")
    fuse(fused)
    assert any(isinstance(module, FusedAddNorm) for module in fused.modules())
    assert any(isinstance(module, FusedFeedForward) for module in fused.modules())
    tokens = Tokens.pad([[3, 4, 5], [6]])
    assert torch.equal(plain(tokens, tokens), fused(tokens, tokens))
    assert plain.state_dict().keys() == fused.state_dict().keys()


def test_a_batch_written_over_another_is_the_same_batch() -> None:
    """Also with fewer documents than there is room for, the rest being empty; with more, or of another shape, it does not fit."""
    few, many = sorted((batches(seed, packed=True, device="cpu") for seed in range(2)), key=lambda batch: len(batch.target.lengths))
    place = many.map(with_room)
    assert fits(few, place)
    for new, old in zip(tensors(few), tensors(place), strict=True):
        put(new, old)
    model = Objective(small("transformer-base"), 0.1)
    assert len(place.target.lengths) > len(many.target.lengths)
    torch.testing.assert_close(model(place), model(few), rtol=1e-12, atol=1e-12)
    assert not fits(place, few)
    assert not fits(batches(0, packed=False, device="cpu"), place)


@pytest.mark.gpu
def test_replayed_steps_learn_the_same() -> None:
    """Recorded once and replayed, against called each time on the same tensors, with counts and rates that change.

    As near as two trainings of the latter. Tensors of other sizes are added up otherwise, which makes a hundredth of the way.
    """
    replayed, called, again, plain = (_learned(graphs) for graphs in (CudaGraphs(), Calls(), Calls(), None))
    assert replayed[0] == pytest.approx(plain[0], rel=1e-3)
    near(replayed, called, again)
    assert replayed[0][-1] < replayed[0][0]


def near(one: Learned, called: Learned, again: Learned) -> None:
    chance = float((called[1] - again[1]).norm())  # a GPU adds up in no fixed order, and Adam's first steps make much of the last bit
    moved, apart = float(called[1].norm()), float((one[1] - called[1]).norm())
    print(f"moved {moved:.2f}, apart {apart:.1e}, by chance {chance:.1e}")
    assert one[0] == pytest.approx(called[0], rel=1e-3)
    assert apart < 3 * chance + 1e-2 * moved < 0.3 * moved


class Calls(CudaGraphs):
    """Does again what CUDA would replay, with the same tensors."""

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        figures = torch.zeros((), device="cuda")

        class Again:
            def replay(self) -> None:
                figures.copy_(work())

        return Again(), figures


class Refuses(CudaGraphs):
    """Can't record anything, and has not begun to."""

    def record(self, work: Callable[[], torch.Tensor]) -> tuple[Graph, torch.Tensor]:
        raise RuntimeError("not here")


def weights(model: nn.Module) -> torch.Tensor:
    """All but the biases of keys, which change no output: their gradients are what was rounded, and Adam makes whole steps of it."""
    copies = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            copies[f"{name}.project.bias"][module.query_rows :].chunk(2)[0].zero_()
    return torch.cat([copy.flatten() for copy in copies.values()])


@pytest.mark.gpu
def test_a_step_that_can_not_be_recorded_is_called() -> None:
    """Something in it waits for the GPU: as near as two trainings that are called, and as many random numbers drawn."""

    def given_up(graphs: CudaGraphs, *, waits: bool = False) -> Learned:
        ended: set[str] = set()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(instead, "_told", set())
            patch.setattr(instead, "_given_up", ended)
            with pytest.warns(UserWarning, match="a step of training has a faster way on a GPU, but it can't be started"):
                learned = _learned(graphs, waits=waits)
        assert ended == {"a step of training"}
        return learned

    replayed = given_up(CudaGraphs(), waits=True)
    stream, chance = torch.cuda.current_stream(), torch.cuda.get_rng_state()
    called, again = given_up(Refuses()), given_up(Refuses())
    assert stream == torch.cuda.default_stream()
    assert torch.equal(torch.cuda.get_rng_state(), chance)
    near(replayed, called, again)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_all_that_is_tried_can_be_started_and_waits_for_nothing() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    model = build(preset("transformer-base", layers=1, width=128, heads=2, feedforward=256, vocabulary=30), "varlen").to(device)
    chance = torch.cuda.get_rng_state()
    with pytest.MonkeyPatch.context() as patch:
        for known, empty in (("_told", set()), ("_given_up", set()), ("_started", {})):
            patch.setattr(instead, known, empty)
        assert compiles(device)
        torch.cuda.set_sync_debug_mode("error")
        try:
            fuse(model)
            assert varlen_starts(torch.bfloat16, device, 64)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(instead._started) == 5
        assert all(instead._started.values())
        assert not instead._given_up
    assert torch.equal(torch.cuda.get_rng_state(), chance)


def _learned(graphs: CudaGraphs | None, *, waits: bool = False) -> Learned:
    """The losses of eight steps, and how far the weights went."""
    torch.manual_seed(0)
    config = preset("transformer-base", layers=1, width=128, heads=2, feedforward=256, vocabulary=30, context=64, dropout=0.0)
    model = build(config, "varlen").cuda()
    keep_half(model)
    fuse(model)
    objective = Objective(model, 0.1, compiled=True)
    optimizer = make_optimizer(model, TrainingSettings(), fused=True)

    def learn(batch: Batch, counts: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            total = objective(batch)
        (total / counts[0]).backward()
        if waits:
            assert total.item() > 0
        optimizer.step()
        optimizer.zero_grad()
        return total.detach()

    step = learn if graphs is None else Replayed(learn, graphs, forget=optimizer.zero_grad)
    before, totals = weights(model), []
    for number in range(8):
        optimizer.set_lr(1e-3 * (number + 1))
        batch = batches(number, packed=True, device="cuda")
        totals.append(step(batch, torch.tensor([batch.count], device="cuda")))
    return torch.stack(totals).tolist(), weights(model) - before
