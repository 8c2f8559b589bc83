"""Watches a server while it is measured: its memory and CPU time, and who else used the machine."""

import threading
import time
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

import psutil
from running.processes import cpu_seconds, memory_bytes

SAMPLE_SECONDS = 2.0  # a look takes 10 to 20 ms of a core
LOUD_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one watch saw; percentages are of the CPU time of all cores.

    Attributes:
        peak_memory_bytes: of all the server's processes together, shared pages once.
        server_cores: cores that the server kept busy.
        foreign_percent: CPU time of neither the server nor this client.
        steal_percent: time that the host gave to other guests.
    """

    peak_memory_bytes: int
    server_cores: float
    foreign_percent: float
    steal_percent: float

    @property
    def is_loud(self) -> bool:
        """Whether others used so much that the numbers say little."""
        return max(self.foreign_percent, self.steal_percent) > LOUD_PERCENT

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        return asdict(self)


class Watch:
    """Watches process `pid` and its descendants inside a `with` block; `seen` tells afterwards."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peak = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self.seen: Seen | None = None

    def __enter__(self) -> "Watch":
        self._started = self._now()
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._sampler.join()
        if kind is None:
            self._peak = max(self._peak, memory_bytes(self._pid))
            self.seen = seen(self._started, self._now(), self._peak)

    def _now(self) -> "Moment":
        return Moment.now(self._pid)

    def _sample(self) -> None:
        while not self._ended.is_set():
            try:
                self._peak = max(self._peak, memory_bytes(self._pid))
            except psutil.NoSuchProcess:
                return  # whoever drives the server sees that it died
            self._ended.wait(SAMPLE_SECONDS)


@dataclass(frozen=True, slots=True)
class Moment:
    """Seconds on the wall and CPU seconds so far: of all cores, the server and this process."""

    wall: float
    busy: float
    steal: float
    server: float
    client: float

    @classmethod
    def now(cls, pid: int) -> "Moment":
        """Read the clocks.

        Raises:
            psutil.NoSuchProcess: the server ended.
        """
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        return cls(time.perf_counter(), busy, times.steal, cpu_seconds(pid), time.process_time())


def seen(first: Moment, last: Moment, peak_memory_bytes: int) -> Seen:
    """Return what happened between two moments."""
    wall = max(last.wall - first.wall, 1e-9)
    capacity = wall * (psutil.cpu_count() or 1)
    server, client = last.server - first.server, last.client - first.client
    # Ticks of 10 ms are counted at other moments than ours: a quiet machine may come out below 0.
    foreign = max(0.0, last.busy - first.busy - server - client)
    return Seen(
        peak_memory_bytes=peak_memory_bytes,
        server_cores=server / wall,
        foreign_percent=100 * foreign / capacity,
        steal_percent=100 * (last.steal - first.steal) / capacity,
    )
