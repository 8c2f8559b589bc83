"""Codes of 4 and 8 bits out of int32 words, the lowest bits first."""

import sys

import torch

assert sys.byteorder == "little", "words are taken apart as bytes"


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return ``[R, C * 32 / bits]`` uint8 of int32 words ``[R, C]``."""
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), -1).flatten(1)


def unpacked_down(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return ``[C, R * 32 / bits]`` of words ``[R, C]`` that follow one another down a column."""
    return unpacked(words.t(), bits)
