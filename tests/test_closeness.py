"""The tolerance follows the arithmetic: what another order of sums does is allowed, what a mistake does is not."""

from __future__ import annotations

import pytest
import torch

from regard.data.batch import Tokens
from regard.models import build
from regard.presets import preset
from tests.closeness import assert_close, blocks, tolerance


def test_grows_with_depth_and_magnitude_and_shrinks_with_precision() -> None:
    want = torch.randn(4, 9)
    assert tolerance(want, 5) == pytest.approx(2 * tolerance(want, 2))
    assert tolerance(3 * want, 2) == pytest.approx(3 * tolerance(want, 2))
    assert tolerance(want.double(), 2) < 1e-8 * tolerance(want, 2)


@torch.no_grad()
def test_rounding_is_within_and_a_mistake_is_not() -> None:
    model = build(preset("gpt-small", layers=3, width=64, heads=2, feedforward=128, vocabulary=61)).eval()
    assert blocks(model) == 3
    tokens = Tokens.pad([[4, 5, 6, 7], [8, 9]])
    want = model(tokens)
    exact = model.double()(tokens)
    assert_close(want, exact.float(), model)
    model.float()
    weight = max((parameter for parameter in model.parameters() if parameter.dim() == 2), key=lambda parameter: float(parameter.norm()))
    weight.mul_(1.001)
    with pytest.raises(AssertionError):
        assert_close(model(tokens), want, model)
