"""The kernels for norm(x + dropout(change)) equal PyTorch's own, and drop as often as they should."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("width", [512, 384, 128, 1024])
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.6])
def test_outputs_and_gradients(width: int, dropout: float) -> None:
    """In bfloat16 against float64 on the same numbers, with what is dropped from the same seed read off a sum of ones."""
    from regard.nn.residual import add_norm

    x, change, reading = torch.randn(3, 2, 999, width, device="cuda").bfloat16().unbind(0)
    weight, bias = torch.rand(width, device="cuda") + 0.5, torch.randn(width, device="cuda")
    inputs = [tensor.requires_grad_() for tensor in (x.clone(), change.clone(), weight.clone(), bias.clone())]
    torch.manual_seed(1)
    output, _ = add_norm(*inputs, dropout=dropout, epsilon=1e-5)
    torch.manual_seed(1)
    kept = add_norm(torch.zeros_like(x), torch.ones_like(x), weight, bias, dropout=dropout, epsilon=1e-5)[1] != 0
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    want = F.layer_norm(exact[0] + exact[1] * kept / (1 - dropout), (width,), exact[2], exact[3], 1e-5)
    slopes = torch.autograd.grad((output * reading).sum(), inputs), torch.autograd.grad((want * reading).sum(), exact)
    errors = [
        float((got.detach().double() - true.detach()).norm() / true.detach().norm())
        for got, true in ((output, want), *zip(*slopes, strict=True))
    ]
    print(f"width {width}, dropout {dropout}: " + ", ".join(f"{value:.1e}" for value in errors))
    assert max(errors) < 1e-2


def test_what_is_dropped_is_chance() -> None:
    """As many as asked for, in every column; not the same twice; and the same again from the same state."""
    from regard.nn.residual import add_norm

    x, change, weight = (
        torch.zeros(4096, 512, device="cuda").bfloat16(),
        torch.ones(4096, 512, device="cuda").bfloat16(),
        torch.ones(512, device="cuda"),
    )
    torch.manual_seed(1)
    first, second = (add_norm(x, change, weight, weight, dropout=0.1, epsilon=1e-5)[1] == 0 for _ in range(2))
    torch.manual_seed(1)
    again = add_norm(x, change, weight, weight, dropout=0.1, epsilon=1e-5)[1] == 0
    assert torch.equal(first, again)
    for dropped in (first, second):
        assert abs(float(dropped.float().mean()) - 0.1) < 1e-3
        assert float((dropped.float().mean(0) - 0.1).abs().max()) < 0.03
        assert float((dropped.float().mean(1) - 0.1).abs().max()) < 0.1
    both = [dropped.float().flatten() - 0.1 for dropped in (first, second)]
    assert abs(float((both[0] * both[1]).mean()) / 0.09) < 5e-3  # one tells nothing of the other
    neighbours = (both[0][1:] * both[0][:-1]).mean()
    assert abs(float(neighbours) / 0.09) < 5e-3
