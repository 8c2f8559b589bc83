"""Weights that a file stores in blocks of few bits: what their bytes stand for.

Each is the format's own arithmetic in float32, so that a weight is what llama.cpp takes it for.
Works on any device. Knows bytes; knows nothing of files or names.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pagoda_engine.checkpoints import mxfp4

Decode = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One format.

    Attributes:
        num_elements: of a block; they follow one another in a row of the tensor.
        num_bytes: of a block.
        decode: blocks ``[N, num_bytes]`` uint8 to weights ``[N, num_elements]`` float32.
    """

    num_elements: int
    num_bytes: int
    decode: Decode


def _half(blocks: torch.Tensor, first: int) -> torch.Tensor:
    """Return the float16 at a byte of each block, ``[N, 1]`` float32."""
    return blocks[:, first : first + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Return ``[..., 2 * n]`` of ``[..., n]`` bytes: all low halves, then all high ones."""
    return torch.cat((packed & 15, packed >> 4), dim=-1)


def _bits(words: torch.Tensor) -> torch.Tensor:
    """Return ``[N, 32]`` of ``[N, 4]`` bytes: their bits, the lowest first."""
    shifts = torch.arange(8, dtype=torch.uint8, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float() * _half(blocks, 0)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_nibbles(blocks[:, 2:]).float() - 8) * _half(blocks, 0)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:]).float() * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 6:]) | (_bits(blocks[:, 2:6]) << 4)
    return (codes.float() - 16) * _half(blocks, 0)


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 8:]) | (_bits(blocks[:, 4:8]) << 4)
    return codes.float() * _half(blocks, 0) + _half(blocks, 2)


def _scales_and_minima(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return twice ``[N, 8]`` float32 of ``[N, 12]``: 16 numbers of 6 bits.

    The first four of each are the low bits of a byte; the others have four bits in the last four
    bytes, and two above the first ones.
    """
    first, second, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((first & 63, (last & 15) | ((first >> 6) << 4)), dim=-1)
    minima = torch.cat((second & 63, (last >> 4) | ((second >> 6) << 4)), dim=-1)
    return scales.float(), minima.float()


def _scaled(blocks: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
    """Return the weights of codes ``[N, 8, 32]``: each 32 have a scale and a minimum."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scales, minima = scales * _half(blocks, 0), minima * _half(blocks, 2)
    return (codes.float() * scales[:, :, None] - minima[:, :, None]).flatten(1)


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    return _scaled(blocks, _nibbles(blocks[:, 16:].view(-1, 4, 32)).view(-1, 8, 32))


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    codes = _nibbles(blocks[:, 48:].view(-1, 4, 32)).view(-1, 8, 32)
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)[None, :, None]
    fifth = (blocks[:, None, 16:48] >> shifts) & 1
    return _scaled(blocks, codes | (fifth << 4))


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    # Each half of a block is 128 codes: their low bits are 64 bytes of nibbles, the others 32 bytes
    # with two bits for each quarter.
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[None, None, :, None]
    high = (blocks[:, 128:192].view(-1, 2, 1, 32) >> shifts) & 3
    codes = (low | (high << 4)).float() - 32
    scales = blocks[:, 192:208].view(torch.int8).float() * _half(blocks, 208)
    return (codes.view(-1, 16, 16) * scales[:, :, None]).flatten(1)


BLOCK_FORMATS = {
    "Q8_0": BlockFormat(32, 34, _q8_0),
    "Q4_0": BlockFormat(32, 18, _q4_0),
    "Q4_1": BlockFormat(32, 20, _q4_1),
    "Q5_0": BlockFormat(32, 22, _q5_0),
    "Q5_1": BlockFormat(32, 24, _q5_1),
    "Q4_K": BlockFormat(256, 144, _q4_k),
    "Q5_K": BlockFormat(256, 176, _q5_k),
    "Q6_K": BlockFormat(256, 210, _q6_k),
    mxfp4.GGUF_TYPE: BlockFormat(mxfp4.BLOCK, mxfp4.GGUF_BYTES, mxfp4.gguf_values),
}
"""By the name that the file's format has for them."""
