import pytest
import torch

from pagoda_kernels import add_rms_norm, rms_norm
from pagoda_kernels.norm import reference
from pagoda_kernels.norm.triton import rms_norm as triton_rms_norm

EPS = 1e-5
ADD = {"cpu": add_rms_norm, "triton": triton_rms_norm.add_rms_norm}


def norm(path, x, weight, out=None, unit_offset=False):
    if path == "cpu":
        return rms_norm(x, weight, EPS, out=out, unit_offset=unit_offset)
    return triton_rms_norm.rms_norm(x, weight, EPS, out, unit_offset)


@pytest.mark.parametrize(
    ("num_tokens", "width"), [(1, 2048), (63, 100), (127, 64), (9, 5000), (3, 16384)]
)
def test_matches_reference(path, device, dtype, num_tokens, width, assert_close):
    x = torch.randn(num_tokens, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    assert_close(norm(path, x, weight), reference.rms_norm(x, weight, EPS))


def test_norms_heads_sliced_out_of_a_projection(path, device, dtype, assert_close):
    q = torch.randn(63, 9 * 80, device=device).to(dtype)[:, 80:400].unflatten(1, (4, 80))
    weight = torch.randn(80, device=device).to(dtype)
    assert_close(norm(path, q, weight), reference.rms_norm(q, weight, EPS))


def test_may_write_to_its_input(path, device, assert_close):
    x = torch.randn(7, 96, device=device)
    weight = torch.randn(96, device=device)
    want = reference.rms_norm(x, weight, EPS)
    assert norm(path, x, weight, out=x) is x
    assert_close(x, want)


def test_rounds_before_the_weight(path, device):
    x = torch.randn(15, 128, device=device).half()
    weight = torch.full((128,), 3.0, device=device).half()
    want = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)).half() * weight
    differing = (norm(path, x, weight) != want).float().mean().item()
    assert differing < 0.01  # only where two summation orders round the quotient apart


@pytest.mark.parametrize("num_tokens", [1, 63, 127])
def test_add_matches_reference(path, device, dtype, num_tokens, assert_close):
    x = torch.randn(num_tokens, 500, device=device).to(dtype)
    residual = torch.randn(num_tokens, 1000, device=device).to(dtype)[:, ::2].contiguous()
    weight = torch.randn(500, device=device).to(dtype)
    before = x.clone(), residual.clone()
    got = ADD[path](x, residual, weight, EPS)
    for mine, want in zip(got, reference.add_rms_norm(x, residual, weight, EPS), strict=True):
        assert_close(mine, want)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


@pytest.mark.parametrize("num_tokens", [1, 63])
def test_unit_offset_matches_reference(path, device, dtype, num_tokens, assert_close):
    x, residual = torch.randn(2, num_tokens, 100, device=device).to(dtype)
    weight = (0.1 * torch.randn(100, device=device)).to(dtype)
    alone = reference.rms_norm(x, weight, EPS, True)
    assert_close(norm(path, x, weight, unit_offset=True), alone)
    got = ADD[path](x, residual, weight, EPS, unit_offset=True)
    want = reference.add_rms_norm(x, residual, weight, EPS, True)
    for mine, theirs in zip(got, want, strict=True):
        assert_close(mine, theirs)
    assert norm(path, x, weight, out=x, unit_offset=True) is x
    assert_close(x, alone)


def test_unit_offset_rounds_once(path, device):
    x = torch.randn(15, 128, device=device).half()
    weight = torch.full((128,), 0.0002, device=device).half()  # 1 + that is no fp16
    wide = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)
    want = (wide * (1 + weight.float())).half()
    differing = (norm(path, x, weight, unit_offset=True) != want).float().mean().item()
    assert differing < 0.01


@pytest.mark.parametrize("width", [5120, 12288, 16384])
def test_add_takes_wide_rows(path, device, dtype, width, assert_close):
    x, residual = torch.randn(2, 3, width, device=device).to(dtype)
    weight = torch.randn(width, device=device).to(dtype)
    got = ADD[path](x, residual, weight, EPS)
    for mine, want in zip(got, reference.add_rms_norm(x, residual, weight, EPS), strict=True):
        assert_close(mine, want)


def test_add_takes_rows_apart(path, device, dtype, assert_close):
    x = torch.randn(31, 200, device=device).to(dtype)[:, :90]
    residual = torch.randn(31, 128, device=device).to(dtype)[:, 20:110]
    weight = torch.randn(90, device=device).to(dtype)
    got = ADD[path](x, residual, weight, EPS)
    for mine, want in zip(got, reference.add_rms_norm(x, residual, weight, EPS), strict=True):
        assert_close(mine, want)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(9), r"weight: expected shape \[8\], got \[9\]"),
        (torch.ones(8).half(), r"weight: expected torch.float32 on cpu as x, got torch.float16"),
    ],
)
def test_says_what_does_not_fit(weight, message):
    with pytest.raises(ValueError, match=message):
        rms_norm(torch.ones(2, 8), weight, EPS)
    with pytest.raises(ValueError, match=message):
        add_rms_norm(torch.ones(2, 8), torch.ones(2, 8), weight, EPS)


def test_refuses_integers():
    with pytest.raises(ValueError, match=r"x: expected fp32, fp16 or bf16, got torch\.int64"):
        rms_norm(torch.ones(2, 8, dtype=torch.int64), torch.ones(8), EPS)


def test_refuses_elements_apart():
    rows, apart, weight = torch.ones(2, 8), torch.ones(8, 2).T, torch.ones(8)
    with pytest.raises(ValueError, match="x: expected stride 1 in the last dim, got 2"):
        rms_norm(apart, weight, EPS)
    with pytest.raises(ValueError, match="residual: expected stride 1 in the last dim, got 2"):
        add_rms_norm(rows, apart, weight, EPS)
