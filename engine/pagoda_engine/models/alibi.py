"""Slopes of ALiBi: how fast a head's scores fall with the distance to the key."""

import torch


def alibi_slopes(num_heads: int, bias_max: float) -> torch.Tensor:
    """Return ``[num_heads]`` float32 cpu.

    For a power of two heads ``2 ** -(i * bias_max / H)``, i from 1 to H. For others every second
    of the next power's, then the ones between them: as BLOOM and MPT have it.
    """
    power = 1 << (num_heads - 1).bit_length()
    slopes = 2.0 ** (-torch.arange(1, power + 1, dtype=torch.float64) * bias_max / power)
    if power != num_heads:
        slopes = torch.cat((slopes[1::2], slopes[::2]))[:num_heads]
    return slopes.float()
