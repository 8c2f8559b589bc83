import pytest
import torch

from pagoda_kernels.gate import reference
from pagoda_kernels.gate.silu_mul_quantised import silu_mul_quantised
from pagoda_kernels.gate.triton import silu_mul_quantised as triton_op

OPERATOR = {"cpu": silu_mul_quantised, "triton": triton_op.silu_mul_quantised}
SCALE_TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CODE_TOLERANCE = {torch.float32: 5e-3, torch.float16: 1.5e-2, torch.bfloat16: 4e-2}
"""As for `rms_norm_quantised`."""


def check(got, want, dtype):
    assert got[0].dtype == torch.float8_e4m3fn
    assert (got[0].shape, got[1].shape) == (want[0].shape, want[1].shape)
    torch.testing.assert_close(got[1], want[1], rtol=SCALE_TOLERANCE[dtype], atol=0)
    mine, theirs = (pair[0].float() * pair[1][:, None] for pair in (got, want))
    assert (mine - theirs).norm() <= CODE_TOLERANCE[dtype] * theirs.norm()


@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (63, 127), (127, 500), (2, 20000)])
def test_matches_reference(path, device, dtype, num_tokens, width):
    gate_up = (4 * torch.randn(num_tokens, 2 * width, device=device)).to(dtype)
    check(OPERATOR[path](gate_up), reference.silu_mul_quantised(gate_up), dtype)


def test_takes_rows_apart(path, device, dtype):
    gate_up = torch.randn(9, 700, device=device).to(dtype)[:, 50:450]
    got = OPERATOR[path](gate_up)
    assert got[0].is_contiguous()
    check(got, reference.silu_mul_quantised(gate_up), dtype)


def test_takes_no_tokens(path, device):
    codes, scales = OPERATOR[path](torch.ones(0, 8, device=device))
    assert (codes.shape, scales.shape) == ((0, 4), (0,))


def test_says_what_does_not_fit():
    with pytest.raises(ValueError, match="gate_up: expected an even width, got 7"):
        silu_mul_quantised(torch.ones(2, 7))
