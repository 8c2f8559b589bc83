"""KV blocks of one engine: the tensor that holds them, who owns which, how their bytes are read.

Knows block ids, hashes and memory, of this process and of others on the host. Knows nothing of
sequences, models or messages.
"""

from pagoda_engine.cache.block_pool import BlockPool
from pagoda_engine.cache.copy_lanes import NUM_LANES, borrowed, chunks
from pagoda_engine.cache.kv_cache import KvCache
from pagoda_engine.cache.kv_layout import KvLayout
from pagoda_engine.cache.layer_groups import LayerGroups
from pagoda_engine.cache.peer_pool import (
    Opener,
    PeerPool,
    PeerPoolError,
    PoolExport,
    PoolHandle,
    PoolKind,
    check_blocks,
    exportable_cache,
    open_peer_pool,
)

__all__ = [
    "NUM_LANES",
    "BlockPool",
    "KvCache",
    "KvLayout",
    "LayerGroups",
    "Opener",
    "PeerPool",
    "PeerPoolError",
    "PoolExport",
    "PoolHandle",
    "PoolKind",
    "borrowed",
    "check_blocks",
    "chunks",
    "exportable_cache",
    "open_peer_pool",
]
