"""What a grammar is to the engine. Knows tokens; the library behind it knows languages."""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenBits = npt.NDArray[np.int32]
"""A set of tokens: bit i % 32 of word i // 32 says whether token i is in it."""


class TokenMask(Protocol):
    """Which tokens may come next, and which must. Asked in the step's thread.

    Must answer at once, and from the tokens alone: after a preemption or a failover it is asked
    again for the same ones, and a failover may cut a forced run anywhere.
    """

    def bitmask(self, output_token_ids: Sequence[int]) -> TokenBits:
        """Return int32 ``[ceil(vocab_size / 32)]``, the tokens that may come next.

        Args:
            output_token_ids: the whole output so far; not to be kept.

        Raises:
            TokenMaskError: nothing may come next, or the grammar is too complex from here on.
        """
        ...

    def forced(self, output_token_ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens that must come next, whatever the model thinks; may be long.

        Empty where there is a choice, or an error, which `bitmask` raises.

        Args:
            output_token_ids: the whole output so far; not to be kept.
        """
        ...


def token_bits(token_ids: Collection[int], vocab_size: int) -> TokenBits:
    """Return int32 ``[ceil(vocab_size / 32)]`` with these tokens, all below `vocab_size`."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
