"""Whether a stack's processes have the memory that they take in any case."""

from pagoda_cli.up.topology import ROLES, Topology
from pagoda_formats.control_groups import memory_available

SERVICES_BYTES = 320 << 20
WORKER_BYTES = 224 << 20
"""What all other processes took together, and each worker beside weights and KV, as measured."""


def scarce_memory(topology: Topology, available_bytes: int | None = None) -> str | None:
    """Return what to say where memory is too scarce for these processes; None: nothing.

    A control group is killed as a whole when its memory is used up, `pagoda up` with it, which then
    cannot say why.

    Args:
        topology: of the stack.
        available_bytes: None: what the host and our control groups have left.
    """
    available = memory_available() if available_bytes is None else available_bytes
    num_workers = sum(map(topology.num_workers, ROLES))
    least = SERVICES_BYTES + num_workers * WORKER_BYTES
    if available is None or available >= least:
        return None
    advice = ", or fewer workers in PAGODA_TOPOLOGY (aggregated has one)" if num_workers > 1 else ""
    return (
        f"{available >> 20} MiB of memory are left to this host and control group, and the "
        f"processes take about {least >> 20} MiB beside weights and KV: the system may kill them, "
        f"and this one, without a word; give more memory (MemoryMax, --memory, limits){advice}"
    )
