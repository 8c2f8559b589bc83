"""Turns checkpoint layouts (AWQ, GPTQ) and plain weights into the layouts of `weights`.

Runs once per weight at load, on the device of the weight. Knows nothing of the matmuls.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from pagoda_kernels.matmul.weights import FP8, FP8_BLOCK, FP8_MAX, Fp8Weight, Int4Weight, Int8Weight

AWQ_NIBBLE_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibble of an int32 that holds column i of its eight (AutoAWQ packs columns 0 2 4 6 1 3 5 7)."""

GROUP_SIZES = (32, 64, 128)
MIN_STEP = 64
"""Rows of K that are packed together at least: a quarter is the least depth of a tensor core."""


def pack_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> Int4Weight:
    """AWQ GEMM layout: eight output columns to an int32, interleaved.

    Args:
        qweight: ``[K, N / 8]`` int32.
        qzeros: ``[K / group_size, N / 8]`` int32.
        scales: ``[K / group_size, N]`` fp16 or bf16.

    Raises:
        ValueError: shapes do not fit or the group size is none of GROUP_SIZES.
    """
    nibbles = _unpack_columns(qweight, AWQ_NIBBLE_OF_COLUMN)
    zeros = _unpack_columns(qzeros, AWQ_NIBBLE_OF_COLUMN)
    return pack_int4(nibbles.T, scales, zeros.to(scales.dtype))


def pack_gptq(
    qweight: torch.Tensor,
    qzeros: torch.Tensor,
    scales: torch.Tensor,
    g_idx: torch.Tensor | None = None,
    *,
    zero_offset: int = 1,
) -> Int4Weight:
    """GPTQ layout: eight consecutive k to an int32, first k in the lowest nibble.

    Args:
        qweight: ``[K / 8, N]`` int32.
        qzeros: ``[K / group_size, N / 8]`` int32.
        scales: ``[K / group_size, N]`` fp16 or bf16.
        g_idx: ``[K]`` group of every k (desc_act); None for k // group_size.
        zero_offset: added to the stored zeros: 1 in GPTQ checkpoints (v1), 0 in gptq_v2.

    Raises:
        ValueError: shapes do not fit, the group size is none of GROUP_SIZES, or groups of `g_idx`
            differ in size.
    """
    nibbles = _unpack_columns(qweight.T.contiguous(), range(8))
    zeros = (_unpack_columns(qzeros, range(8)) + zero_offset).to(scales.dtype)
    order = None
    if g_idx is not None:
        num_k, num_groups = nibbles.shape[1], scales.shape[0]
        groups = torch.arange(num_k, device=g_idx.device) // (num_k // num_groups)
        if not torch.equal(g_idx.long(), groups):
            order = torch.argsort(g_idx.long(), stable=True)
            if not torch.equal(g_idx.long()[order], groups):
                raise ValueError(f"g_idx: expected groups of {num_k // num_groups}, got others")
            nibbles = nibbles[:, order]
    return pack_int4(nibbles, scales, zeros, order)


def pack_int4(
    nibbles: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    order: torch.Tensor | None = None,
) -> Int4Weight:
    """From nibbles ``[N, K]`` in 0..15 (any integer dtype), scales and zeros ``[K / group, N]``."""
    num_n, num_k = nibbles.shape
    group_size = num_k // max(1, scales.shape[0])
    if group_size == num_k and group_size % GROUP_SIZES[-1] == 0:  # per channel: repeat the scale
        group_size = GROUP_SIZES[-1]
        scales = scales.expand(num_k // group_size, num_n)
        zeros = zeros.expand(num_k // group_size, num_n)
    if group_size not in GROUP_SIZES or num_k % group_size or scales.shape[1] != num_n:
        raise ValueError(
            f"scales: expected [K / group_size, {num_n}] with group_size in {GROUP_SIZES} for "
            f"K {num_k}, got {list(scales.shape)}"
        )
    if zeros.shape != scales.shape:
        raise ValueError(f"zeros: expected shape {list(scales.shape)}, got {list(zeros.shape)}")
    step = max(group_size, MIN_STEP)
    if num_k % step:
        raise ValueError(f"nibbles: expected K a multiple of {step}, got {num_k}")
    quarters = nibbles.int().reshape(num_n, num_k // step, 4, step // 4)
    words = quarters[:, :, 0].clone()
    for i in (1, 2, 3):
        words |= quarters[:, :, i] << (4 * i)
    packed = words.permute(1, 0, 2).to(torch.int16).contiguous()
    return Int4Weight(packed, scales.contiguous(), zeros.contiguous(), order)


def quantise_int4(weight: torch.Tensor, group_size: int = 128) -> Int4Weight:
    """Asymmetric, nearest: from float ``[N, K]``, scales in the dtype of `weight`."""
    num_n, num_k = weight.shape
    groups = weight.float().reshape(num_n, num_k // group_size, group_size)
    low, high = groups.amin(-1).clamp_max(0.0), groups.amax(-1).clamp_min(0.0)
    scales = ((high - low) / 15).clamp_min(1e-8).to(weight.dtype).float()
    zeros = (-low / scales).round().clamp(0, 15)
    nibbles = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
    return pack_int4(
        nibbles.reshape(num_n, num_k), scales.T.to(weight.dtype), zeros.T.to(weight.dtype)
    )


def quantise_int8(weight: torch.Tensor) -> Int8Weight:
    """Symmetric per channel, nearest: from float ``[N, K]``, scales in the dtype of `weight`."""
    wide = weight.float()
    scales = (wide.abs().amax(1) / 127).clamp_min(1e-8).to(weight.dtype)
    values = (wide / scales.float()[:, None]).round().clamp(-127, 127)
    return Int8Weight(values.to(torch.int8), scales)


def quantise_fp8_weight(weight: torch.Tensor, granularity: str = "channel") -> Fp8Weight:
    """From float ``[N, K]``, scales for a "tensor", a "channel" or a 128x128 "block"."""
    wide = weight.float()
    num_n, num_k = wide.shape
    if granularity == "block":
        padded = F.pad(wide, (0, -num_k % FP8_BLOCK, 0, -num_n % FP8_BLOCK))
        num_blocks = padded.shape[0] // FP8_BLOCK, padded.shape[1] // FP8_BLOCK
        blocks = padded.reshape(num_blocks[0], FP8_BLOCK, num_blocks[1], FP8_BLOCK)
        scales = (blocks.abs().amax((1, 3)) / FP8_MAX).clamp_min(1e-12)
        values = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:num_n, :num_k]
        return Fp8Weight(values.contiguous().to(FP8), scales)
    largest = wide.abs().amax(1) if granularity == "channel" else wide.abs().amax()[None]
    scales = (largest / FP8_MAX).clamp_min(1e-12)
    return Fp8Weight((wide / scales[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), scales)


def _unpack_columns(packed: torch.Tensor, nibble_of_column: Iterable[int]) -> torch.Tensor:
    """``[R, C]`` int32 to ``[R, 8 C]`` int32 in 0..15; column i of eight is in the given nibble."""
    shifts = 4 * torch.tensor(list(nibble_of_column), device=packed.device)
    return ((packed[..., None] >> shifts) & 0xF).flatten(1).int()
