"""How long a launch takes on the device: cold caches, no launch overhead, percentiles.

Knows launches. Knows nothing of what they compute. A `Clock` hides the device, so that everything
above it can be tested without one.
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

MIN_REPETITIONS = 10
MAX_REPETITIONS = 100
MAX_HEAD_START_SECONDS = 5e-3


@dataclass(frozen=True)
class Timing:
    """Seconds of one launch over the repetitions of a run."""

    p20: float
    p50: float
    p80: float
    num_repetitions: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        """Percentiles of at least one measurement, by nearest rank."""
        ordered = sorted(seconds)

        def at(fraction: float) -> float:
            return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]

        return cls(at(0.2), statistics.median(ordered), at(0.8), len(ordered))


class Clock(Protocol):
    """Times launches on one device."""

    def measure(self, launch: Callable[[], object], budget_seconds: float) -> Timing:
        """Warm up, then repeat the launch for about `budget_seconds`."""
        ...

    def check_device(self) -> None:
        """Wait for the device; raises if an earlier launch broke it."""
        ...


def num_repetitions(seconds_each: float, budget_seconds: float) -> int:
    """Repetitions that fit the budget, within MIN_REPETITIONS and MAX_REPETITIONS."""
    fitting = int(budget_seconds / max(seconds_each, 1e-9))
    return max(MIN_REPETITIONS, min(MAX_REPETITIONS, fitting))


class WallClock:
    """Host time of a launch that is done when it returns."""

    def measure(self, launch: Callable[[], object], budget_seconds: float) -> Timing:
        """See `Clock`."""
        launch()
        first = self._once(launch)
        repetitions = num_repetitions(first, budget_seconds)
        return Timing.of([self._once(launch) for _ in range(repetitions)])

    def check_device(self) -> None:
        """Nothing to wait for."""

    @staticmethod
    def _once(launch: Callable[[], object]) -> float:
        start = time.perf_counter()
        launch()
        return time.perf_counter() - start


class CudaClock:
    """CUDA events around each launch; before each, the L2 cache is filled with something else.

    The filling reads and does not write: dirty lines would be written back inside the next
    measurement. A short device sleep before the first event lets the host enqueue the whole launch,
    so that a gap between two kernels of one operator is the device's own.
    """

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        flush_bytes = max(128 << 20, 4 * int(getattr(properties, "L2_cache_size", 0)))
        self._other = torch.zeros(flush_bytes // 4, dtype=torch.int32, device="cuda")
        self._sum = torch.empty((), dtype=torch.int64, device="cuda")
        self._cycles_per_second = 1e3 * float(getattr(properties, "clock_rate", 2_000_000))

    def measure(self, launch: Callable[[], object], budget_seconds: float) -> Timing:
        """See `Clock`."""
        launch()
        self.check_device()
        start = time.perf_counter()
        launch()
        host_seconds = time.perf_counter() - start
        self.check_device()
        whole_seconds = time.perf_counter() - start
        head_start = min(1.5 * host_seconds + 20e-6, MAX_HEAD_START_SECONDS)
        repetitions = num_repetitions(whole_seconds + head_start + 100e-6, budget_seconds)
        pairs = [self._enqueue(launch, head_start) for _ in range(repetitions)]
        self.check_device()
        return Timing.of([begin.elapsed_time(end) * 1e-3 for begin, end in pairs])

    def check_device(self) -> None:
        """See `Clock`."""
        self._torch.cuda.synchronize()

    def _enqueue(self, launch: Callable[[], object], head_start: float) -> tuple[Any, Any]:
        cuda = self._torch.cuda
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        self._torch.sum(self._other, dim=0, out=self._sum)
        cuda._sleep(int(head_start * self._cycles_per_second))
        begin.record()
        launch()
        end.record()
        return begin, end


CLOCKS: dict[str, Callable[[], Clock]] = {"cuda": CudaClock, "cpu": WallClock}
"""By name of the device; cpu is for tests."""
