"""Ways for KV blocks between a device and the host that leave the stream of the step alone.

On CUDA a thread borrows a lane for one copy: a side stream and a bounded pinned buffer, both
reused. It waits for its own copy only. On cpu there is nothing to stage. Knows rows of bytes.
"""

import contextlib
import queue
from collections.abc import Iterator

import torch

NUM_LANES = 2
"""Copies under way at a time; further threads wait their turn."""

STAGING_BYTES = 8 * 2**20
"""Pinned memory of one lane, or one block if that is larger."""

DEVICE_CHUNK_BYTES = 32 * 2**20
"""What one gather on the device makes at most. Beside it the launches of its kernels are little."""


class DirectLane:
    """Between host and host."""

    def chunk_bytes(self, rows: torch.Tensor) -> int:
        """Bytes of such rows to copy in one go."""
        return DEVICE_CHUNK_BYTES

    def to_host(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy rows of the device into `out`; done on return."""
        out.copy_(rows)

    def to_device(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return rows there, aligned for any dtype."""
        rows = rows.contiguous()
        return rows.clone() if rows.data_ptr() % 16 else rows  # a view into a received message

    def wait(self) -> None:
        """Block until all that was begun is done."""


class StagedLane(DirectLane):
    """A side stream and its buffer; used within `CopyLanes.borrow`."""

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        is_cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if is_cuda else None  # type: ignore[no-untyped-call]
        self._staging = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=is_cuda)

    def chunk_bytes(self, rows: torch.Tensor) -> int:
        """Rows of the device need no staging."""
        return DEVICE_CHUNK_BYTES if rows.is_cuda else self._staging.numel()

    def to_host(self, rows: torch.Tensor, out: torch.Tensor) -> None:
        """Copy rows of the device into `out`; done on return."""
        staged = self._staging[: rows.numel()].view(rows.shape)
        staged.copy_(rows, non_blocking=True)
        self.wait()
        out.copy_(staged)

    def to_device(self, rows: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Queue the copy of rows; call `wait` before the next."""
        if rows.is_cuda:
            return rows
        staged = self._staging[: rows.numel()].view(rows.shape)
        staged.copy_(rows)
        return staged.to(device, non_blocking=True)

    def wait(self) -> None:
        """Block until all that was queued is done."""
        if self.stream is not None:
            self.stream.synchronize()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Queue the thread's work here; all of it is done on exit, also after an error."""
        with contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            try:
                yield
            finally:
                self.wait()


class CopyLanes:
    """The lanes of one device.

    Args:
        device: on cpu it does what it does on CUDA, without streams; for tests.
        staging_bytes: of each lane, at least one block.
    """

    def __init__(self, device: torch.device, *, staging_bytes: int) -> None:
        self._free: queue.SimpleQueue[StagedLane] = queue.SimpleQueue()
        for _ in range(NUM_LANES):
            self._free.put(StagedLane(device, staging_bytes))

    @contextlib.contextmanager
    def borrow(self) -> Iterator[StagedLane]:
        """Take a lane for one copy; waits while others have them all."""
        lane = self._free.get()
        try:
            with lane.entered():
                yield lane
        finally:
            self._free.put(lane)


@contextlib.contextmanager
def borrowed(lanes: CopyLanes | None) -> Iterator[DirectLane]:
    """Borrow a lane where there are any; without, copies are direct."""
    if lanes is None:
        yield DirectLane()
        return
    with lanes.borrow() as lane:
        yield lane


def chunks(count: int, item_bytes: int, limit_bytes: int) -> Iterator[slice]:
    """Cut [0, count) so that no part has more than `limit_bytes`, but at least one item each."""
    step = max(1, limit_bytes // item_bytes)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))
