import pytest
import torch

from pagoda_kernels.gate import reference
from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu, clamped_swiglu

RULE = ClampedSwiglu(limit=7.0, alpha=1.702)


@pytest.mark.parametrize(("num_tokens", "width"), [(1, 64), (17, 250), (63, 127)])
def test_matches_reference(dtype, num_tokens, width, assert_close):
    gate_up = (6 * torch.randn(num_tokens, 2 * width)).to(dtype)
    assert_close(clamped_swiglu(gate_up, RULE), reference.clamped_swiglu(gate_up, RULE))


def test_is_bounded_as_it_says():
    gate_up = torch.tensor([[9.0, -30.0, 1.0, 0.0, 9.0, 0.5, -9.0, 0.0]])
    gate, up = torch.tensor([7.0, -30.0, 1.0, 0.0]), torch.tensor([7.0, 0.5, -7.0, 0.0])
    want = gate * torch.sigmoid(1.702 * gate) * (up + 1)
    torch.testing.assert_close(clamped_swiglu(gate_up, RULE)[0], want)


def test_takes_rows_apart_and_none():
    gate_up = torch.randn(9, 700)[:, 50:450]
    got = clamped_swiglu(gate_up, RULE)
    assert got.is_contiguous()
    assert torch.equal(got, clamped_swiglu(gate_up.clone(), RULE))
    assert clamped_swiglu(torch.ones(0, 8), RULE).shape == (0, 4)


def test_says_what_does_not_fit():
    with pytest.raises(ValueError, match="gate_up: expected an even width, got 7"):
        clamped_swiglu(torch.ones(2, 7), RULE)
