from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.training import loss as losses
from regard.training.loss import cross_entropy, vocabulary_loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_loss_equals_torch(smoothing: float) -> None:
    logits, labels = torch.randn(3, 7, 11, dtype=torch.double), torch.randint(11, (3, 7))
    real = torch.rand(3, 7) > 0.3
    ours = cross_entropy(logits, labels, real, smoothing=smoothing)
    theirs = F.cross_entropy(logits.flatten(0, 1), labels.masked_fill(~real, -100).flatten(), label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(ours.total, theirs, rtol=1e-12, atol=1e-12)
    assert ours.count == real.sum()
    torch.testing.assert_close(ours.mean, theirs / real.sum())


def test_padding_has_no_gradient() -> None:
    logits = torch.randn(2, 4, 5, requires_grad=True)
    real = torch.tensor([[True, True, False, False], [True] * 4])
    cross_entropy(logits, torch.zeros(2, 4, dtype=torch.long), real, smoothing=0.1).total.backward()
    assert logits.grad is not None
    assert (logits.grad[~real] == 0).all()
    assert (logits.grad[real] != 0).any(-1).all()


def test_sums_of_parts_are_the_sum_of_the_whole() -> None:
    """A mean of means would weigh a short part as much as a long one."""
    logits, labels = torch.randn(8, 5, dtype=torch.double), torch.randint(5, (8,))
    whole = cross_entropy(logits, labels)
    parts = [cross_entropy(logits[:1], labels[:1]), cross_entropy(logits[1:], labels[1:])]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)
    assert sum(part.count for part in parts) == whole.count == 8


def test_nothing_real_is_zero() -> None:
    loss = cross_entropy(torch.randn(1, 2, 3), torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2, dtype=torch.bool))
    assert loss.total == loss.count == loss.mean == 0


def test_half_precision_is_summed_in_float32() -> None:
    logits = torch.randn(50, 1000).bfloat16()
    labels = torch.randint(1000, (50,))
    torch.testing.assert_close(cross_entropy(logits, labels).total, F.cross_entropy(logits.float(), labels, reduction="sum"))


def plain(states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, real: Tensor, smoothing: float, scale: float) -> Tensor:
    return cross_entropy(F.linear(states * scale, weight, bias), labels, real, smoothing=smoothing).total


@pytest.mark.parametrize("at_a_time", [3 * 11, 10**6])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_some_logits_at_a_time_equal_all_at_once(
    monkeypatch: pytest.MonkeyPatch, smoothing: float, with_bias: bool, scale: float, at_a_time: int
) -> None:
    """The loss and the gradients of states, weights and bias, with padding, in float64."""
    monkeypatch.setitem(losses.LOGITS, "cpu", at_a_time)
    states, weight = torch.randn(2, 5, 6, dtype=torch.double), torch.randn(11, 6, dtype=torch.double)
    bias = torch.randn(11, dtype=torch.double) if with_bias else None
    labels, real = torch.randint(11, (2, 5)), torch.rand(2, 5) > 0.3
    found = []
    for chunked in (True, False):
        inputs = [x.clone().requires_grad_() for x in (states, weight, bias) if x is not None]
        given = (inputs[0], inputs[1], inputs[2] if with_bias else None, labels, real)
        total = vocabulary_loss(*given, smoothing=smoothing, scale=scale) if chunked else plain(*given, smoothing, scale)
        found.append([total, *torch.autograd.grad(total * 0.7, inputs)])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_tied_weights_get_both_gradients() -> None:
    weight, ids, labels = torch.randn(11, 6, dtype=torch.double), torch.randint(11, (1, 4)), torch.randint(11, (1, 4))
    real = torch.ones(1, 4, dtype=torch.bool)
    slopes = []
    for loss in (lambda x, w: vocabulary_loss(x, w, None, labels, real), lambda x, w: plain(x, w, None, labels, real, 0.0, 1.0)):
        leaf = weight.clone().requires_grad_()
        loss(F.embedding(ids, leaf), leaf).backward()
        slopes.append(leaf.grad)
    torch.testing.assert_close(*slopes, rtol=1e-12, atol=1e-12)


def test_what_needs_no_gradient_gets_none() -> None:
    states, weight = torch.randn(1, 4, 6, requires_grad=True), torch.randn(11, 6)
    labels, real = torch.randint(11, (1, 4)), torch.ones(1, 4, dtype=torch.bool)
    vocabulary_loss(states, weight, None, labels, real).backward()
    assert states.grad is not None
    with torch.no_grad():
        total = vocabulary_loss(states, weight, None, labels, real)
    torch.testing.assert_close(total, plain(states, weight, None, labels, real, 0.0, 1.0))


def test_within_autocast_logits_are_half_and_sums_are_not() -> None:
    """Nothing is lost but what bfloat16 operands lose, and gradients come in the precision of what they are of."""
    states, weight = torch.randn(1, 40, 64), torch.randn(1000, 64, requires_grad=True)
    labels, real = torch.randint(1000, (1, 40)), torch.ones(1, 40, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        half = states.bfloat16().requires_grad_()
        total = vocabulary_loss(half, weight, None, labels, real, smoothing=0.1)
    total.backward()
    assert total.dtype == torch.float32
    assert (half.grad.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)  # type: ignore[union-attr]
    exact = plain(states, weight.detach(), None, labels, real, 0.1, 1.0)
    assert abs(float(total.detach() / exact) - 1) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [1000, 32768, 50257])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_on_a_gpu(vocabulary: int, smoothing: float) -> None:
    """In bfloat16, by our own kernel, against float64 on the same numbers."""
    states, weight = torch.randn(1, 300, 64, device="cuda"), torch.randn(vocabulary, 64, device="cuda") / 4
    bias = torch.randn(vocabulary, device="cuda")
    labels, real = torch.randint(vocabulary, (1, 300), device="cuda"), torch.rand(1, 300, device="cuda") > 0.2
    found = []
    for exact in (False, True):
        inputs = [x.bfloat16().to(torch.double if exact else torch.bfloat16).requires_grad_() for x in (states, weight, bias)]
        total = plain(*inputs, labels, real, smoothing, 1.0) if exact else vocabulary_loss(*inputs, labels, real, smoothing=smoothing)
        found.append([total.detach(), *torch.autograd.grad(total, inputs)])
    errors = [float((got.double() - want).norm() / want.norm()) for got, want in zip(*found, strict=True)]
    print(f"vocabulary {vocabulary}, smoothing {smoothing}: " + ", ".join(f"{value:.1e}" for value in errors))
    assert max(errors) < 1e-2
    assert (found[0][1][~real] == 0).all()
