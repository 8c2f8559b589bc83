"""The queue between the step loop and the device: work goes in, in order; tensors come back later.

The step loop knows a device only through this interface. Knows nothing of models or sequences.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class Recorder(Protocol):
    """Given to a step's work, which says by it how far the device has come."""

    def mark(self) -> None:
        """Note the time at which the device gets here."""
        ...

    def fence(self) -> Callable[[], None]:
        """Return what blocks a thread until the device has got here."""
        ...


Work = Callable[[Recorder], Sequence[torch.Tensor]]
"""One step's work. Marks three times: before the forward, after it, and at the end.

Reads nothing that the step loop may change after `DeviceQueue.submit`. Waits for nothing.
"""


class LaunchedWork(Protocol):
    """Work on its way through the queue.

    Attributes:
        inline_seconds: of the device's time, what `DeviceQueue.submit` took from its caller.
    """

    inline_seconds: float

    def read(self) -> list[torch.Tensor]:
        """Wait for the work and return its tensors on the host.

        Raises:
            Exception: what the work raised.
        """
        ...

    def times(self) -> tuple[float, float]:
        """Return the seconds between the marks, of forward and sampling; call after `read`."""
        ...

    def gap_after(self, previous: "LaunchedWork") -> float:
        """Return the seconds that the device was idle between `previous`' work and this."""
        ...


class DeviceQueue(Protocol):
    """Runs work in order of submission.

    Attributes:
        lag: steps that may be launched before the tokens of the oldest are read: 0 where `submit`
            returns when the work is done, 1 where the device works on its own.
    """

    lag: int

    def preparing(self) -> AbstractContextManager[object]:
        """Make copies to the device go through this queue, as long as the context lasts."""
        ...

    def submit(self, work: Work) -> LaunchedWork:
        """Queue work. Returns without waiting for it if `lag` is 1."""
        ...


class InlineQueue:
    """Does the work at once, in the caller's thread. For the CPU, whose cores it needs anyway."""

    lag = 0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def preparing(self) -> AbstractContextManager[object]:
        """See `DeviceQueue.preparing`."""
        return nullcontext()

    def submit(self, work: Work) -> "DoneWork":
        """See `DeviceQueue.submit`."""
        recorder = ClockRecorder(self._clock)
        tensors = list(work(recorder))
        return DoneWork(tensors, recorder.marks)


class ClockRecorder:
    """Marks by a host clock: for work that is done when its call returns."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.marks: list[float] = []

    def mark(self) -> None:
        """See `Recorder.mark`."""
        self.marks.append(self._clock())

    def fence(self) -> Callable[[], None]:
        """See `Recorder.fence`."""
        return _pass


class DoneWork:
    """The result of work that is done."""

    def __init__(self, tensors: list[torch.Tensor], marks: Sequence[float]) -> None:
        self._tensors = tensors
        self.marks = marks
        self.inline_seconds = marks[-1] - marks[0]

    def read(self) -> list[torch.Tensor]:
        """See `LaunchedWork.read`."""
        return self._tensors

    def times(self) -> tuple[float, float]:
        """See `LaunchedWork.times`."""
        begun, computed, ended = self.marks
        return computed - begun, ended - computed

    def gap_after(self, previous: LaunchedWork) -> float:
        """See `LaunchedWork.gap_after`."""
        assert isinstance(previous, DoneWork)
        return self.marks[0] - previous.marks[-1]


def _pass() -> None:
    return
