"""The queue of a CUDA device: one stream, and events that say how far it has come.

Imported only where there is a CUDA device.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from pagoda_engine.device.queue import LaunchedWork, Work

_MILLISECOND = 1e-3


class CudaQueue:
    """Launches work on a stream of its own and leaves it there.

    So the next step is launched before the tokens of this one are read.
    """

    lag = 1

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.default_stream(device))  # the weights got there on it

    def preparing(self) -> AbstractContextManager[object]:
        """See `DeviceQueue.preparing`."""
        return torch.cuda.stream(self.stream)

    def submit(self, work: Work) -> "CudaWork":
        """See `DeviceQueue.submit`."""
        with torch.cuda.stream(self.stream):
            recorder = EventRecorder()
            tensors = [_to_host(tensor) for tensor in work(recorder)]
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return CudaWork(tensors, recorder.marks, done)


class EventRecorder:
    """Marks by events on the current stream."""

    def __init__(self) -> None:
        self.marks: list[torch.cuda.Event] = []

    def mark(self) -> None:
        """See `Recorder.mark`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.marks.append(event)

    def fence(self) -> Callable[[], None]:
        """See `Recorder.fence`."""
        # A copy thread waits for it, which should not spin.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event.synchronize


class CudaWork:
    """Work on a stream."""

    inline_seconds = 0.0

    def __init__(
        self,
        tensors: list[torch.Tensor],
        marks: list[torch.cuda.Event],
        done: torch.cuda.Event,
    ) -> None:
        self._tensors = tensors
        self.marks = marks
        self._done = done

    def read(self) -> list[torch.Tensor]:
        """See `LaunchedWork.read`."""
        self._done.synchronize()
        return self._tensors

    def times(self) -> tuple[float, float]:
        """See `LaunchedWork.times`."""
        begun, computed, ended = self.marks
        return _seconds(begun, computed), _seconds(computed, ended)

    def gap_after(self, previous: LaunchedWork) -> float:
        """See `LaunchedWork.gap_after`."""
        assert isinstance(previous, CudaWork)
        return max(_seconds(previous.marks[-1], self.marks[0]), 0.0)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return what holds the values on the host once the device has got here."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def _seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) * _MILLISECOND
