"""The store: CPU memory in front of NVMe.

A put goes to memory and, behind the caller's back, to NVMe; a block found on NVMe is promoted to
memory. Everything but file I/O happens on the event loop; file I/O runs in threads.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum

from pagoda_kvstore.block import Block, BlockKey
from pagoda_kvstore.change_log import ChangeLog, TierName
from pagoda_kvstore.tiers.memory import MemoryTier
from pagoda_kvstore.tiers.nvme import NvmeTier
from pagoda_kvstore.tiers.write_behind import WriteBehind

# Blocks answered at once, in payload bytes: the size of a message that measured fastest.
GROUP_BYTES = 1 << 20
_MAX_CONCURRENT_READS = 8


class PutOutcome(Enum):
    """What became of a put block."""

    STORED = "stored"
    KNOWN = "known"  # held already, not written again
    REFUSED = "refused"  # bad digest, or no room within the budget


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block and the tier it was found in."""

    block: Block
    tier: TierName


@dataclass(frozen=True, slots=True)
class TierStats:
    """Counts of one tier since the start, and what it holds."""

    tier: TierName
    num_blocks: int
    used_bytes: int
    budget_bytes: int
    num_hits: int
    num_misses: int
    num_evictions: int
    num_bad_digests: int


class BlockStore:
    """Blocks by key in two tiers. Call from one event loop."""

    def __init__(
        self,
        memory: MemoryTier,
        nvme: NvmeTier,
        *,
        changes: ChangeLog,
        max_queue_bytes: int,
    ) -> None:
        """Take over both tiers; `close` closes them."""
        self.memory, self.nvme, self.changes = memory, nvme, changes
        self.writes = WriteBehind(nvme, max_queue_bytes=max_queue_bytes)
        self.num_refused_digests = 0
        self._reads = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    def match(self, kv_identity: bytes, block_hashes: Sequence[bytes]) -> list[TierName]:
        """Return the tier of each leading block that is held; its length is the match."""
        tiers: list[TierName] = []
        for block_hash in block_hashes:
            key = BlockKey(kv_identity, block_hash)
            if key in self.memory:
                tiers.append(TierName.CPU)
            elif key in self.nvme:
                tiers.append(TierName.NVME)
            else:
                break
        return tiers

    async def get(
        self, kv_identity: bytes, block_hashes: Sequence[bytes]
    ) -> AsyncIterator[list[FoundBlock]]:
        """Yield leading blocks in groups of about GROUP_BYTES, up to the first miss."""
        keys = [BlockKey(kv_identity, block_hash) for block_hash in block_hashes]
        position = 0
        while position < len(keys):
            group = self._read_memory(keys, position) or await self._read_nvme(keys, position)
            if not group:
                return
            position += len(group)
            yield group

    def put(self, block: Block) -> PutOutcome:
        """Hold a block. One whose payload does not have its digest is refused."""
        if not block.is_intact():
            self.num_refused_digests += 1
            return PutOutcome.REFUSED
        is_known = block.key in self.memory or block.key in self.nvme
        self.nvme.mark_used(block.key)
        is_held = self._hold(block)
        is_written = self.writes.offer(block)  # also what memory has no room for: NVMe is larger
        if is_known:
            return PutOutcome.KNOWN
        return PutOutcome.STORED if is_held or is_written else PutOutcome.REFUSED

    def hashes(self, tier: TierName) -> list[bytes]:
        """Return the hash of every block in a tier, as of now; may be called from any thread."""
        keys = list(self.memory.keys() if tier is TierName.CPU else self.nvme.keys())
        return [key.block_hash for key in keys]

    def stats(self) -> list[TierStats]:
        """Return the counts of both tiers."""
        return [_stats(TierName.CPU, self.memory), _stats(TierName.NVME, self.nvme)]

    async def close(self, timeout_seconds: float) -> bool:
        """Write what is queued for NVMe and close. Returns False if not all was written."""
        is_written = await asyncio.to_thread(self.writes.close, timeout_seconds)
        self.nvme.close()
        return is_written

    def _read_memory(self, keys: Sequence[BlockKey], position: int) -> list[FoundBlock]:
        group: list[FoundBlock] = []
        num_bytes = 0
        for key in keys[position:]:
            block_bytes = self.memory.block_bytes(key)
            if group and num_bytes + block_bytes > GROUP_BYTES:
                break
            block = self.memory.get(key)
            if block is None:
                if block_bytes:  # it was there, damaged
                    self.changes.add(TierName.CPU, key.block_hash, False)
                break
            self.nvme.mark_used(key)
            group.append(FoundBlock(block, TierName.CPU))
            num_bytes += block_bytes
        return group

    async def _read_nvme(self, keys: Sequence[BlockKey], position: int) -> list[FoundBlock]:
        wanted: list[BlockKey] = []
        num_bytes = 0
        for key in keys[position:]:
            if key in self.memory:
                break
            block_bytes = self.nvme.block_bytes(key)
            if wanted and (not block_bytes or num_bytes + block_bytes > GROUP_BYTES):
                break
            wanted.append(key)
            num_bytes += block_bytes
        async with self._reads:
            blocks = await asyncio.to_thread(self.nvme.read, wanted)
        for block in blocks:
            self._hold(block)
        return [FoundBlock(block, TierName.NVME) for block in blocks]

    def _hold(self, block: Block) -> bool:
        """Put a block into memory; what is evicted for it goes to NVMe unless it is there."""
        is_new = block.key not in self.memory
        victims = self.memory.put(block)
        if victims is None:
            return False
        for victim in victims:
            self.changes.add(TierName.CPU, victim.key.block_hash, False)
            self.writes.offer(victim)
        if is_new:
            self.changes.add(TierName.CPU, block.key.block_hash, True)
        return True


def _stats(name: TierName, tier: MemoryTier | NvmeTier) -> TierStats:
    return TierStats(
        tier=name,
        num_blocks=len(tier),
        used_bytes=tier.used_bytes,
        budget_bytes=tier.budget_bytes,
        num_hits=tier.num_hits,
        num_misses=tier.num_misses,
        num_evictions=tier.num_evictions,
        num_bad_digests=tier.num_bad_digests,
    )
