"""What the store holds, for the events that tell routers."""

import asyncio

from pagoda_kvstore.change_log import TierName
from pagoda_kvstore.codec import TIERS
from pagoda_kvstore.store import BlockStore
from pagoda_runtime.messaging.kv_events import TierBlocks


class HeldBlocks:
    """A store as the holder of what is published."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def take_changes(self) -> list[TierBlocks] | None:
        """Return what changed since the last call; None if more did than is remembered."""
        changes = self._store.changes.take()
        if changes is None:
            return None
        return [TierBlocks(TIERS[tier], c.stored, c.evicted) for tier, c in changes.items()]

    async def held(self) -> list[TierBlocks]:
        """Return all; in a thread: a full NVMe tier is a million hashes, gRPC should not wait."""
        return [
            TierBlocks(TIERS[tier], await asyncio.to_thread(self._store.hashes, tier))
            for tier in TierName
        ]
