"""CUDA graphs of forwards, all in one memory pool.

Imported only where there is a CUDA device.
"""

from collections.abc import Callable

import torch


class CudaGraphCapture:
    """Captures on one stream. Graphs share the memory that they compute in, but keep outputs."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, forward: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """Run a forward once, so that everything is compiled and allocated, and capture it."""
        with torch.cuda.stream(self._stream):
            forward()
        graph = torch.cuda.CUDAGraph()
        # Copy threads may use the device meanwhile: only this thread's calls are looked at.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            output = forward()

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay
