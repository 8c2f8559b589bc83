"""Pins: blocks that must not be evicted until a time. They expire by themselves.

Read from the event loop and from the NVMe writer's thread; single dict operations only, so no lock.
"""

import time
from collections.abc import Callable

from pagoda_kvstore.block import BlockKey

_MIN_PRUNE = 1024


class Pins:
    """Expiry of each pinned block."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._expiries: dict[BlockKey, float] = {}
        self._prune_at = _MIN_PRUNE

    def pin(self, key: BlockKey, ttl_seconds: float) -> None:
        """Keep `key` for `ttl_seconds` from now; 0 or less ends the pin."""
        if ttl_seconds <= 0:
            self._expiries.pop(key, None)
            return
        self._expiries[key] = self._clock() + ttl_seconds
        if len(self._expiries) >= self._prune_at:
            self._prune()

    def is_pinned(self, key: BlockKey) -> bool:
        """Return whether `key` is pinned now."""
        expiry = self._expiries.get(key)
        return expiry is not None and expiry > self._clock()

    def _prune(self) -> None:
        now = self._clock()
        for key, expiry in list(self._expiries.items()):
            if expiry <= now:
                self._expiries.pop(key, None)
        self._prune_at = max(_MIN_PRUNE, 2 * len(self._expiries))
