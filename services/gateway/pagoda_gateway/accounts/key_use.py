"""When keys were last used: noted in memory, written to the database once in a while.

No request waits for it, and a crash loses a minute of it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError

logger = logging.getLogger(__name__)

WRITE_SECONDS = 60.0
MAX_KEYS = 100_000  # used since the last write; further ones are noted the next time
TIMEOUT_SECONDS = 5.0


class KeyUse:
    """Notes the use of keys and hands it on."""

    def __init__(
        self,
        write: Callable[[dict[str, float]], Awaitable[None]],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Write by `write`: key id -> Unix time of its last use."""
        self._write = write
        self._clock = clock
        self._used: dict[str, float] = {}

    def note(self, api_key_id: str) -> None:
        """Note that a key is used now."""
        if api_key_id in self._used or len(self._used) < MAX_KEYS:
            self._used[api_key_id] = self._clock()

    async def run(self) -> None:
        """Write once a minute until cancelled."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write what was noted; what could not be written is dropped."""
        used, self._used = self._used, {}
        if not used:
            return
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._write(used)
        except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
            logger.warning("when %d keys were last used is not written: %r", len(used), error)
