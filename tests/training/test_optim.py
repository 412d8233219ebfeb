"""Learning rates number by number, who decays and who is moved by what, and optimizer states that go on exactly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.batch import Tokens
from regard.errors import TrainingError
from regard.models import Network
from regard.recipe import TrainingSettings
from regard.training.optim import Optimizer, clip, learning_rate, make_optimizer
from tests.families import FAMILIES, outputs, sentences, small


def settings(**changes: Any) -> TrainingSettings:
    return TrainingSettings.model_validate({"steps": 100, "lr": 0.5, "warmup": 10, "weight_decay": 0.1} | changes)


def rates(schedule: str, *steps: int, **changes: Any) -> list[float]:
    return [learning_rate(settings(schedule=schedule, **changes), step, width=64) for step in steps]


def test_the_papers_schedule() -> None:
    """d^-0.5 · min(step^-0.5, step · warmup^-1.5), equation 3 of the paper, with its 4000 steps of warm-up and width 512."""
    paper = settings(schedule="paper", lr=1.0, warmup=4000)
    for step in (1, 2, 100, 3999, 4000, 4001, 100000):
        assert learning_rate(paper, step, 512) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5), rel=1e-15)
    assert learning_rate(paper, 4000, 512) == pytest.approx(6.98771e-4, rel=1e-5)
    assert learning_rate(paper, 1, 512) == pytest.approx(1.74693e-7, rel=1e-5)
    assert learning_rate(settings(schedule="paper", lr=2.0, warmup=4000), 77, 512) == 2 * learning_rate(paper, 77, 512)
    assert rates("paper", 1, 4, warmup=0) == [0.5 / 8, 0.5 / 8 / 2]


def test_inverse_square_root() -> None:
    assert rates("inverse-sqrt", 1, 5, 10, 40, 90) == pytest.approx([0.05, 0.25, 0.5, 0.25, 0.5 / 3])
    assert rates("inverse-sqrt", 1, 4, 100, warmup=0) == pytest.approx([0.5, 0.25, 0.05])


def test_cosine() -> None:
    assert rates("cosine", 1, 5, 10, 55, 100, 101) == pytest.approx([0.05, 0.25, 0.5, 0.25, 0.0, 0.0])
    assert rates("cosine", 40) == pytest.approx([0.25 * (1 + math.cos(math.pi / 3))])
    assert rates("cosine", 100)[0] == 0.0
    assert rates("cosine", 50, 100, warmup=200) == pytest.approx([0.125, 0.25])  # still rising when it ends
    assert rates("cosine", 1, warmup=0)[0] == pytest.approx(0.5)


def test_warm_up_stable_decay() -> None:
    assert rates("wsd", 1, 5, 10, 50, 80, 85, 90, 100, 101) == pytest.approx([0.05, 0.25, 0.5, 0.5, 0.5, 0.375, 0.25, 0.0, 0.0])
    assert rates("wsd", 50, 99, 100, decay=0.0) == [0.5, 0.5, 0.5]
    assert rates("wsd", 1, 80, warmup=0) == [0.5, 0.5]


def test_constant() -> None:
    assert rates("constant", 1, 5, 10, 11, 10000) == pytest.approx([0.05, 0.25, 0.5, 0.5, 0.5])
    assert rates("constant", 1, 2, warmup=0) == [0.5, 0.5]


def decays(optimizer: Optimizer) -> dict[str, float]:
    return {optimizer.names[parameter]: group["weight_decay"] for group in optimizer.param_groups for parameter in group["params"]}


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("name", FAMILIES)
def test_matrices_decay_and_nothing_else(name: str, kind: str) -> None:
    model = small(name)
    decay = decays(make_optimizer(model, settings(optimizer=kind), fused=False))
    assert decay.keys() == dict(model.named_parameters()).keys()  # each in exactly one group
    for key, parameter in model.named_parameters():
        biases = name == "t5-small" and key.endswith("positions.weight")
        assert decay[key] == (0.1 if parameter.ndim == 2 and not biases else 0.0), key


@pytest.mark.parametrize("name", FAMILIES)
def test_muon_moves_hidden_matrices(name: str) -> None:
    optimizer = make_optimizer(small(name), settings(optimizer="muon"), fused=False)
    muon, adamw = optimizer.parts
    assert isinstance(muon, torch.optim.Muon)
    assert isinstance(adamw, torch.optim.AdamW)
    hidden = {optimizer.names[parameter] for parameter in muon.param_groups[0]["params"]}
    outer = ("embed.", "embed_source.", "token_types.", "deembed.", "classifier.", "encoder.positions.", "decoder.positions.")
    assert hidden
    assert not any(key.startswith(outer) or "bias" in key or "norm" in key or key.endswith("score.weight") for key in hidden)


def gradients(model: Network, seed: int) -> None:
    batch = Tokens.pad(sentences(5, 2, seed=seed)), Tokens.pad(sentences(4, 7, seed=seed + 1))
    outputs(model, *batch).logsumexp(-1).sum().backward()


def train(model: Network, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.set_lr(0.01 / step)
        optimizer.zero_grad()
        gradients(model, step)
        optimizer.step()


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(tensor, b[key]) for key, tensor in a.items())


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_state_goes_on_exactly(kind: str, fused: bool) -> None:
    whole, wanted = small("bert-base").float(), settings(optimizer=kind)
    whole_optimizer = make_optimizer(whole, wanted, fused=fused)
    train(whole, whole_optimizer, range(1, 4))
    resumed = small("bert-base").float()
    resumed.load_state_dict(whole.state_dict())
    optimizer = make_optimizer(resumed, wanted, fused=fused)
    optimizer.load_state_dict(whole_optimizer.state_dict())
    train(whole, whole_optimizer, range(4, 7))
    train(resumed, optimizer, range(4, 7))
    assert equal(whole.state_dict(), resumed.state_dict())
    assert not equal(whole.state_dict(), small("bert-base").float().state_dict())


def test_a_state_holds_tensors_by_name() -> None:
    model = small("bert-base").float()
    optimizer = make_optimizer(model, settings(optimizer="muon"), fused=False)
    assert optimizer.state_dict() == {}
    train(model, optimizer, range(1, 2))
    state = optimizer.state_dict()
    assert "classifier.weight" not in state  # it took no part
    assert state["embed.weight"].keys() == {"step", "exp_avg", "exp_avg_sq"}
    assert state["encoder.layers.0.attention.join.weight"].keys() == {"momentum_buffer"}
    assert all(isinstance(tensor, Tensor) for own in state.values() for tensor in own.values())


def test_adamw_is_torchs() -> None:
    ours, theirs = small("gpt2"), small("gpt2")
    optimizer = make_optimizer(ours, settings(weight_decay=0.0, betas=(0.8, 0.9), epsilon=1e-6), fused=False)
    plain = torch.optim.AdamW(theirs.parameters(), betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0)
    train(ours, optimizer, range(1, 4))
    for step in range(1, 4):
        plain.param_groups[0]["lr"] = 0.01 / step
        plain.zero_grad()
        gradients(theirs, step)
        plain.step()
    assert equal(ours.state_dict(), theirs.state_dict())


def test_a_state_of_another_model_or_optimizer_is_refused() -> None:
    model = small("gpt2")
    adamw = make_optimizer(model, settings(), fused=False)
    train(model, adamw, range(1, 2))
    with pytest.raises(TrainingError, match=r"is not one of Muon for a tensor .* resume with the recipe that the run began with"):
        make_optimizer(model, settings(optimizer="muon"), fused=False).load_state_dict(adamw.state_dict())
    with pytest.raises(TrainingError, match=r"'embed\.weight' is not one of AdamW for a tensor \(40, 24\)"):
        make_optimizer(small("gpt2", vocabulary=40), settings(), fused=False).load_state_dict(adamw.state_dict())
    with pytest.raises(TrainingError, match=r"has 'decoder\.layers\.1\..*', which this model does not train"):
        make_optimizer(small("gpt2", layers=1), settings(), fused=False).load_state_dict(adamw.state_dict())


def test_frozen_parameters_stay() -> None:
    model = small("transformer-base")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    train(model, make_optimizer(model, settings(freeze=["encoder", "embed.weight"]), fused=False), range(1, 3))
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[key]) == key.startswith(("encoder", "embed.weight")), key


def test_what_can_not_be_frozen() -> None:
    with pytest.raises(TrainingError, match=r"training\.freeze = 'encodr' begins no parameter's name; did you mean 'encoder'\?"):
        make_optimizer(small("bert-base"), settings(freeze=["encodr"]), fused=False)
    with pytest.raises(TrainingError, match="every parameter is frozen, so there is nothing to train"):
        make_optimizer(small("gpt2"), settings(freeze=["embed", "decoder"]), fused=False)


def test_only_vectors_or_only_matrices_left_to_train() -> None:
    model = small("llama-tiny")
    frozen = [name for name, parameter in model.named_parameters() if parameter.ndim == 2]
    assert len(make_optimizer(model, settings(optimizer="muon", freeze=frozen), fused=False).parts) == 1


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_both_learn_at_the_same_rate(kind: str) -> None:
    torch.manual_seed(0)
    model = small("gpt2").float()
    text = Tokens.pad(sentences(12, 12, 12))
    optimizer = make_optimizer(model, settings(optimizer=kind, weight_decay=0.0), fused=False)
    losses = []
    for step in range(1, 61):
        optimizer.set_lr(learning_rate(settings(schedule="constant", lr=1e-2), step, 24))
        loss = torch.nn.functional.cross_entropy(model(text)[:, :-1].flatten(0, 1), text.ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        clip(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 < losses[0]


@pytest.mark.parametrize("limit", [0.5, 1e6, 0.0])
def test_clipping(limit: float) -> None:
    model = small("gpt2")
    gradients(model, 1)
    before = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    norm = clip(model.parameters(), limit)
    after = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
    assert isinstance(norm, Tensor)
    torch.testing.assert_close(norm, before.norm())
    if limit == 0.5:
        torch.testing.assert_close(after, before * 0.5 / before.norm(), rtol=1e-4, atol=1e-9)
    else:
        assert torch.equal(after, before)


def test_the_norm_of_no_gradients_and_of_bad_ones() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    assert clip([parameter], 1.0) == 0
    parameter.grad = torch.tensor([1.0, math.nan])
    assert clip([parameter], 1.0).isnan()
