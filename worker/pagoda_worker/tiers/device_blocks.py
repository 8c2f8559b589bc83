"""Which blocks this worker's pool holds, for the events that tell routers."""

from collections.abc import Iterable

from pagoda.rpc.v1 import kv_event_pb2
from pagoda_runtime.messaging.kv_events import TierBlocks


class DeviceBlocks:
    """The pool's blocks as steps say what they stored and evicted."""

    def __init__(self) -> None:
        self._held: dict[bytes, None] = {}
        self._changed: dict[bytes, bool] = {}  # hash -> is it held now

    def add(self, stored: Iterable[bytes], evicted: Iterable[bytes]) -> bool:
        """Note one step's changes, `evicted` after `stored`; return whether any wait."""
        for block_hash in stored:
            self._held[block_hash] = None
            self._changed[block_hash] = True
        for block_hash in evicted:
            self._held.pop(block_hash, None)
            self._changed[block_hash] = False
        return bool(self._changed)

    def take_changes(self) -> list[TierBlocks]:
        """Return what changed since the last call; the last change of a hash counts."""
        changed, self._changed = self._changed, {}
        return [
            TierBlocks(
                kv_event_pb2.TIER_DEVICE,
                stored=[block_hash for block_hash, is_held in changed.items() if is_held],
                evicted=[block_hash for block_hash, is_held in changed.items() if not is_held],
            )
        ]

    async def held(self) -> list[TierBlocks]:
        """Return all."""
        return [TierBlocks(kv_event_pb2.TIER_DEVICE, list(self._held))]
