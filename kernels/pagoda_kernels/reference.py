"""Readable twins of every operator: the definition the fast paths are tested against.

Loops and fp32 throughout, no speed intended. Results come in the dtype of the input, rounded last,
except where an operator's docstring says it rounds between.
"""

import torch

from pagoda_kernels.kv_quantisation import LARGEST


def write_kv(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
) -> None:
    """One token at a time; negative slots are skipped."""
    block_size = k_cache.shape[1]
    for new, cache, scale in ((k, k_cache, k_scale), (v, v_cache, v_scale)):
        if scale is not None:
            largest = LARGEST[cache.dtype]
            new = (new.float() * (1 / scale)[:, None]).clamp(-largest, largest)
            new = new.round() if cache.dtype == torch.int8 else new
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot >= 0:
                cache[slot // block_size, slot % block_size] = new[token].to(cache.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As LlamaRMSNorm: rounded before the weight is applied."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum in the dtype of x, then `rms_norm`."""
    new_residual = residual + x
    return rms_norm(new_residual, weight, eps), new_residual


def apply_rope(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers: ``x * cos + rotate_half(x) * sin`` on the first R dims, in fp32."""
    rot_dim = cos_sin.shape[1]
    cos, sin = cos_sin[positions.long()].chunk(2, -1)
    cos, sin = torch.cat([cos, cos], -1)[:, None], torch.cat([sin, sin], -1)[:, None]

    def rotate(x: torch.Tensor) -> torch.Tensor:
        turned, passed = x[..., :rot_dim].float(), x[..., rot_dim:]
        first, second = turned.chunk(2, -1)
        turned = turned * cos + torch.cat([-second, first], -1) * sin
        return torch.cat([turned.to(x.dtype), passed], -1)

    return rotate(q), rotate(k)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """As LlamaMLP: the gate is rounded before the product."""
    gate, up = gate_up.chunk(2, -1)
    gate = gate.float()
    return (gate / (1 + torch.exp(-gate))).to(up.dtype) * up


def gather_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor) -> torch.Tensor:
    """One block at a time."""
    return torch.stack([kv_cache[:, :, block] for block in block_ids.tolist()])


def scatter_blocks(kv_cache: torch.Tensor, block_ids: torch.Tensor, blocks: torch.Tensor) -> None:
    """One block at a time, in place."""
    for row, block in enumerate(block_ids.tolist()):
        kv_cache[:, :, block] = blocks[row]
