"""What one gateway knows of its tenants' prefixes, and explains beside its requests.

Comparing tokens and texts leaves the event loop, a few prompts at a time; the queue for that is
bounded, and who finds it full goes without an explanation.
"""

import asyncio
from collections.abc import Callable, Sequence

from pagoda_gateway import metrics
from pagoda_gateway.accounts.prefixes.explanation import (
    NEVER_SEEN,
    Compared,
    Decode,
    Outcome,
    PrefixMiss,
    explain,
)
from pagoda_gateway.accounts.prefixes.memory import PrefixMemory

MAX_EXPLAINED = 2  # at a time: each takes a core for milliseconds
MAX_WAITING = 64
WAIT_SECONDS = 1.0

TokenPrice = Callable[[str, str, float], float | None]
"""(model, service tier, Unix seconds) -> micro-units that an uncached input token costs more than a
cached one; None: no price is known."""


def no_price(_model: str, _service_tier: str, _at: float) -> float | None:
    """Know no price."""
    return None


class Prefixes:
    """Remembers and explains.

    Attributes:
        memory: of prompts.
        is_on: whether there is room for any.
    """

    def __init__(
        self, *, max_bytes: int, max_tenant_bytes: int, token_price: TokenPrice = no_price
    ) -> None:
        """Remember so much in all, and of one tenant; 0 bytes: nothing."""
        self.memory = PrefixMemory(max_bytes=max_bytes, max_tenant_bytes=max_tenant_bytes)
        self.is_on = max_bytes > 0
        self._token_price = token_price
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
        if not relatives and outcome.num_known_tokens <= outcome.num_cached_tokens:
            is_new = not outcome.num_cached_tokens and not outcome.num_known_tokens
            return NEVER_SEEN if is_new else None
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

    def lost_micros(
        self, num_lost_tokens: int, model: str, service_tier: str, at: float
    ) -> int | None:
        """Return what tokens that were computed in vain cost; None: no price is known."""
        price = self._token_price(model, service_tier, at)
        return None if price is None else round(num_lost_tokens * price)
