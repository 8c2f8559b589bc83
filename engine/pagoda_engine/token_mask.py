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

    def ahead(
        self, output_token_ids: Sequence[int], proposed_token_ids: Sequence[int]
    ) -> list[TokenBits]:
        """Return what may come next, and what behind each of the tokens that may follow.

        The first is `bitmask`, the next one what `bitmask` would be behind the first proposed
        token, and so on, up to the first proposed token that may not come, or behind which it
        cannot be told what may. Where a token is forced it alone is in the set. The sequence has
        gone no step further.

        Args:
            output_token_ids: the whole output so far; not to be kept.
            proposed_token_ids: what might come next; none of them may be chosen yet.

        Raises:
            TokenMaskError: as `bitmask`.
        """
        ...


def has_token(bits: TokenBits, token_id: int) -> bool:
    """Tell whether a token is in a set."""
    return bool(bits[token_id >> 5] >> (token_id & 31) & 1)


def token_bits(token_ids: Collection[int], vocab_size: int) -> TokenBits:
    """Return int32 ``[ceil(vocab_size / 32)]`` with these tokens, all below `vocab_size`."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.bool_)
    bits[list(token_ids)] = True
    return np.packbits(bits, bitorder="little").view(np.int32)
