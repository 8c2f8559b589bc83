import pytest
import torch

from pagoda_kernels import apply_rope
from pagoda_kernels.rope import reference
from pagoda_kernels.rope import triton as triton_rope

OPERATOR = {"cpu": apply_rope, "triton": triton_rope.apply_rope}
MAX_POSITION = 300


def make_cos_sin(rot_dim, device):
    angles = torch.rand(MAX_POSITION, rot_dim // 2, device=device) * 6.3
    return torch.cat([angles.cos(), angles.sin()], -1)


@pytest.mark.parametrize(
    ("num_tokens", "head_dim", "rot_dim"),
    [(1, 64, 64), (15, 80, 80), (33, 96, 36), (7, 128, 64), (7, 256, 256)],
)
def test_matches_reference(path, device, dtype, num_tokens, head_dim, rot_dim, assert_close):
    q = torch.randn(num_tokens, 3, head_dim, device=device).to(dtype)
    k = torch.randn(num_tokens, 1, head_dim, device=device).to(dtype)
    positions = torch.randint(0, MAX_POSITION, (num_tokens,), device=device)
    cos_sin = make_cos_sin(rot_dim, device)
    before = q.clone()
    got = OPERATOR[path](q, k, positions, cos_sin)
    for mine, want in zip(got, reference.apply_rope(q, k, positions, cos_sin), strict=True):
        assert_close(mine, want)
    assert torch.equal(q, before)


@pytest.mark.parametrize(
    ("num_tokens", "head_dim", "rot_dim"), [(1, 64, 64), (15, 80, 80), (33, 96, 36), (7, 256, 64)]
)
def test_interleaved_matches_reference(
    path, device, dtype, num_tokens, head_dim, rot_dim, assert_close
):
    q = torch.randn(num_tokens, 4, head_dim, device=device).to(dtype)[:, :3]
    k = torch.randn(num_tokens, 1, head_dim, device=device).to(dtype)
    positions = torch.randint(0, MAX_POSITION, (num_tokens,), device=device)
    cos_sin = make_cos_sin(rot_dim, device)
    got = OPERATOR[path](q, k, positions, cos_sin, interleaved=True)
    want = reference.apply_rope(q, k, positions, cos_sin, interleaved=True)
    for mine, theirs in zip(got, want, strict=True):
        assert_close(mine, theirs)
    assert torch.equal(got[0][..., rot_dim:], q[..., rot_dim:])


def test_the_reference_is_the_formula_of_transformers():
    q = torch.randn(9, 2, 80)
    positions = torch.randint(0, MAX_POSITION, (9,))
    cos_sin = make_cos_sin(64, "cpu")
    cos, sin = (half.repeat(1, 2)[:, None] for half in cos_sin[positions].chunk(2, -1))
    first, second = q[..., :64].chunk(2, -1)
    turned = q[..., :64] * cos + torch.cat([-second, first], -1) * sin
    got, _ = reference.apply_rope(q, q, positions, cos_sin)
    torch.testing.assert_close(got, torch.cat([turned, q[..., 64:]], -1))


def test_the_interleaved_reference_turns_complex_numbers():
    q = torch.randn(9, 2, 80)
    positions = torch.randint(0, MAX_POSITION, (9,))
    cos_sin = make_cos_sin(64, "cpu")
    cos, sin = cos_sin[positions][:, None].chunk(2, -1)
    turned = torch.view_as_complex(q[..., :64].unflatten(-1, (32, 2))) * torch.complex(cos, sin)
    got, _ = reference.apply_rope(q, q, positions, cos_sin, interleaved=True)
    want = torch.cat([torch.view_as_real(turned).flatten(-2), q[..., 64:]], -1)
    torch.testing.assert_close(got, want)


def test_takes_q_and_k_sliced_out_of_a_projection(path, device, dtype, assert_close):
    qkv = torch.randn(31, 6 * 64, device=device).to(dtype)
    q, k, _ = (x.unflatten(1, (-1, 64)) for x in qkv.split([256, 64, 64], 1))
    positions = torch.arange(31, dtype=torch.int32, device=device)
    cos_sin = make_cos_sin(64, device)
    got = OPERATOR[path](q, k, positions, cos_sin)
    for mine, want in zip(got, reference.apply_rope(q, k, positions, cos_sin), strict=True):
        assert mine.stride(-1) == 1
        assert_close(mine, want)


def test_passes_dims_beyond_the_rotated_unchanged(path, device, dtype):
    q = torch.randn(5, 2, 80, device=device).to(dtype)
    got, _ = OPERATOR[path](q, q, torch.arange(5, device=device), make_cos_sin(20, device))
    assert torch.equal(got[..., 20:], q[..., 20:])


def test_position_zero_of_a_real_table_is_the_identity(path, device):
    q = torch.randn(1, 2, 64, device=device)
    cos_sin = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], -1).to(device)
    got, _ = OPERATOR[path](q, q, torch.zeros(1, dtype=torch.int64, device=device), cos_sin)
    assert torch.equal(got, q)


@pytest.mark.parametrize(
    ("positions", "cos_sin", "message"),
    [
        (torch.zeros(3).long(), torch.ones(9, 8), r"positions: expected shape \[2\], got \[3\]"),
        (torch.zeros(2), torch.ones(9, 8), "positions: expected int32 or int64 on cpu, got"),
        (torch.zeros(2).long(), torch.ones(9, 7), "cos_sin: expected an even width <= head_dim 8"),
        (torch.zeros(2).long(), torch.ones(9, 10), "cos_sin: expected an even width <= head_dim 8"),
        (torch.zeros(2).long(), torch.ones(9, 8).half(), "cos_sin: expected fp32 on cpu, got"),
    ],
)
def test_says_what_does_not_fit(positions, cos_sin, message):
    q = torch.ones(2, 4, 8)
    with pytest.raises(ValueError, match=message):
        apply_rope(q, q, positions, cos_sin)
