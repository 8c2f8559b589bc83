"""Where what is large of clients' bodies is read, so that others have their turn meanwhile.

Knows bytes, tenants and a thread; what is done there comes from whoever reads a body.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pagoda_gateway.turns import Turns

INLINE_BYTES = 1 << 18  # what is above this size is done off the event loop

T = TypeVar("T")


class LargeBodies:
    """A thread, at which tenants take turns.

    There is one: parsers let go of the interpreter only at their end, and the event loop would wait
    for each that is there at once.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="large-bodies")
        self._turns = Turns(1)

    async def read(self, tenant: str, num_bytes: int, work: Callable[[], T]) -> T:
        """Return what `work` makes of so many bytes of a tenant's, here if they are few."""
        return work() if num_bytes <= INLINE_BYTES else await self.apart(tenant, work)

    async def apart(self, tenant: str, work: Callable[[], T]) -> T:
        """Return what `work` makes, in the thread, when it is the tenant's turn."""
        await self._turns.acquire(tenant)
        reading = asyncio.get_running_loop().run_in_executor(self._thread, work)
        reading.add_done_callback(lambda _: self._turns.release(tenant))
        return await reading

    def close(self) -> None:
        """Take nothing more; what is being read ends by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)
