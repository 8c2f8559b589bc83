"""Readable twins of the block digest, the quantised activations and the further forms of RoPE."""

from collections.abc import Sequence

import torch

from pagoda_kernels.digest_keys import BASE, GAMMA, MASK, SEED, TILE_WORDS, mix
from pagoda_kernels.reference import add_rms_norm, rms_norm, silu_mul
from pagoda_kernels.reference_matmul import quantise_fp8


def digest_blocks(blocks: torch.Tensor) -> torch.Tensor:
    """One word at a time, in Python's integers."""
    return torch.tensor([list(_digest(bytes(row.tolist()))) for row in blocks], dtype=torch.uint8)


def _digest(block: bytes) -> bytes:
    def drawn(index: int) -> int:
        return mix(SEED + index * GAMMA & MASK) | 1

    sums = [len(block) * GAMMA, len(block) * GAMMA]
    for p in range(-(-len(block) // 4)):
        word = int.from_bytes(block[4 * p : 4 * p + 4], "little")
        sums[0] += word * pow(BASE, p, 1 << 64)
        sums[1] += word * drawn(TILE_WORDS + p // TILE_WORDS) * drawn(p % TILE_WORDS)
    return b"".join(mix(total & MASK).to_bytes(8, "little") for total in sums)


def rms_norm_quantised(
    x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Norm, then quantise each row."""
    return quantise_fp8(rms_norm(x, weight, eps))


def add_rms_norm_quantised(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add, norm, then quantise each row."""
    normed, new_residual = add_rms_norm(x, residual, weight, eps)
    return *quantise_fp8(normed), new_residual


def silu_mul_quantised(gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate, then quantise each row."""
    return quantise_fp8(silu_mul(gate_up))


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    *,
    interleaved: bool = False,
    sections: Sequence[int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One rotated pair of dims at a time."""
    half = cos_sin.shape[1] // 2
    axis_of = [axis for axis, size in enumerate(sections or [half]) for _ in range(size)]
    places = positions.long().reshape(len(sections or [half]), -1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        out = x.clone()
        for i in range(half):
            angles = cos_sin[places[axis_of[i]]]
            cos, sin = angles[:, i, None], angles[:, half + i, None]
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, half + i)
            a, b = x[..., first].float(), x[..., second].float()
            out[..., first] = (a * cos - b * sin).to(x.dtype)
            out[..., second] = (b * cos + a * sin).to(x.dtype)
        return out

    return rotate(q), rotate(k)
