"""Products with codes against products with what the codes stand for."""

import pytest
import torch
import torch.nn.functional as F

from pagoda_kernels.gate import reference as gate_reference
from pagoda_kernels.native.packed_linear import PackedLinear, can_pack
from pagoda_kernels.native.quantised_weight import GROUP, Bits, QuantisedWeight, quantise

BITS = pytest.mark.parametrize("bits", [8, 4])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
SHAPES = pytest.mark.parametrize(
    "shape", [(1, 2), (64, 64), (65, 130), (200, 34), (70, 4096)], ids=str
)


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.usefixtures("native", "num_threads")
@SHAPES
@BITS
@DTYPES
def test_product(dtype: torch.dtype, bits: Bits, shape: tuple[int, int]) -> None:
    weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)
    dense = quantise(weight, bits).dequantised(torch.float64)
    for used in (None, bias):
        linear = PackedLinear(weight, used, bits=bits)
        for num_rows in (1, 4, 5, 8, 9, 47, 48, 129, 300):
            x = torch.randn(num_rows, shape[1]).to(dtype)
            expected = F.linear(x.double(), dense, None if used is None else used.double())
            found = linear(x)
            assert found.dtype is dtype
            assert found.shape == expected.shape
            assert error(found, expected) < (5e-6 if dtype is torch.float32 else 4e-3)


def with_zeros(num_rows: int, width: int) -> QuantisedWeight:
    """Return codes of 4 bits whose groups have zero points, as far from 0 as checkpoints have."""
    codes = torch.randint(0, 16, (num_rows, width), dtype=torch.int8)
    shape = (num_rows, -(-width // GROUP))
    scales = (torch.rand(shape) / 16).bfloat16()
    zeros = torch.randint(-8, 9, shape, dtype=torch.int8)
    return QuantisedWeight(codes, scales, 4, tuple(range(-8, 8)), zeros)


@pytest.mark.usefixtures("native", "num_threads")
@SHAPES
@DTYPES
def test_product_with_zero_points(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight, bias = with_zeros(*shape), torch.randn(shape[0]).to(dtype)
    dense = weight.dequantised(torch.float64)
    linear = PackedLinear(weight, bias, dtype=dtype)
    for num_rows in (1, 4, 5, 8, 9, 47, 48, 129, 300):
        x = (torch.randn(num_rows, shape[1]) + 1).to(dtype)  # sums of x are far from 0
        found = linear(x)
        assert found.dtype is dtype
        expected = F.linear(x.double(), dense, bias.double())
        assert error(found, expected) < (5e-6 if dtype is torch.float32 else 4e-3)


@pytest.mark.usefixtures("native", "num_threads")
@DTYPES
def test_zero_points_of_both_halves_of_a_gate(dtype: torch.dtype) -> None:
    weight, x = with_zeros(222, 96), torch.randn(37, 96).to(dtype)
    joined = F.linear(x.float(), weight.dequantised(torch.float32)).to(dtype)
    found = PackedLinear(weight, is_gated=True, dtype=dtype)(x)
    expected = gate_reference.silu_mul(joined).double()
    assert error(found, expected) < (4e-6 if dtype is torch.float32 else 1e-2)


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("shape", [(2, 2), (64, 64), (130, 34), (222, 96)], ids=str)
@BITS
@DTYPES
def test_gated_product(dtype: torch.dtype, bits: Bits, shape: tuple[int, int]) -> None:
    weight, x = torch.randn(shape).to(dtype), torch.randn(37, shape[1]).to(dtype)
    bias = torch.randn(shape[0]).to(dtype)
    dense = quantise(weight, bits).dequantised(torch.float32)
    joined = F.linear(x.float(), dense, bias.float()).to(dtype)
    found = PackedLinear(weight, bias, is_gated=True, bits=bits)(x)
    expected = gate_reference.silu_mul(joined).double()
    assert error(found, expected) < (4e-6 if dtype is torch.float32 else 1e-2)


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("width", [64, 4110])
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "plain"])
@BITS
@DTYPES
def test_a_row_does_not_depend_on_the_others(
    dtype: torch.dtype, bits: Bits, width: int, is_gated: bool
) -> None:
    linear = PackedLinear(torch.randn(208, width).to(dtype), is_gated=is_gated, bits=bits)
    check_rows(linear, torch.randn(300, width).to(dtype))


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "plain"])
@DTYPES
def test_with_zero_points_neither(dtype: torch.dtype, is_gated: bool) -> None:
    linear = PackedLinear(with_zeros(208, 4110), is_gated=is_gated, dtype=dtype)
    check_rows(linear, torch.randn(300, 4110).to(dtype))


def check_rows(linear: PackedLinear, x: torch.Tensor) -> None:
    together = linear(x)
    torch.set_num_threads(1)
    for num_rows in (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 47, 48, 128, 129):
        assert torch.equal(linear(x[:num_rows]), together[:num_rows])
        assert torch.equal(linear(x[-num_rows:]), together[-num_rows:])


@pytest.mark.usefixtures("native")
@BITS
@DTYPES
def test_what_is_not_finite_stays_where_it_is(dtype: torch.dtype, bits: Bits) -> None:
    weight = torch.randn(70, 40).to(dtype)
    linear, x = PackedLinear(weight, bits=bits), torch.randn(20, 40).to(dtype)
    expected = linear(x)
    x[3, 5], x[11, 39] = float("nan"), float("inf")
    found = linear(x)
    assert found[3].isnan().all()
    # A code of 0 times infinity is NaN, any other infinite.
    assert not found[11].isfinite().any()
    others = [row for row in range(20) if row not in (3, 11)]
    assert torch.equal(found[others], expected[others])
    weight[7, 3] = float("nan")  # a damaged checkpoint is seen, in that output alone
    damaged = PackedLinear(weight, bits=bits)(x)
    assert damaged[others, 7].isnan().all()
    assert torch.equal(damaged[others, 8:], expected[others, 8:])


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("bits", "most"), [(8, 0.54), (4, 0.29)])
def test_memory_beside_bf16(bits: Bits, most: float) -> None:
    weight = torch.randn(256, 1024).bfloat16()
    assert PackedLinear(weight, bits=bits).num_bytes < most * weight.nbytes


@pytest.mark.usefixtures("native")
def test_memory_of_zero_points() -> None:
    linear = PackedLinear(with_zeros(256, 1024), dtype=torch.bfloat16)
    assert linear.num_bytes * 8 == 4.75 * 256 * 1024


@pytest.mark.usefixtures("native")
def test_odd_widths_are_not_packed() -> None:
    assert can_pack(torch.zeros(4, 3))
    assert not can_pack(torch.zeros(4, 3), bits=8)
    assert can_pack(torch.zeros(4, 6), bits=4)
