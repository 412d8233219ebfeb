import pytest
import torch
from torch.nn import functional as F

from regard.training.loss import cross_entropy


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
