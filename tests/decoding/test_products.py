"""Products with weights laid out beforehand: in float32 those of torch, in 8 bits the formula written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.decoding import products
from regard.decoding.products import MANY, FloatProduct, Int8Product, Product, available, sums_in_32_bits

needs_float = pytest.mark.skipif(not available(FloatProduct), reason="this PyTorch has no packed products")
needs_int8 = pytest.mark.skipif(not available(Int8Product), reason="this PyTorch has no int8 kernels for this CPU")
needs_32_bits = pytest.mark.skipif(not sums_in_32_bits(), reason="this CPU adds products of bytes in 16 bits")


def made(outputs: int, inputs: int, rows: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Weights whose rows are of very different sizes, a bias, and inputs."""
    weight = torch.randn(outputs, inputs) * torch.logspace(-3, 1, outputs)[:, None]
    return weight, torch.randn(outputs), torch.randn(rows, inputs) + 0.3


def in_whole_numbers(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """xWᵀ + b with W rounded to whole numbers by row and x by one scale for all of it; and what one unit of x is worth (outputs,)."""
    row = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
    rows = (weight / row).round().long()
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    unit = ((high - low) / (255 if sums_in_32_bits() else 127)).clamp(min=1e-30)
    zero = (-low / unit).round()
    whole = ((x / unit).round() + zero).clamp(0, 255 if sums_in_32_bits() else 127) - zero
    sums = (whole.long() @ rows.T).double() * unit.double() * row[:, 0].double()
    return (sums if bias is None else sums + bias).float(), unit * row[:, 0] * 127


# A number in the middle between two may be rounded either way: one unit of one input then.


@needs_int8
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(7, 16), (64, 48), (33, 300)])
def test_int8_is_its_formula(shape: tuple[int, int], biased: bool) -> None:
    weight, bias, x = made(*shape)
    own = bias if biased else None
    product = Int8Product(weight, own)
    for inputs in (x, x * 100, x.abs(), -x.abs(), torch.zeros_like(x)):
        wanted, unit = in_whole_numbers(inputs, weight, own)
        assert bool(((product(inputs) - wanted).abs() <= unit + 1e-5 * wanted.abs()).all())
        torch.testing.assert_close(product.relu(inputs), product(inputs).clamp(min=0))
    exact = torch.isclose(product(x), in_whole_numbers(x, weight, own)[0], rtol=1e-4, atol=1e-5)
    assert float(exact.float().mean()) > 0.9  # ties are rare
    assert not torch.allclose(product(x), F.linear(x, weight, own), rtol=1e-4)


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
@needs_32_bits
@pytest.mark.parametrize("shape", [(1024, 96), (96, 1024)])
def test_few_rows_are_as_many_rows(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """FBGEMM's kernel and oneDNN's: the same whole numbers, but for ties."""
    weight, bias, x = made(*shape, rows=MANY)
    few, many = Int8Product(weight, bias), Int8Product(weight, bias)
    assert many._for(x[:-1], relu=False) is many.few
    assert not many.many
    found = [each for part in (x, 3 * x, torch.cat((x, x))) for each in (many(part), many.relu(part))]
    assert many._for(x.view(4, MANY // 4, -1), relu=False) is many.many[False] is not many.few
    monkeypatch.setattr(products, "MANY", 10**6)
    wanted = [each for part in (x, 3 * x, torch.cat((x, x))) for each in (few(part), few.relu(part))]
    assert not few.many
    _, unit = in_whole_numbers(3 * x, weight, bias)
    for one, other in zip(found, wanted, strict=True):
        assert bool(((one - other).abs() <= unit + 1e-5 * other.abs()).all())
        assert float(torch.isclose(one, other, rtol=1e-4, atol=1e-4).float().mean()) > 0.9


@needs_int8
@needs_32_bits
def test_a_kernel_with_relu_is_never_taken_for_one_without() -> None:
    """oneDNN's layout keeps the kernel that it was used with first, by the shape of the inputs alone."""
    weight, bias, x = made(1024, 64, rows=MANY)
    for first in ("__call__", "relu"):
        product = Int8Product(weight, bias)
        getattr(product, first)(x)
        plain, without = product(x), product.relu(x)
        assert float(plain.min()) < 0
        torch.testing.assert_close(without, plain.clamp(min=0))


@needs_int8
def test_small_matrices_have_one_layout() -> None:
    weight, bias, x = made(64, 64, rows=2 * MANY)
    product = Int8Product(weight, bias)
    product(x)
    assert not product.many


@needs_int8
def test_the_engine_of_the_process_is_as_it_was() -> None:
    before = torch.backends.quantized.engine
    weight, bias, x = made(1024, 32, rows=MANY)
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
@pytest.mark.parametrize("rows", [4, MANY])
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
