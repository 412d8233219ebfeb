"""R-Drop: the formula, written out by hand."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from regard.errors import ShapeError
from regard.training.loss import cross_entropy
from regard.training.rdrop import divergence, r_drop


def by_hand(first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor, real: torch.Tensor, alpha: float) -> float:
    """Position by position, word by word: half of (NLL₁ + NLL₂ + α · (KL(p‖q) + KL(q‖p)) / 2)."""
    total = 0.0
    for row in range(labels.shape[0]):
        for place in range(labels.shape[1]):
            if not real[row, place]:
                continue
            scores = [[math.exp(score) for score in logits[row, place].tolist()] for logits in (first, second)]
            p, q = ([score / sum(each) for score in each] for each in scores)
            label = int(labels[row, place])
            surprise = -math.log(p[label]) - math.log(q[label])
            apart = sum(a * math.log(a / b) + b * math.log(b / a) for a, b in zip(p, q, strict=True)) / 2
            total += (surprise + alpha * apart) / 2
    return total


def passes() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    first, second = (torch.randn(3, 5, 7, dtype=torch.double, requires_grad=True) for _ in range(2))
    return first, second, torch.randint(7, (3, 5)), torch.rand(3, 5) > 0.3


@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0])
def test_the_formula(alpha: float) -> None:
    first, second, labels, real = passes()
    loss = r_drop(first, second, labels, real, strength=alpha)
    assert float(loss.total.detach()) == pytest.approx(by_hand(first, second, labels, real, alpha), abs=1e-12)
    assert loss.count == real.sum()
    torch.testing.assert_close(
        r_drop(first, second, labels, strength=alpha).total, r_drop(first, second, labels, torch.ones_like(real), strength=alpha).total
    )


def test_gradients() -> None:
    first, second, labels, real = passes()

    def total(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return r_drop(one, other, labels, real, strength=3.0, smoothing=0.1).total

    assert torch.autograd.gradcheck(total, (first, second))
    total(first, second).backward()
    assert first.grad is not None
    assert (first.grad[~real] == 0).all()


def test_passes_that_agree_are_one_pass() -> None:
    first, _, labels, real = passes()
    once = cross_entropy(first, labels, real, smoothing=0.1)
    twice = r_drop(first, first, labels, real, strength=5.0, smoothing=0.1)
    torch.testing.assert_close(twice.total, once.total)
    assert twice.count == once.count


def test_divergence_is_torchs() -> None:
    first, second, _, real = passes()
    p, q = first.log_softmax(-1), second.log_softmax(-1)
    both = torch.nn.functional.kl_div(p, q, log_target=True, reduction="none") + torch.nn.functional.kl_div(
        q, p, log_target=True, reduction="none"
    )
    torch.testing.assert_close(divergence(first, second, real), both.sum(-1)[real].sum() / 2)


def test_half_precision_is_summed_in_float32() -> None:
    first, second, labels, real = passes()
    half = r_drop(first.bfloat16(), second.bfloat16(), labels, real, strength=2.0).total
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.double(), r_drop(first, second, labels, real, strength=2.0).total, rtol=0.02, atol=0.0)


def test_two_batches_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"gave \(2, 3\) and \(4, 3\); they read the same batch"):
        r_drop(torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(2, dtype=torch.long), strength=1.0)


def test_compiled_it_is_the_same_and_warns_nobody() -> None:
    """The compiler asks logits, which are no leaves, for gradients, and hides what PyTorch says to that."""
    first, second, labels, real = passes()
    compiled = torch.compile(r_drop, backend="eager")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = compiled(first * 2, second * 2, labels, real, strength=1.0)
    assert torch.equal(found.total, r_drop(first * 2, second * 2, labels, real, strength=1.0).total)
    assert not [str(each.message) for each in said if "leaf" in str(each.message)]
