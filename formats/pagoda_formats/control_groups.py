"""What the host and control groups leave a process: files of Linux's cgroup v2 and v1.

A process is in a group and in all that this one is in; the tightest limit counts. Files that are
not there, or cannot be read, limit nothing.
"""

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
_MEMORY = (  # limit, use, and what fields of memory.stat begin with that count groups within, too
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)


def memory_limit(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return how many bytes the process and its neighbours in its groups may have; None: any."""
    return min((limit for limit, _ in _memory(proc, cgroup)), default=None)


def memory_left(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return how many bytes may be taken beside what is taken; None: any.

    Cached files count as left: they go when memory is wanted.
    """
    return min((max(0, limit - used) for limit, used in _memory(proc, cgroup)), default=None)


def memory_available(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return how many bytes the host and the process's groups have left; None: unknown."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return None
    left = memory_left(proc, cgroup)
    return available if left is None else min(available, left)


def num_processors(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Return how many threads can compute at once, by affinity and by quotas of time."""
    quotas = (math.ceil(quota) for quota in _quotas(proc, cgroup))
    return max(1, min((len(os.sched_getaffinity(0)), *quotas)))


def _memory(proc: Path, cgroup: Path) -> Iterator[tuple[int, int]]:
    """Yield limit and use of each group that has a limit, bytes."""
    for group in _groups("memory", proc, cgroup):
        for limit, used, prefix in _MEMORY:
            try:
                limit_bytes = int((group / limit).read_text())  # "max": none
                used_bytes = int((group / used).read_text())
            except (OSError, ValueError):
                continue
            cached_bytes = _cached_bytes(group / "memory.stat", prefix)
            yield limit_bytes, max(0, used_bytes - cached_bytes)


def _cached_bytes(stat: Path, prefix: str) -> int:
    try:
        fields = dict(line.split() for line in stat.read_text().splitlines())
        return sum(int(fields[f"{prefix}{kind}_file"]) for kind in ("inactive", "active"))
    except (OSError, ValueError, KeyError):
        return 0


def _quotas(proc: Path, cgroup: Path) -> Iterator[float]:
    """Yield the processors' worth of time of each group that has a quota."""
    for group in _groups("cpu", proc, cgroup):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            try:
                words = " ".join((group / name).read_text() for name in names).split()
                quota, period = map(int, words)  # "max": none
            except (OSError, ValueError):
                continue
            if quota > 0 and period > 0:  # -1: none
                yield quota / period


def _groups(controller: str, proc: Path, cgroup: Path) -> Iterator[Path]:
    """Yield the folders of the process's groups, its own first, of v1 and v2.

    In a container their root may be its own group while names are still the host's: what is not
    there is passed over.
    """
    try:
        lines = os.fsdecode((proc / "self" / "cgroup").read_bytes()).splitlines()
    except OSError:
        lines = ["0::/"]
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:
            mount = cgroup / "unified" if (cgroup / "unified").is_dir() else cgroup
        elif controller in controllers.split(","):
            joined = cgroup / controllers  # as "cpu,cpuacct", to which "cpu" may be a link
            mount = joined if joined.is_dir() else cgroup / controller
        else:
            continue
        inside = PurePosixPath(name.lstrip("/"))
        if ".." in inside.parts:  # beyond the root of its namespace
            inside = PurePosixPath()
        yield from (mount / part for part in (inside, *inside.parents))
