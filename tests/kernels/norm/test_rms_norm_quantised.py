import pytest
import torch

from pagoda_kernels.norm import reference
from pagoda_kernels.norm.rms_norm_quantised import add_rms_norm_quantised, rms_norm_quantised
from pagoda_kernels.norm.triton import rms_norm_quantised as triton_op

NORM = {"cpu": rms_norm_quantised, "triton": triton_op.rms_norm_quantised}
ADD = {"cpu": add_rms_norm_quantised, "triton": triton_op.add_rms_norm_quantised}
EPS = 1e-5
SCALE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2.4e-2}
"""Of a scale: its element may be rounded one unit apart. When interpreted, bf16 is truncated: the
sum, the norm and the product by up to 2**-7 each."""

CODE_TOLERANCE = {torch.float32: 5e-3, torch.float16: 1.5e-2, torch.bfloat16: 6e-2}
"""Relative error norm of the values: now and then one falls to the code next to its own."""


def check(got, want, dtype):
    for mine, theirs in zip(got[2:], want[2:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=SCALE_TOLERANCE[dtype], atol=0)
    assert got[0].dtype == torch.float8_e4m3fn
    assert (got[0].shape, got[1].shape) == (want[0].shape, want[1].shape)
    torch.testing.assert_close(got[1], want[1], rtol=SCALE_TOLERANCE[dtype], atol=0)
    mine, theirs = (pair[0].float() * pair[1][:, None] for pair in (got, want))
    assert (mine - theirs).norm() <= CODE_TOLERANCE[dtype] * theirs.norm()


def draw(num_tokens, width, dtype, device):
    x, residual = torch.randn(2, num_tokens, width, device=device).to(dtype)
    return x, residual, torch.randn(width, device=device).to(dtype)


@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (63, 127), (127, 500), (3, 16384)])
def test_matches_reference(path, device, dtype, num_tokens, width):
    x, _, weight = draw(num_tokens, width, dtype, device)
    got = NORM[path](x, weight, EPS)
    check(got, reference.rms_norm_quantised(x, weight, EPS), dtype)


@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (63, 127), (2, 8000)])
def test_add_matches_reference(path, device, dtype, num_tokens, width):
    x, residual, weight = draw(num_tokens, width, dtype, device)
    before = x.clone(), residual.clone()
    got = ADD[path](x, residual, weight, EPS)
    check(got, reference.add_rms_norm_quantised(x, residual, weight, EPS), dtype)
    assert got[2].dtype == dtype
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_takes_rows_apart(path, device, dtype):
    x, residual, weight = draw(31, 200, dtype, device)
    x, residual, weight = x[:, :90], residual[:, 20:110], weight[::2][:90]
    got = ADD[path](x, residual, weight, EPS)
    check(got, reference.add_rms_norm_quantised(x, residual, weight, EPS), dtype)


def test_the_largest_of_a_row_becomes_448(path, device):
    x, _, weight = draw(63, 300, torch.float32, device)
    codes, scales = NORM[path](x, weight, EPS)
    assert (codes.float().abs().amax(1) == 448).all()
    assert torch.isfinite(scales).all()


def test_zeros_stay_zeros(path, device, dtype):
    x = torch.zeros(5, 64, device=device, dtype=dtype)
    codes, scales = NORM[path](x, x[0] + 1, EPS)
    assert not codes.float().any()
    assert (scales > 0).all()


def test_takes_no_tokens(path, device):
    x, residual, weight = draw(0, 64, torch.float32, device)
    got = ADD[path](x, residual, weight, EPS)
    assert [tuple(part.shape) for part in got] == [(0, 64), (0,), (0, 64)]


def test_says_what_does_not_fit():
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match=r"x: expected shape \[any, any\], got \[8\]"):
        rms_norm_quantised(x[0], x[0], EPS)
    with pytest.raises(ValueError, match="x: expected stride 1 in the last dim, got 2"):
        rms_norm_quantised(torch.ones(8, 2).T, x[0], EPS)
    with pytest.raises(ValueError, match=r"weight: expected shape \[8\], got \[7\]"):
        rms_norm_quantised(x, x[0, :7], EPS)
    with pytest.raises(ValueError, match=r"residual: expected shape \[2, 8\], got \[1, 8\]"):
        add_rms_norm_quantised(x, x[:1], x[0], EPS)
