"""What an engine needs of its device: a queue, and a way to capture graphs if there is one.

Knows kinds of devices. Knows nothing of what is queued or captured.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from pagoda_engine.device.queue import DeviceQueue, InlineQueue

Forward = Callable[[], torch.Tensor]


class GraphCapture(Protocol):
    """Makes a forward repeatable at the cost of one launch; `CudaGraphCapture` implements it."""

    def capture(self, forward: Forward) -> Forward:
        """Return what does the same work over the same buffers, into the same output."""
        ...


def device_parts(
    device: torch.device,
    queue: DeviceQueue | None,
    capture: GraphCapture | None,
    *,
    enforce_eager: bool,
    clock: Callable[[], float],
) -> tuple[DeviceQueue, GraphCapture | None]:
    """Return the given ones, or what this kind of device works best with."""
    if device.type == "cuda" and queue is None:
        from pagoda_engine.device.cuda_graphs import CudaGraphCapture
        from pagoda_engine.device.cuda_queue import CudaQueue

        queue = CudaQueue(device)
        if capture is None and not enforce_eager:
            capture = CudaGraphCapture(queue.stream)
    return queue or InlineQueue(clock), capture
