"""Products with weights laid out beforehand: in float32 those of torch, in 8 bits the formula written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decoding.products import HEAVY, ROOMY, SPARE, FloatProduct, Int8Product, Product, available, sums_in_32_bits

needs_float = pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
needs_int8 = pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")


def made(outputs: int, inputs: int, rows: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Weights whose rows are of very different sizes, a bias, and inputs."""
    weight = torch.randn(outputs, inputs) * torch.logspace(-3, 1, outputs)[:, None]
    return weight, torch.randn(outputs), torch.randn(rows, inputs) + 0.3


def in_whole_numbers(product: Int8Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """xWᵀ + b with W and x rounded to whole numbers, and what one unit of x is worth.

    Each row of W has its scale. Rows of x have one of their own, or that of a range: what is beyond is cut off, or has its own again.
    """
    levels, least, greatest = 127 if sums_in_32_bits() else 63, -128, 127
    row = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    rows = (weight / row).round().long()
    unit = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / levels
    if product.range is not None:
        one = product.range / levels
        if product.positive:
            one, least, greatest = one / 2, 0, 255
        unit = torch.full_like(unit, one) if product.cuts else unit.clamp(min=one)
    sums = ((x / unit).round().clamp(least, greatest).long() @ rows.T).double() * unit.double() * row[:, 0].double()
    return (sums if bias is None else sums + bias).float(), unit * row[:, 0] * 127


def fitted(product: Int8Product, *rows: Tensor) -> Int8Product:
    product.look()
    for x in rows:
        product(x)
    product.fit()
    return product


RANGES = pytest.mark.parametrize("seen", ["nothing", "usual", "positive", "heavy"])


def ready(weight: Tensor, bias: Tensor | None, x: Tensor, seen: str) -> Int8Product:
    """A product whose rows have scales of their own, or the one of rows like x, of those after a ReLU, or of few that are very large."""
    product = Int8Product(weight, bias)
    if seen != "nothing":
        usual = x.abs() if seen == "positive" else x
        fitted(product, usual, usual[:1] * (100 if seen == "heavy" else 1))
    cuts = sums_in_32_bits() and seen in ("usual", "positive")
    assert (product.range is None, product.cuts, product.positive) == (seen == "nothing", cuts, cuts and seen == "positive")
    return product


# A number in the middle between two may be rounded either way: one unit of one input then.


@needs_int8
@RANGES
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(7, 16), (64, 48), (33, 300)])
def test_int8_is_its_formula(shape: tuple[int, int], biased: bool, seen: str) -> None:
    weight, bias, x = made(*shape)
    own = bias if biased else None
    product = ready(weight, own, x, seen)
    usual = x.abs() if seen == "positive" else x
    for inputs in (usual, usual * 100, x.abs(), -x.abs(), torch.zeros_like(x)):
        wanted, unit = in_whole_numbers(product, inputs, weight, own)
        assert bool(((product(inputs) - wanted).abs() <= unit + 1e-5 * wanted.abs()).all())
        torch.testing.assert_close(product.relu(inputs), product(inputs).clamp(min=0))
    exact = torch.isclose(product(usual), in_whole_numbers(product, usual, weight, own)[0], rtol=1e-4, atol=1e-5)
    assert float(exact.float().mean()) > 0.9  # ties are rare
    assert not torch.allclose(product(usual), F.linear(usual, weight, own), rtol=1e-4)


@needs_int8
def test_a_range_holds_all_that_was_seen() -> None:
    weight, bias, x = made(32, 64, rows=40)
    product = fitted(Int8Product(weight, bias), x[:3], x[3:])
    usual, largest = float(x.abs().amax(-1).median()), float(x.abs().max())
    assert product.range == pytest.approx(max(ROOMY * usual, SPARE[0] * largest) if product.cuts else ROOMY * usual)
    nearest = x.abs().amax(-1).argmax()
    for one in (x[nearest], x[nearest] * (product.range or 0.0) / largest):  # up to its end
        error = (product(one[None]) - F.linear(one, weight, bias)).abs()
        most = (product.range or 0.0) / product.levels / 2, weight.abs().amax(1) / 127 / 2  # of a number of x, and of each row of W
        assert bool((error <= most[0] * weight.abs().sum(1) + most[1] * (one.abs() + most[0]).sum() + 1e-5).all())
    assert fitted(Int8Product(weight, bias), x, HEAVY * 1.1 * x[nearest][None]).range == pytest.approx(ROOMY * usual, rel=0.05)


@needs_int8
@pytest.mark.skipif(not sums_in_32_bits(), reason="this CPU adds in 16 bits, which leaves no room")
def test_after_a_relu_steps_are_half_as_wide() -> None:
    weight, bias, x = made(48, 256, rows=60)
    x = x.clamp(min=0)
    products = fitted(Int8Product(weight, bias), x), fitted(Int8Product(weight, bias), x, -x[:1])
    errors = [float((product(x) - F.linear(x, weight, bias)).norm()) for product in products]
    weights_alone = float(((x.double() @ exactly(weight).T).float() + bias - F.linear(x, weight, bias)).norm())
    inputs_alone = [(error**2 - weights_alone**2) ** 0.5 for error in errors]
    wider = (products[0].range or 0.0) / (products[1].range or 1.0)  # what was not seen has more room
    assert wider == pytest.approx(SPARE[1] / SPARE[0])
    assert inputs_alone[0] == pytest.approx(wider * inputs_alone[1] / 2, rel=0.15)


def exactly(weight: Tensor) -> Tensor:
    """What the rows of W are after rounding."""
    row = weight.double().abs().amax(1, keepdim=True) / 127
    return (weight.double() / row).round() * row


@needs_int8
@RANGES
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(1024, 96), (96, 1024), (33, 50)])
def test_a_row_is_rounded_alike_in_any_company(shape: tuple[int, int], biased: bool, seen: str) -> None:
    """To the bit: whatever stands beside it, however many rows there are, wherever it stands, and with any number of threads."""
    weight, bias, x = made(*shape, rows=150)
    product = ready(weight, bias if biased else None, x, seen)
    x[3], x[4], x[5], x[6], x[7] = 50 * x[3], 0.0, 1e-4 * x[5], float("nan"), float("inf")
    alone = torch.cat([product(row[None]) for row in x])
    if not product.cuts:
        assert bool(alone[6].isnan().all())
        assert not bool(alone[7].isfinite().any())
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for rows in (range(150), range(2), range(2, 6), range(3, 20), range(8, 104), range(149, -1, -1)):
                torch.testing.assert_close(product(x[list(rows)]), alone[list(rows)], rtol=0, atol=0, equal_nan=True)
                torch.testing.assert_close(product.relu(x[list(rows)]), alone[list(rows)].relu(), rtol=0, atol=0, equal_nan=True)
    finally:
        torch.set_num_threads(before)


@needs_int8
def test_no_range_is_made_of_nothing() -> None:
    weight, bias, x = made(8, 16)
    for seen in (torch.zeros_like(x), x * float("nan"), x[:0]):
        assert fitted(Int8Product(weight, bias), seen).range is None
    assert fitted(Int8Product(weight, bias)).range is None
    product = fitted(Int8Product(weight, bias), x)
    product.forget()
    torch.testing.assert_close(product(x), Int8Product(weight, bias)(x), rtol=0, atol=0)


@pytest.mark.parametrize("kind", [pytest.param(FloatProduct, marks=needs_float), pytest.param(Int8Product, marks=needs_int8)])
def test_near_the_real_product_whatever_the_rows_are_like(kind: type[Product]) -> None:
    """Every row of W has a scale of its own: small ones are as near as large ones."""
    weight, bias, x = made(48, 256, rows=20)
    wanted = F.linear(x, weight, bias)
    error = (kind(weight, bias)(x) - wanted).norm(dim=0) / (wanted - bias).norm(dim=0)
    assert float(error.max()) < (0.02 if kind is Int8Product else 1e-5)


@needs_int8
def test_a_row_of_zeros_gives_its_bias() -> None:
    weight, bias, x = made(8, 32)
    weight[3] = 0
    torch.testing.assert_close(Int8Product(weight, bias)(x)[:, 3], bias[3].expand(5))


@needs_int8
def test_the_engine_of_the_process_is_as_it_was() -> None:
    before = torch.backends.quantized.engine
    weight, bias, x = made(1024, 32, rows=96)
    Int8Product(weight, bias)(x)
    assert torch.backends.quantized.engine == before


@needs_float
@pytest.mark.parametrize("biased", [True, False])
def test_float_products_are_those_of_torch(biased: bool) -> None:
    weight, bias, _ = made(40, 24)
    own = bias if biased else None
    product = FloatProduct(weight, own)
    for x in (torch.randn(1, 24), torch.randn(3, 5, 24), torch.randn(0, 24)):
        torch.testing.assert_close(product(x), F.linear(x, weight, own), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(product.relu(x), F.linear(x, weight, own).relu(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [pytest.param(FloatProduct, marks=needs_float), pytest.param(Int8Product, marks=needs_int8)])
def test_shapes_stay(kind: type[Product]) -> None:
    product = kind(*made(6, 8)[:2])
    for shape in ((1, 8), (2, 3, 8), (0, 8), (2, 0, 8)):
        assert product(torch.randn(shape)).shape == (*shape[:-1], 6)


def test_without_kernels_there_are_none() -> None:
    class Missing(Int8Product):
        def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
            raise RuntimeError("Didn't find engine for operation quantized::linear_prepack NoQEngine")

    class Wrong(FloatProduct):
        def __call__(self, x: Tensor) -> Tensor:
            return super().__call__(x) + 1

    assert not available(Missing)
    assert not available(Wrong)


@pytest.mark.parametrize("kind", [pytest.param(FloatProduct, marks=needs_float), pytest.param(Int8Product, marks=needs_int8)])
@pytest.mark.parametrize("rows", [4, 96])
def test_inputs_may_lie_in_memory_in_any_order(kind: type[Product], rows: int) -> None:
    weight, bias, x = made(1024, 32, rows=rows)
    product, across = kind(weight, bias), x.T.contiguous().T
    assert not across.is_contiguous()
    torch.testing.assert_close(product(across), product(x))
    torch.testing.assert_close(product.relu(across.view(2, rows // 2, 32)), product.relu(x).view(2, rows // 2, 1024))


@needs_int8
def test_what_is_no_number_stays_none() -> None:
    weight, bias, x = made(8, 32)
    assert bool(Int8Product(weight, bias)(x * float("nan")).isnan().all())
    with pytest.raises(RuntimeError):  # and nothing else is hidden
        Int8Product(weight, bias)(x[0, :5])
