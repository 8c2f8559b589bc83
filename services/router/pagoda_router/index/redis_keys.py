"""Names of the prefix index in Redis: one set of block hashes for each worker, epoch and tier.

Every key has a time to live, which is what marks it as the index's: `maxmemory-policy volatile-ttl`
takes from the index, of workers that are gone first, and never from keys without one.
"""

from enum import Enum

# In a set that holds all that its worker holds. No hash: those have 16 bytes.
WHOLE = "whole"


class IndexTier(Enum):
    """Where a block lies."""

    DEVICE = "device"
    CPU = "cpu"
    NVME = "nvme"


def blocks(worker_id: str, epoch: str, tier: IndexTier) -> str:
    """Return the key of one set."""
    return f"pagoda:v1:blocks:{worker_id}:{epoch}:{tier.value}"


def incoming(worker_id: str, epoch: str, tier: IndexTier) -> str:
    """Return the key of the parts of a snapshot, until the last of them is there."""
    return f"{blocks(worker_id, epoch, tier)}:incoming"


def sequence(worker_id: str, epoch: str) -> str:
    """Return the key of the number of the last event applied of one life of a worker."""
    return f"pagoda:v1:sequence:{worker_id}:{epoch}"


def asked(worker_id: str, epoch: str) -> str:
    """Return the key that is there for a while after one life of a worker was asked."""
    return f"pagoda:v1:asked:{worker_id}:{epoch}"


def all_of(worker_id: str, epoch: str) -> list[str]:
    """Return every key of one life of a worker."""
    sets = [name(worker_id, epoch, tier) for name in (blocks, incoming) for tier in IndexTier]
    return [*sets, sequence(worker_id, epoch), asked(worker_id, epoch)]
