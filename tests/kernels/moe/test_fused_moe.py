import pytest
import torch

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu
from pagoda_kernels.matmul.triton.row_groups import group_rows
from pagoda_kernels.matmul.weights import FP8
from pagoda_kernels.moe import reference
from pagoda_kernels.moe.fused_moe import fused_moe
from pagoda_kernels.moe.triton.fused_moe import fused_moe as triton_moe


def run(path, x, gate_up, down, weights, experts, scales=(None, None), **options):
    if path == "cpu":
        options |= {"gate_up_scale": scales[0], "down_scale": scales[1]}
        return fused_moe(x, gate_up, down, weights, experts, **options)
    return triton_moe(x, gate_up, down, weights, experts, *scales, **options)


def make_case(num_tokens, hidden, width, num_experts, top_k, *, dtype, device):
    x = torch.randn(num_tokens, hidden, device=device).to(dtype)
    gate_up = torch.randn(num_experts, 2 * width, hidden, device=device) * hidden**-0.5
    down = torch.randn(num_experts, hidden, width, device=device) * width**-0.5
    chosen = torch.rand(num_tokens, num_experts).argsort(1)[:, :top_k].int()
    weights = torch.rand(num_tokens, top_k, device=device)
    return x, gate_up.to(dtype), down.to(dtype), weights, chosen.contiguous().to(device)


@pytest.mark.parametrize(
    "shape", [(1, 63, 40, 5, 2), (19, 127, 63, 4, 3), (127, 64, 32, 3, 2), (5, 32, 16, 16, 1)]
)
def test_matches_reference(path, device, dtype, shape, assert_close):
    case = make_case(*shape, dtype=dtype, device=device)
    assert_close(run(path, *case), reference.fused_moe(*case))


def test_experts_elsewhere_add_nothing(path, device, dtype, assert_close):
    x, gate_up, down, weights, experts = make_case(17, 48, 32, 4, 2, dtype=dtype, device=device)
    experts[::3, 0] = -1
    experts[4] = -1
    got = run(path, x, gate_up, down, weights, experts)
    assert_close(got, reference.fused_moe(x, gate_up, down, weights, experts))
    assert not bool(got[4].any())


def test_takes_rows_apart(path, device, dtype, assert_close):
    x, *rest = make_case(9, 48, 32, 4, 2, dtype=dtype, device=device)
    apart = torch.cat([x, x, x], 1)[:, 48:96]
    assert_close(run(path, apart, *rest), reference.fused_moe(x, *rest))


@pytest.mark.parametrize("shape", [(5, 200, 136, 3, 2), (130, 128, 64, 2, 1)])
def test_takes_block_scaled_weights(path, device, dtype, shape, assert_close):
    x, gate_up, down, *routing = make_case(*shape, dtype=dtype, device=device)
    gate_up, down = gate_up.float().to(FP8), down.float().to(FP8)
    scales = [
        torch.rand(len(w), *[-(-size // 128) for size in w.shape[1:]], device=device) + 0.5
        for w in (gate_up, down)
    ]
    want = reference.fused_moe(
        x, gate_up, down, *routing, gate_up_scale=scales[0], down_scale=scales[1]
    )
    assert_close(run(path, x, gate_up, down, *routing, scales), want)


@pytest.mark.parametrize(
    "gate", [None, ClampedSwiglu(limit=0.7, alpha=1.702), "gelu_tanh"], ids=str
)
@pytest.mark.parametrize("shape", [(1, 63, 40, 5, 2), (19, 127, 63, 4, 3)])
def test_adds_biases_and_bounds_the_gate(path, device, dtype, shape, gate, assert_close):
    """Each of them changes the result."""
    case = make_case(*shape, dtype=dtype, device=device)
    _, hidden, width, num_experts, _ = shape
    options = {
        "gate_up_bias": torch.randn(num_experts, 2 * width, device=device).to(dtype),
        "down_bias": torch.randn(num_experts, hidden, device=device).to(dtype),
        "gate": gate,
    }
    want = reference.fused_moe(*case, **options)
    assert_close(run(path, *case, **options), want)
    for name in [name for name, value in options.items() if value is not None]:
        without = reference.fused_moe(*case, **{**options, name: None})
        assert (without - want).norm() > 0.05 * want.norm()


def test_takes_no_tokens(path, device):
    case = make_case(0, 32, 16, 4, 2, dtype=torch.float32, device=device)
    assert run(path, *case).shape == (0, 32)


@pytest.mark.parametrize("path", ["triton"])
@pytest.mark.parametrize(
    ("num_rows", "num_groups", "block_m"), [(1, 3, 16), (63, 5, 16), (2100, 3, 32)]
)
def test_row_groups_keep_order_and_pad_with_num_rows(path, device, num_rows, num_groups, block_m):
    groups = torch.randint(-1, num_groups, (num_rows,), dtype=torch.int32, device=device)
    made = group_rows(groups, num_groups, block_m)
    num_tiles = int(made.num_tiles)
    got = made.rows[: num_tiles * block_m].reshape(num_tiles, block_m).tolist()
    want = []
    for group in range(num_groups):
        rows = (groups == group).nonzero().flatten().tolist()
        rows += [num_rows] * (-len(rows) % block_m)
        want += [(group, rows[i : i + block_m]) for i in range(0, len(rows), block_m)]
    assert num_tiles <= made.max_tiles
    assert list(zip(made.group_of_tile[:num_tiles].tolist(), got, strict=True)) == want


def test_says_what_does_not_fit():
    x, gate_up, down, weights, experts = make_case(
        3, 32, 16, 4, 2, dtype=torch.float32, device=torch.device("cpu")
    )
    with pytest.raises(ValueError, match=r"down: expected shape \[4, 32, 16\], got \[4, 16, 32\]"):
        fused_moe(x, gate_up, down.transpose(1, 2), weights, experts)
    with pytest.raises(ValueError, match=r"experts: expected contiguous torch.int32 on cpu"):
        fused_moe(x, gate_up, down, weights, experts.long())
    with pytest.raises(ValueError, match="gate_up_scale: expected a tensor for e4m3 and None"):
        fused_moe(x, gate_up.to(FP8), down.to(FP8), weights, experts)
    with pytest.raises(ValueError, match=r"down_bias: expected shape \[4, 32\], got \[32\]"):
        fused_moe(x, gate_up, down, weights, experts, down_bias=torch.ones(32))
    with pytest.raises(ValueError, match=r"gate_up_bias: expected torch.float32 on cpu as x"):
        fused_moe(x, gate_up, down, weights, experts, gate_up_bias=torch.ones(4, 32).half())
    with pytest.raises(ValueError, match=r"gate_up: expected torch.float32 on cpu as x"):
        fused_moe(x, gate_up.half(), down, weights, experts)
