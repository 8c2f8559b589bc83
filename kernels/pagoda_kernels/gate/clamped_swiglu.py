"""The bounded gate of gpt-oss, on the output of its joined gate and up projection."""

from dataclasses import dataclass

import torch

from pagoda_kernels.gate.silu_mul import check_gate_up


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """``g * sigmoid(alpha * g) * (u + 1)``, with gate and up bounded.

    Attributes:
        limit: ``g = min(gate, limit)`` and ``u = clamp(up, -limit, limit)``.
        alpha: factor within the sigmoid.
    """

    limit: float
    alpha: float


def clamped_swiglu(gate_up: torch.Tensor, rule: ClampedSwiglu) -> torch.Tensor:
    """Return the gate of `rule` where ``gate, up`` are the halves of the last dim.

    Computed in fp32 and rounded once, on any device by torch: on a GPU `fused_moe` has it in the
    kernel of its first product.

    Args:
        gate_up: ``[T, 2 * I]`` fp32, fp16 or bf16; rows dense.
        rule: bounds and steepness.

    Returns:
        New contiguous ``[T, I]``.

    Raises:
        ValueError: not two-dimensional, not a float, or an odd width.
    """
    check_gate_up(gate_up)
    gate, up = gate_up.float().chunk(2, -1)
    gate = gate.clamp(max=rule.limit)
    gated = torch.sigmoid(gate * rule.alpha).mul_(gate)
    return gated.mul_(up.clamp(-rule.limit, rule.limit).add_(1)).to(gate_up.dtype)
