import pytest
import torch

from pagoda_kernels.matmul import pack as quant_pack
from pagoda_kernels.matmul import reference
from pagoda_kernels.matmul.quant_matmul import fp8_matmul, quant_matmul, quantise_fp8
from pagoda_kernels.matmul.triton.fp8_matmul import fp8_matmul as triton_fp8
from pagoda_kernels.matmul.triton.int4_matmul import int4_matmul as triton_int4
from pagoda_kernels.matmul.triton.int8_matmul import int8_matmul as triton_int8
from pagoda_kernels.matmul.triton.quantise_fp8 import quantise_fp8 as triton_quantise_fp8
from pagoda_kernels.matmul.weights import FP8, Fp8Weight, Int4Weight

QUANTISE = {
    "int8": quant_pack.quantise_int8,
    "int4": quant_pack.quantise_int4,
    "int4-g64": lambda weight: quant_pack.quantise_int4(weight, 64),
    "int4-g32": lambda weight: quant_pack.quantise_int4(weight, 32),
}
QUANTISE_FP8 = {"cpu": quantise_fp8, "triton": triton_quantise_fp8}
FP8_TOLERANCE = {torch.float32: 1e-3, torch.float16: 1.5e-3, torch.bfloat16: 1.6e-2}
"""Tensor cores of Hopper add products of fp8 in fewer bits than fp32."""


def relative_error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def weight_only(path, x, weight, out=None, num_splits=None):
    if path == "cpu":
        return quant_matmul(x, weight, out=out)
    if out is None:
        out = torch.full((len(x), weight.shape[0]), float("nan"), dtype=x.dtype, device=x.device)
    launch = triton_int4 if isinstance(weight, Int4Weight) else triton_int8
    launch(x, weight, out, num_splits=num_splits)
    return out


@pytest.mark.parametrize("name", QUANTISE)
@pytest.mark.parametrize(
    ("num_rows", "num_n", "num_k"), [(1, 127, 256), (63, 65, 384), (127, 130, 128)]
)
def test_weight_only_matches_reference(
    path, device, dtype, name, num_rows, num_n, num_k, assert_close
):
    weight = QUANTISE[name](torch.randn(num_n, num_k, device=device).to(dtype))
    x = torch.randn(num_rows, num_k, device=device).to(dtype)
    assert_close(weight_only(path, x, weight), reference.quant_matmul(x, weight))


@pytest.mark.parametrize("num_rows", [1, 5])
def test_int8_takes_odd_depths(path, device, dtype, num_rows, assert_close):
    weight = quant_pack.quantise_int8(torch.randn(63, 127, device=device).to(dtype))
    x = torch.randn(num_rows, 127, device=device).to(dtype)
    assert_close(weight_only(path, x, weight), reference.quant_matmul(x, weight))


@pytest.mark.parametrize("num_rows", [1, 2, 16])
def test_int4_takes_shapes_of_torchs_own_kernel(path, device, dtype, num_rows, assert_close):
    weight = quant_pack.quantise_int4(torch.randn(64, 256, device=device).to(dtype))
    x = torch.randn(num_rows, 256, device=device).to(dtype)
    assert_close(weight_only(path, x, weight), reference.quant_matmul(x, weight))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_rows_may_lie_apart(path, device, dtype, name, assert_close):
    weight = QUANTISE[name](torch.randn(33, 256, device=device).to(dtype))
    x = torch.randn(7, 600, device=device).to(dtype)[:, 40:296]
    wide = torch.full((7, 50), float("nan"), device=device, dtype=dtype)
    got = weight_only(path, x, weight, out=wide[:, 9:42])
    assert_close(got, reference.quant_matmul(x, weight))
    assert bool(wide[:, :9].isnan().all())
    assert bool(wide[:, 42:].isnan().all())


@pytest.mark.parametrize("path", ["triton"])
@pytest.mark.parametrize("name", ["int8", "int4"])
@pytest.mark.parametrize("num_splits", [2, 3, 7])
def test_splits_add_up_and_repeat(path, device, name, num_splits, assert_close):
    weight = QUANTISE[name](torch.randn(70, 640, device=device))
    x = torch.randn(17, 640, device=device)
    first = weight_only(path, x, weight, num_splits=num_splits)
    again = weight_only(path, x, weight, num_splits=num_splits)
    assert_close(first, reference.quant_matmul(x, weight))
    assert torch.equal(first, again)


@pytest.mark.parametrize("granularity", ["tensor", "channel", "block"])
@pytest.mark.parametrize(
    ("num_rows", "num_n", "num_k"), [(1, 130, 256), (63, 65, 200), (127, 127, 127)]
)
def test_fp8_matches_reference(path, device, dtype, granularity, num_rows, num_n, num_k):
    weight = quant_pack.quantise_fp8_weight(torch.randn(num_n, num_k, device=device), granularity)
    group_size = 128 if granularity == "block" else None
    x, scale = reference.quantise_fp8(torch.randn(num_rows, num_k, device=device), group_size)
    if path == "cpu":
        got = fp8_matmul(x, scale, weight, dtype=dtype)
    else:
        got = torch.full((num_rows, num_n), float("nan"), device=device, dtype=dtype)
        triton_fp8(x, scale, weight, got, num_splits=2)
    want = reference.fp8_matmul(x, scale, weight, dtype)
    assert got.dtype == dtype
    assert relative_error(got, want) < FP8_TOLERANCE[dtype]


@pytest.mark.parametrize("is_emulated", [True, False])
def test_fp8_bits_taken_apart_mean_the_same(is_emulated, dtype):
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no arithmetic on e4m3")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    codes = codes[(codes & 0x7F) != 0x7F].view(FP8)
    weight = Fp8Weight(torch.ones(16, 1, device=device).to(FP8), torch.ones(1, device=device))
    got = torch.full((len(codes), 16), float("nan"), device=device, dtype=dtype)
    one = torch.ones(1, device=device)
    triton_fp8(codes[:, None], one, weight, got, is_emulated=is_emulated)
    assert torch.equal(got, codes.to(dtype)[:, None].expand(-1, 16))


@pytest.mark.parametrize("group_size", [None, 128, 32])
@pytest.mark.parametrize(("num_rows", "num_k"), [(1, 127), (21, 640), (5, 5000)])
def test_quantise_fp8_matches_reference(path, device, dtype, group_size, num_rows, num_k):
    x = torch.randn(num_rows, 2 * num_k, device=device).to(dtype)[:, num_k:]
    values, scales = QUANTISE_FP8[path](x, group_size=group_size, scale=None)
    want, want_scales = reference.quantise_fp8(x, group_size)
    assert scales.shape == want_scales.shape
    assert torch.allclose(scales, want_scales, rtol=1e-5)
    assert values.is_contiguous()
    assert relative_error(values.float(), want.float()) < 1e-2  # next to a tie either way is right


def test_quantise_fp8_saturates_at_a_given_scale(path, device):
    x = torch.tensor([[1.0, -1000.0, 500.0, 0.0]], device=device)
    scale = torch.full((1,), 0.5, device=device)
    values, got_scale = QUANTISE_FP8[path](x, group_size=None, scale=scale)
    assert values.float().tolist() == [[2.0, -448.0, 448.0, 0.0]]
    assert got_scale is scale


@pytest.mark.parametrize("granularity", ["channel", "block"])
def test_quantises_activations_itself(granularity):
    weight = quant_pack.quantise_fp8_weight(torch.randn(96, 256), granularity)
    x = torch.randn(9, 256)
    want = x @ weight.dequantised().T
    assert relative_error(quant_matmul(x, weight), want) < 0.05  # 4 bits of significand


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_takes_no_rows(path, device, name):
    weight = QUANTISE[name](torch.randn(16, 128, device=device))
    assert weight_only(path, torch.ones(0, 128, device=device), weight).shape == (0, 16)


def test_says_what_does_not_fit():
    weight = quant_pack.quantise_int8(torch.randn(16, 128))
    with pytest.raises(ValueError, match=r"x: expected shape \[any, 128\], got \[2, 64\]"):
        quant_matmul(torch.ones(2, 64), weight)
    with pytest.raises(ValueError, match="x_scale: expected None for a weight-only format"):
        quant_matmul(torch.ones(2, 128), weight, x_scale=torch.ones(1))
    with pytest.raises(ValueError, match=r"out: expected torch.float32 on cpu, got torch.bfloat16"):
        quant_matmul(torch.ones(2, 128), weight, out=torch.ones(2, 16).bfloat16())
    fp8 = quant_pack.quantise_fp8_weight(torch.randn(16, 128))
    with pytest.raises(ValueError, match=r"x: expected torch.float8_e4m3fn, got torch.float32"):
        fp8_matmul(torch.ones(2, 128), torch.ones(2), fp8, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"x_scale: expected shape \[1\] or \[2\], got \[3\]"):
        fp8_matmul(torch.ones(2, 128).to(FP8), torch.ones(3), fp8, dtype=torch.float32)
