"""What one gateway knows of its tenants' prefixes, and explains beside its requests.

Comparing tokens and texts leaves the event loop, a few prompts at a time; the queue for that is
bounded, and who finds it full goes without an explanation.
"""

import asyncio
from collections.abc import Callable, Sequence

from pagoda_gateway import metrics
from pagoda_gateway.accounts.prefixes.explanation import (
    Compared,
    Decode,
    Outcome,
    PrefixMiss,
    explain,
    explain_alone,
)
from pagoda_gateway.accounts.prefixes.memory import PrefixMemory

MAX_EXPLAINED = 2  # at a time: each takes a core for milliseconds
MAX_WAITING = 64
WAIT_SECONDS = 1.0

LostMicros = Callable[[int, str, str, float], int | None]
"""(tokens, model, service tier, Unix seconds) -> micro-units that input tokens cost more than
cached ones; None: no price is known."""


class Prefixes:
    """Remembers and explains.

    Attributes:
        memory: of prompts.
        is_on: whether there is room for any.
        lost_micros: says what tokens cost that were computed in vain.
    """

    def __init__(self, *, max_bytes: int, max_tenant_bytes: int, lost_micros: LostMicros) -> None:
        """Remember so much in all, and of one tenant; 0 bytes: nothing."""
        self.memory = PrefixMemory(max_bytes=max_bytes, max_tenant_bytes=max_tenant_bytes)
        self.is_on = max_bytes > 0
        self.lost_micros = lost_micros
        self._places = asyncio.Semaphore(MAX_EXPLAINED)
        self._num_waiting = 0

    async def explain(
        self,
        token_ids: Sequence[int],
        make: Callable[[Sequence[int]], Compared],
        relatives: Sequence[Compared],
        outcome: Outcome,
        decode: Decode,
    ) -> PrefixMiss | None:
        """Return why a prompt missed, if it did; None too if too many others are being explained.

        Args:
            token_ids: of the prompt.
            make: what it is compared as; may take long.
            relatives: of it.
            outcome: of it.
            decode: see `explanation.explain`.
        """
        if not relatives:
            return explain_alone(outcome)
        if self._num_waiting >= MAX_WAITING:
            metrics.PREFIXES_UNEXPLAINED.inc()
            return None
        self._num_waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            metrics.PREFIXES_UNEXPLAINED.inc()
            return None
        finally:
            self._num_waiting -= 1
        try:
            return await asyncio.to_thread(
                lambda: explain(make(token_ids), relatives, outcome, decode)
            )
        finally:
            self._places.release()
