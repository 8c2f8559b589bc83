import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from pagoda_kernels.gate import reference as gate_reference
from pagoda_kernels.native.library import NativeLibrary
from pagoda_kernels.native.packed_linear import Activation, PackedLinear

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def errors(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("shape", [(1, 2), (64, 64), (65, 130), (200, 34), (96, 4096)], ids=str)
@DTYPES
def test_product(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight, bias = torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)
    for used in (None, bias):
        linear = PackedLinear(weight, used)
        for num_rows in (1, 5, 6, 7, 64, 129, 300):
            x = torch.randn(num_rows, shape[1]).to(dtype)
            wide = None if used is None else used.double()
            expected = F.linear(x.double(), weight.double(), wide)
            found = linear(x)
            assert found.shape == expected.shape
            assert errors(found, expected) < (5e-6 if dtype is torch.float32 else 4e-3)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("shape", [(1, 2), (64, 64), (65, 130), (200, 34)], ids=str)
@DTYPES
def test_rows_are_found_again(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).to(dtype)
    indices = torch.cat([torch.randint(shape[0], (9,)), torch.tensor([shape[0] - 1, 0])])
    assert torch.equal(PackedLinear(weight).rows(indices), weight[indices])
    assert PackedLinear(weight).rows(indices[:0]).shape == (0, shape[1])


@pytest.mark.usefixtures("native")
def test_rows_of_codes_and_gates_are_refused() -> None:
    weight, indices = torch.randn(64, 64), torch.tensor([0])
    for linear in (PackedLinear(weight, bits=8), PackedLinear(weight, is_gated=True)):
        with pytest.raises(ValueError, match="not looked up"):
            linear.rows(indices)


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("shape", [(2, 2), (64, 64), (130, 34), (222, 96)], ids=str)
@pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no-bias"])
@DTYPES
def test_gated_product(dtype: torch.dtype, shape: tuple[int, int], has_bias: bool) -> None:
    weight, x = torch.randn(shape).to(dtype), torch.randn(37, shape[1]).to(dtype)
    bias = torch.randn(shape[0]).to(dtype) if has_bias else None
    # The joined product, rounded as it is, then the gate.
    joined = F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(dtype)
    expected = gate_reference.silu_mul(joined)
    found = PackedLinear(weight, bias, is_gated=True)(x)
    assert errors(found, expected.double()) < (2e-6 if dtype is torch.float32 else 6e-3)


ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("shape", [(1, 2), (64, 64), (65, 130), (111, 34)], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@DTYPES
def test_activated_product(
    dtype: torch.dtype, shape: tuple[int, int], activation: Activation
) -> None:
    weight, x = torch.randn(shape).to(dtype), torch.randn(37, shape[1]).to(dtype)
    bias = torch.randn(shape[0]).to(dtype)
    rounded = F.linear(x.float(), weight.float(), bias.float()).to(dtype)
    expected = ACTIVATIONS[activation](rounded.double())
    found = PackedLinear(weight, bias, activation=activation)(x)
    assert errors(found, expected) < (2e-6 if dtype is torch.float32 else 6e-3)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_far_from_zero_and_near(activation: Activation) -> None:
    linear = PackedLinear(torch.tensor([[1.0, 0.0]]), activation=activation)
    x = torch.cat((torch.linspace(-30, 30, 4001), torch.logspace(-30, 30, 601))).double()
    x = torch.cat((x, -x)).float()
    found = linear(torch.stack((x, torch.zeros_like(x)), 1))[:, 0]
    expected = ACTIVATIONS[activation](x.double())
    error = (found - expected).abs()
    assert (error <= 4e-7 * x.abs().double().clamp(max=5)).all(), "of x, where it matters"
    assert (error <= 5e-7 * expected.abs())[(x > 0) & (x < 1e30)].all()


@pytest.mark.usefixtures("native", "num_threads")
@pytest.mark.parametrize("width", [64, 1536, 4096])
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "plain"])
@DTYPES
def test_a_row_does_not_depend_on_the_others(
    dtype: torch.dtype, width: int, is_gated: bool
) -> None:
    linear = PackedLinear(torch.randn(208, width).to(dtype), is_gated=is_gated)
    x = torch.randn(300, width).to(dtype)
    together = linear(x)
    torch.set_num_threads(1)
    for num_rows in (1, 2, 3, 5, 8, 13, 128, 129):
        assert torch.equal(linear(x[:num_rows]), together[:num_rows])
        assert torch.equal(linear(x[-num_rows:]), together[-num_rows:])


@pytest.mark.usefixtures("native")
def test_more_rows_than_there_is_room_for_as_floats() -> None:
    # Of 8 million numbers (WIDE_NUMBERS in threads.h): 2,032 rows of 4,096, then the other 8.
    linear = PackedLinear(torch.randn(64, 4096).bfloat16())
    x = torch.randn(2040, 4096).bfloat16()
    assert torch.equal(linear(x)[2020:], linear(x[2020:]))


@pytest.mark.usefixtures("native")
@DTYPES
def test_what_is_not_finite_stays_where_it_is(dtype: torch.dtype) -> None:
    linear = PackedLinear(torch.randn(70, 40).to(dtype))
    x = torch.randn(20, 40).to(dtype)
    expected = linear(x)
    x[3, 5], x[11, 39] = float("nan"), float("inf")
    found = linear(x)
    assert not found[3].isfinite().any()
    assert not found[11].isfinite().any()
    others = [row for row in range(20) if row not in (3, 11)]
    assert torch.equal(found[others], expected[others])


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("gate", [-float("inf"), -1e30, -200.0, 200.0, 1e30])
def test_gates_far_from_zero(gate: float) -> None:
    linear = PackedLinear(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), is_gated=True)
    x = torch.tensor([[gate, 1.0]])
    torch.testing.assert_close(
        linear(x), gate_reference.silu_mul(x), rtol=1e-6, atol=1e-30, equal_nan=True
    )


@pytest.mark.usefixtures("native")
def test_more_threads_than_there_may_be(native: NativeLibrary) -> None:
    assert native.threads(100_000)


@pytest.mark.usefixtures("native")
def test_rows_that_do_not_fit_are_refused() -> None:
    linear = PackedLinear(torch.randn(4, 6))
    with pytest.raises(ValueError, match=r"expected torch\.float32 \[M, 6\], got torch\.float32"):
        linear(torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"got torch\.bfloat16"):
        linear(torch.zeros(2, 6, dtype=torch.bfloat16))
