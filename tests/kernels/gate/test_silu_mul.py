import pytest
import torch

from pagoda_kernels import silu_mul
from pagoda_kernels.gate import reference
from pagoda_kernels.gate.triton import silu_mul as triton_silu_mul

OPERATOR = {"cpu": silu_mul, "triton": triton_silu_mul.silu_mul}


@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (63, 2500), (127, 127)])
def test_matches_reference(path, device, dtype, num_tokens, width, assert_close):
    gate_up = (4 * torch.randn(num_tokens, 2 * width, device=device)).to(dtype)
    assert_close(OPERATOR[path](gate_up), reference.silu_mul(gate_up))


def test_takes_rows_apart(path, device, dtype, assert_close):
    gate_up = torch.randn(9, 700, device=device).to(dtype)[:, 50:450]
    got = OPERATOR[path](gate_up)
    assert got.is_contiguous()
    assert_close(got, reference.silu_mul(gate_up))


def test_takes_no_tokens(path, device):
    assert OPERATOR[path](torch.ones(0, 8, device=device)).shape == (0, 4)


def test_says_what_does_not_fit():
    with pytest.raises(ValueError, match="gate_up: expected an even width, got 7"):
        silu_mul(torch.ones(2, 7))
    with pytest.raises(ValueError, match=r"gate_up: expected shape \[any, any\], got \[2, 2, 8\]"):
        silu_mul(torch.ones(2, 2, 8))
    with pytest.raises(ValueError, match="gate_up: expected stride 1 in the last dim, got 2"):
        silu_mul(torch.ones(8, 2).T)
