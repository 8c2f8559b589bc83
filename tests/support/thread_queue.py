"""A device that really works beside the host: a thread that runs one step's work after the other.

Each step is let go either at once or only when the host waits for it, drawn at random: so the
host's next moves fall before, during and after the work.
"""

import random
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch

from pagoda_engine.device.queue import ClockRecorder, DoneWork, LaunchedWork, Work

TIMEOUT_SECONDS = 60.0


class ThreadQueue:
    lag = 1

    def __init__(self, seed: int, *, late_share: float = 0.5) -> None:
        self._rng = random.Random(seed)
        self._late_share = late_share
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self._last_gate = threading.Event()
        self._is_closing = False

    def preparing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def submit(self, work: Work) -> "ThreadWork":
        self._last_gate = gate = threading.Event()
        if self._rng.random() >= self._late_share or self._is_closing:
            gate.set()
        return ThreadWork(gate, self._thread.submit(_run, gate, work))

    def close(self) -> None:
        self._is_closing = True  # whoever still warms up, in a thread that nobody waits for
        self._last_gate.set()  # of a step that nobody has read; earlier ones were
        self._thread.shutdown()


class ThreadWork:
    inline_seconds = 0.0

    def __init__(self, gate: threading.Event, future: "Future[DoneWork]") -> None:
        self._gate = gate
        self._future = future

    def read(self) -> list[torch.Tensor]:
        self._gate.set()
        return self._future.result(TIMEOUT_SECONDS).read()

    def times(self) -> tuple[float, float]:
        return self._future.result(0).times()

    def gap_after(self, previous: LaunchedWork) -> float:
        assert isinstance(previous, ThreadWork)
        return self._future.result(0).gap_after(previous._future.result(0))


def _run(gate: threading.Event, work: Work) -> DoneWork:
    assert gate.wait(TIMEOUT_SECONDS)
    recorder = ClockRecorder(time.perf_counter)
    return DoneWork(list(work(recorder)), recorder.marks)
