"""Names of the prefix index in Redis: one set of block hashes for each worker, epoch and tier."""

from enum import Enum

# Present while the index is whole. Its absence means that Redis was wiped.
MARKER = "pagoda:v1:index:marker"
# Held by the router that rebuilds the index.
REBUILD_LOCK = "pagoda:v1:index:rebuild"


class IndexTier(Enum):
    """Where a block lies."""

    DEVICE = "device"
    CPU = "cpu"
    NVME = "nvme"


def blocks(worker_id: str, epoch: str, tier: IndexTier) -> str:
    """Return the key of one set."""
    return f"pagoda:v1:blocks:{worker_id}:{epoch}:{tier.value}"


def all_blocks(worker_id: str, epoch: str) -> list[str]:
    """Return the keys of every tier of one life of a worker."""
    return [blocks(worker_id, epoch, tier) for tier in IndexTier]
