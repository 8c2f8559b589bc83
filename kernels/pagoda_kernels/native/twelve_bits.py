"""Which high bytes of a bf16 weight have a code: it lies in twelve bits a number, unchanged.

What a product of few rows takes is the time to read its weight. Of a bf16 the low byte, the last
bit of the exponent and the mantissa, is nearly random; the high one, the sign and the rest of the
exponent, says little: nearly all numbers of a weight have one of sixteen. So four bits do, and what
has another one is kept beside.
"""

from dataclasses import dataclass

import torch

from pagoda_kernels.native.library import NativeLibrary
from pagoda_kernels.native.packed_lora import PANEL
from pagoda_kernels.native.structures import Linear

TWELVE_BITS = 12
NUM_HIGH_BYTES = 16
SAMPLE = 1 << 16
"""Numbers of a weight of which the commonest high bytes are taken."""
MAX_EXCEPTIONS = 1 / 512
"""Of all numbers: with more of them a quarter of a panel's steps would take long."""
EXCEPTION_BYTES = 8


@dataclass(frozen=True, slots=True)
class Exceptions:
    """As twelve_bits.h takes them; to be kept as long as the weight.

    Attributes:
        all: ``[n * EXCEPTION_BYTES]`` uint8: those of each panel and an end.
        first: ``[panels]`` int64: of each panel.
        high_bytes: ``[NUM_HIGH_BYTES]`` uint8: those that have a code.
    """

    all: torch.Tensor
    first: torch.Tensor
    high_bytes: torch.Tensor

    @property
    def num_bytes(self) -> int:
        """Memory."""
        return self.all.nbytes + self.first.nbytes + self.high_bytes.nbytes


def find_exceptions(
    library: NativeLibrary, threads: int, structure: Linear, weight: torch.Tensor
) -> Exceptions | None:
    """Let a packed projection have twelve bits a number, if few enough are exceptions.

    Args:
        library: that packs it.
        threads: of the library.
        structure: of the projection, without panels yet; is changed.
        weight: ``[N, K]`` bf16, contiguous; with a gate ``[2 * N, K]``.

    Returns:
        Room for the exceptions, where `structure` says; None: it stays dense.
    """
    high_bytes = _commonest(weight)
    structure.bits, structure.high_bytes = TWELVE_BITS, high_bytes.data_ptr()
    panel_outputs = PANEL // (1 + structure.is_gated)
    counts = torch.zeros(-(-structure.num_outputs // panel_outputs), dtype=torch.int64)
    library.count_exceptions(threads, structure, weight.data_ptr(), counts.data_ptr())
    total = int(counts.sum())
    if total > MAX_EXCEPTIONS * weight.numel():
        structure.bits, structure.high_bytes = 0, None
        return None
    ends = (counts + 1).cumsum(0)
    first = ends - counts - 1
    every = torch.zeros((total + len(counts)) * EXCEPTION_BYTES, dtype=torch.uint8)
    structure.exceptions, structure.first_exceptions = every.data_ptr(), first.data_ptr()
    return Exceptions(every, first, high_bytes)


def _commonest(weight: torch.Tensor) -> torch.Tensor:
    numbers = weight.view(torch.int16).flatten()
    numbers = numbers[:: len(numbers) // SAMPLE | 1]  # odd: not one column alone
    counts = torch.bincount((numbers.to(torch.int64) >> 8) & 0xFF, minlength=256)
    chosen = counts.sort(descending=True, stable=True).indices[:NUM_HIGH_BYTES]
    return chosen.to(torch.uint8)
