"""MXFP4: numbers of 4 bits (e2m1) of which 32 share a power of two (e8m0), as two tensors.

OCP Microscaling Formats 1.0. GGUF files have both in one tensor, blocks of a scale and 16 bytes,
and the numbers of a block in another order. Knows bytes; knows nothing of files or names.
"""

import math

import torch

from pagoda_engine.checkpoints.quantised.coded_weight import CodedWeight

BLOCK = 32
BLOCK_BYTES = BLOCK // 2
GGUF_BYTES = 1 + BLOCK_BYTES
GGUF_TYPE = "MXFP4"
LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""By the lower three bits of a number; the fourth is its sign."""

EXPONENT_BIAS = 127
WHOLE_LEVELS = tuple(int(2 * sign * level) for sign in (1, -1) for level in LEVELS)
"""What 16 codes stand for, doubled: whole numbers. Scales are then halved."""


def largest_scale(dtype: torch.dtype) -> int:
    """Return the highest scale with which no number is too large for a dtype."""
    exponent = math.frexp(torch.finfo(dtype).max)[1] - 1
    return exponent - 2 + EXPONENT_BIAS  # the largest level is 1.5 * 2 ** 2


def decode(blocks: torch.Tensor, scales: torch.Tensor, values: torch.Tensor) -> None:
    """Write the numbers that blocks stand for; exact in bf16, which has them all, and fp32.

    Args:
        blocks: ``[..., K / 32, 16]`` uint8; of two numbers in a byte the lower bits come first.
        scales: ``[..., K / 32]`` uint8, at most `largest_scale`.
        values: ``[..., K]`` of any float dtype, all three on one device; written.
    """
    signed = torch.tensor((*LEVELS, *(-level for level in LEVELS)))
    codes = torch.arange(256)
    pairs = torch.stack((signed[codes & 15], signed[codes >> 4]), 1).to(values.device)
    powers = (2.0 ** (codes.double() - EXPONENT_BIAS)).float().to(values.device)
    # A row of the first dim at a time: indices take four bytes for each byte.
    for some_blocks, some_scales, some_values in zip(blocks, scales, values, strict=True):
        numbers = pairs[some_blocks.int()].flatten(-2)
        numbers *= powers[some_scales.int()].unsqueeze(-1)
        some_values.copy_(numbers.flatten(-2))


def as_codes(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> CodedWeight:
    """Return what blocks stand for with their own codes; arguments as `decode`'s.

    The rows of all dims but the last follow one another. `dtype`: as `CodedWeight`'s.
    """
    return _coded(torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2), scales, dtype)


def gguf_as_codes(blocks: torch.Tensor, dtype: torch.dtype) -> CodedWeight:
    """As `as_codes`, of a GGUF file's blocks ``[..., K / 32, 17]`` uint8.

    The lower bits of all bytes are the first numbers, their higher bits the others.
    """
    codes = torch.cat((blocks[..., 1:] & 15, blocks[..., 1:] >> 4), -1)
    return _coded(codes, blocks[..., 0], dtype)


def gguf_values(blocks: torch.Tensor) -> torch.Tensor:
    """Return ``[N, 32]`` fp32 of such blocks ``[N, 17]``."""
    return gguf_as_codes(blocks[:, None], torch.float32).dequantised()


def _coded(codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> CodedWeight:
    """`codes`: ``[..., K / 32, 32]``."""
    powers = (2.0 ** (torch.arange(256).double() - EXPONENT_BIAS - 1)).bfloat16()
    return CodedWeight(
        codes=codes.flatten(-2).flatten(0, -2),
        scales=powers.to(scales.device)[scales.int()].flatten(0, -2),
        zeros=None,
        group_size=BLOCK,
        groups=None,
        bits=4,
        dtype=dtype,
        levels=WHOLE_LEVELS,
    )
