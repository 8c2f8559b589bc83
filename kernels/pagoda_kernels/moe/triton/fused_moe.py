"""Launches the mixture of experts: sort by expert, two grouped matmuls, sum over a token's experts.

Tile shapes are reasoned, not measured: in decode an expert has a handful of rows and the time is
that of reading its weights, so tiles are 16 rows and as many bytes in flight as in `matmul_tiles`.
"""

import torch
import triton

from pagoda_kernels.gate.clamped_swiglu import ClampedSwiglu
from pagoda_kernels.matmul.triton.matmul_tiles import MatmulTile, grouped_rows, tuned_tile
from pagoda_kernels.matmul.triton.row_groups import group_rows
from pagoda_kernels.matmul.weights import FP8
from pagoda_kernels.moe.expert_gate import ExpertGate
from pagoda_kernels.moe.triton.expert_matmul import (
    EMULATED,
    NATIVE,
    UNSCALED,
    moe_down_kernel,
    moe_gate_up_kernel,
    moe_sum_kernel,
)
from pagoda_kernels.triton.launch import IS_INTERPRETED, next_power_of_2, on_device_of
from pagoda_kernels.triton.one_byte_tiles import converts_e4m3

MAX_BLOCK_H = 1024


def tile_shape(block_m: int, weight_bytes: int, element_bytes: int) -> MatmulTile:
    """Tile for groups as `grouped_rows` says, weights and x of so many bytes per element."""
    if element_bytes == 4:
        return MatmulTile(16, 32, 128 if weight_bytes == 1 else 32, 4, 2)
    if block_m < 64:
        return MatmulTile(block_m, 64, 128 if weight_bytes == 1 else 64, 4, 4)
    return MatmulTile(64, 128, 64, 8, 3)


def weight_kind(weight: torch.Tensor, is_emulated: bool | None = None) -> int:
    """How `moe_gate_up_kernel` and `moe_down_kernel` read the weights."""
    if weight.dtype != FP8:
        return int(UNSCALED.value)
    if is_emulated is None:
        is_emulated = not converts_e4m3(weight.device)
    return int(EMULATED.value if is_emulated else NATIVE.value)


def fused_moe(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up_scale: torch.Tensor | None,
    down_scale: torch.Tensor | None,
    *,
    gate_up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    gate: ExpertGate | None = None,
    is_emulated: bool | None = None,
) -> torch.Tensor:
    """Five launches; arguments as `pagoda_kernels.fused_moe`."""
    num_tokens, hidden = x.shape
    num_experts, width = gate_up.shape[0], gate_up.shape[1] // 2
    top_k = experts.shape[1]
    num_rows = num_tokens * top_k
    out = torch.empty(num_tokens, hidden, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out.zero_()
    block_m = grouped_rows(num_rows, num_experts)
    tile = tile_shape(block_m, gate_up.element_size(), x.element_size())
    op = "moe e4m3" if gate_up.dtype == FP8 else "moe"
    tile = tuned_tile(op, block_m, x.element_size(), x.device, tile)
    kind = weight_kind(gate_up, is_emulated)
    if kind == EMULATED.value:
        gate_up, down = gate_up.view(torch.uint8), down.view(torch.uint8)
    groups = group_rows(experts, num_experts, tile.block_m)
    gated = torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(num_rows, hidden, dtype=x.dtype, device=x.device)
    shape = {
        "WEIGHT_KIND": kind,
        "UPCAST": IS_INTERPRETED,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "num_warps": tile.num_warps,
        "num_stages": tile.num_stages,
    }
    with on_device_of(x):
        moe_gate_up_kernel[(groups.max_tiles, triton.cdiv(width, tile.block_n))](
            x,
            gate_up,
            weights if gate_up_scale is None else gate_up_scale,
            weights if gate_up_bias is None else gate_up_bias,
            gated,
            groups.rows,
            groups.group_of_tile,
            groups.num_tiles,
            num_rows,
            width,
            hidden,
            x.stride(0),
            *gate_up.stride()[:2],
            *((0, 0) if gate_up_scale is None else gate_up_scale.stride()[:2]),
            gate.limit if isinstance(gate, ClampedSwiglu) else 0.0,
            gate.alpha if isinstance(gate, ClampedSwiglu) else 0.0,
            TOP_K=top_k,
            HAS_BIAS=gate_up_bias is not None,
            IS_CLAMPED=isinstance(gate, ClampedSwiglu),
            IS_GELU=gate == "gelu_tanh",
            **shape,
        )
        moe_down_kernel[(groups.max_tiles, triton.cdiv(hidden, tile.block_n))](
            gated,
            down,
            weights if down_scale is None else down_scale,
            weights if down_bias is None else down_bias,
            weights,
            parts,
            groups.rows,
            groups.group_of_tile,
            groups.num_tiles,
            num_rows,
            hidden,
            width,
            *down.stride()[:2],
            *((0, 0) if down_scale is None else down_scale.stride()[:2]),
            HAS_BIAS=down_bias is not None,
            **shape,
        )
        block_h = min(MAX_BLOCK_H, next_power_of_2(hidden))
        moe_sum_kernel[(num_tokens, triton.cdiv(hidden, block_h))](
            parts,
            experts,
            out,
            hidden,
            num_experts,
            TOP_K=top_k,
            BLOCK_K=next_power_of_2(top_k),
            BLOCK_H=block_h,
        )
    return out
