"""Explanations beside requests: bounded, off the event loop, and what lost tokens cost."""

import asyncio
import threading
from collections.abc import Sequence

import numpy as np

from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.accounts.prefixes import prefixes as module
from pagoda_gateway.accounts.prefixes.explanation import CacheKey, Compared, Outcome
from pagoda_gateway.accounts.prefixes.outline import Outline
from pagoda_gateway.accounts.prefixes.prefixes import Prefixes
from pagoda_gateway.metrics import PREFIXES_UNEXPLAINED

KEY = CacheKey("m", b"i" * 16, "", b"r" * 16)
EVICTED = Outcome(0, 64, 64, 0, 16)


def compared(token_ids: Sequence[int]) -> Compared:
    return Compared(KEY, np.asarray(token_ids, np.uint32), Outline())


UNLIKE = [compared(range(1000, 1100))]  # without any, nothing is compared, and nothing waits


def decode(token_ids: Sequence[int]) -> str:
    return " ".join(map(str, token_ids))


async def test_no_more_than_a_few_wait_and_a_cancelled_one_frees_its_place() -> None:
    prefixes = Prefixes(
        max_bytes=1 << 20, max_tenant_bytes=1 << 20, lost_micros=PriceBook().lost_micros
    )
    gate, entered = threading.Event(), threading.Semaphore(0)

    def blocked(token_ids: Sequence[int]) -> Compared:
        entered.release()
        assert gate.wait(60)
        return compared(token_ids)

    def explain() -> asyncio.Task[object]:
        return asyncio.create_task(prefixes.explain(range(100), blocked, UNLIKE, EVICTED, decode))

    before = PREFIXES_UNEXPLAINED._value.get()
    running = [explain() for _ in range(module.MAX_EXPLAINED)]
    for _ in running:
        assert await asyncio.to_thread(entered.acquire, timeout=60)
    waiting = [explain() for _ in range(module.MAX_WAITING)]
    await asyncio.sleep(0)
    assert await prefixes.explain(range(100), compared, UNLIKE, EVICTED, decode) is None
    assert PREFIXES_UNEXPLAINED._value.get() == before + 1
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    gate.set()
    found = await asyncio.gather(*running)
    assert [miss.kind for miss in found] == ["evicted"] * module.MAX_EXPLAINED  # type: ignore[attr-defined]
    miss = await prefixes.explain(range(100), compared, UNLIKE, EVICTED, decode)
    assert miss is not None
    assert (miss.num_lost_tokens, miss.place.name) == (64, "")
