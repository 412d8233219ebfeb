from __future__ import annotations

import pytest
import torch

from regard.errors import TrainingError
from regard.training.average import Ema, average
from tests.families import small


@pytest.mark.parametrize("warmup", [False, True])
def test_the_moving_average_is_its_formula(warmup: bool) -> None:
    weights = [{"a": torch.randn(3, 4, dtype=torch.double), "b": torch.randn((), dtype=torch.double)} for _ in range(30)]
    ema = Ema(weights[0], 0.6, warmup=warmup)
    expected = {name: tensor.clone() for name, tensor in weights[0].items()}
    for t, new in enumerate(weights[1:], 1):
        ema.update(new)
        momentum = min(0.6, (1 + t) / (10 + t)) if warmup else 0.6
        expected = {name: momentum * tensor + (1 - momentum) * new[name] for name, tensor in expected.items()}
        for name, tensor in ema.weights().items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-13, atol=1e-13)


def test_the_average_is_apart_from_the_weights() -> None:
    model = small("gpt2")
    ema = Ema(model.state_dict(), 0.9)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.embed.weight.add_(1)
    torch.testing.assert_close(ema.weights(), before, rtol=0, atol=0)
    ema.update(model.state_dict())
    assert not torch.equal(ema.weights()["embed.weight"], before["embed.weight"])
    assert not any(tensor.requires_grad for tensor in ema.weights().values())
    model.load_state_dict(ema.weights())


def test_an_average_goes_on_exactly_where_it_was() -> None:
    weights = [{"a": torch.randn(5), "n": torch.tensor(i)} for i in range(6)]
    whole = Ema(weights[0], 0.9)
    for new in weights[1:3]:
        whole.update(new)
    resumed = Ema(weights[4], 0.9)
    resumed.load_state_dict(whole.state_dict())
    for new in weights[3:]:
        whole.update(new)
        resumed.update(new)
    assert torch.equal(whole.weights()["a"], resumed.weights()["a"])
    assert whole.updates == resumed.updates == 5
    assert whole.weights()["n"] == 5  # whole numbers are not averaged


def test_small_shares_are_not_rounded_away() -> None:
    ema = Ema({"a": torch.ones(1, dtype=torch.bfloat16)}, 0.999, warmup=False)
    for _ in range(2000):
        ema.update({"a": torch.full((1,), 2.0, dtype=torch.bfloat16)})
    assert ema.weights()["a"].dtype == torch.bfloat16
    assert ema.weights()["a"].item() == pytest.approx(2 - 0.999**2000, rel=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_mean_of_checkpoints(dtype: torch.dtype) -> None:
    sets = [{"a": torch.randn(4, 5, dtype=dtype), "n": torch.tensor([i])} for i in range(5)]
    copies = [part["a"].clone() for part in sets]
    mean = average(iter(sets))
    expected = torch.stack([part["a"].double() for part in sets]).mean(0).to(dtype)
    torch.testing.assert_close(mean["a"], expected, rtol=torch.finfo(dtype).eps, atol=0)
    assert mean["a"].dtype == dtype
    assert mean["n"].tolist() == [4]
    assert all(torch.equal(part["a"], copy) for part, copy in zip(sets, copies, strict=True))


def test_the_mean_of_one_is_itself() -> None:
    weights = {"a": torch.randn(7)}
    assert torch.equal(average([weights])["a"], weights["a"])


def test_weights_of_different_models_are_not_averaged() -> None:
    with pytest.raises(TrainingError, match="no weights to average"):
        average([])
    with pytest.raises(TrainingError, match="set 2 of the weights to average belong to another model: 'b' is not the same in both"):
        average([{"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}])
    with pytest.raises(TrainingError, match="'a' is not the same in both"):
        average([{"a": torch.ones(3)}, {"a": torch.ones(1)}])
    with pytest.raises(TrainingError, match="the weights belong to another model: 'a'"):
        Ema({"a": torch.ones(1)}, 0.9).update({})
    with pytest.raises(TrainingError, match="the saved averages belong to another model: 'a'"):
        Ema({"a": torch.ones(2)}, 0.9).load_state_dict(Ema({"a": torch.ones(1)}, 0.9).state_dict())
