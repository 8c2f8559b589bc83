"""What a grammar is to the engine. Knows tokens; the library behind it knows languages."""

from collections.abc import Sequence
from typing import Protocol

import torch


class TokenMask(Protocol):
    """Which tokens may come next. Asked in the step's thread, before each sampled token.

    Must answer at once, and from the tokens alone: after a preemption or a failover it is asked
    again for the same ones.
    """

    def allowed(self, output_token_ids: Sequence[int]) -> torch.Tensor:
        """Return ``[vocab_size]`` bool on the CPU, at least one of them True.

        Args:
            output_token_ids: the whole output so far; not to be kept.
        """
        ...
