import pytest
import torch

from pagoda_kernels.gate import reference
from pagoda_kernels.gate.gelu_mul import APPROXIMATIONS, gelu_mul
from pagoda_kernels.gate.triton import gelu_mul as triton_gelu_mul


def run(path, gate_up, approximate="tanh"):
    if path == "cpu":
        return gelu_mul(gate_up, approximate=approximate)
    return triton_gelu_mul.gelu_mul(gate_up, approximate)


@pytest.mark.parametrize("approximate", APPROXIMATIONS)
@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (17, 2500), (63, 127)])
def test_matches_reference(path, device, dtype, approximate, num_tokens, width, assert_close):
    gate_up = (4 * torch.randn(num_tokens, 2 * width, device=device)).to(dtype)
    assert_close(run(path, gate_up, approximate), reference.gelu_mul(gate_up, approximate))


def test_takes_rows_apart(path, device, dtype, assert_close):
    gate_up = torch.randn(9, 700, device=device).to(dtype)[:, 50:450]
    got = run(path, gate_up)
    assert got.is_contiguous()
    assert_close(got, reference.gelu_mul(gate_up))


def test_takes_no_tokens(path, device):
    assert run(path, torch.ones(0, 8, device=device)).shape == (0, 4)


def test_says_what_does_not_fit():
    with pytest.raises(ValueError, match="gate_up: expected an even width, got 7"):
        gelu_mul(torch.ones(2, 7))
    with pytest.raises(ValueError, match=r"approximate: expected one of .*, got 'erf'"):
        gelu_mul(torch.ones(2, 8), approximate="erf")
    with pytest.raises(ValueError, match="gate_up: expected stride 1 in the last dim, got 2"):
        gelu_mul(torch.ones(8, 2).T)
