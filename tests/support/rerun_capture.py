"""A graph capture without graphs: a replay runs the forward again over the same buffers."""

from collections.abc import Callable

import torch


class RerunCapture:
    """As with a CUDA graph, a replay fills the output of the capture, which is kept."""

    def __init__(self) -> None:
        self.num_replays = 0
        self.outputs: list[torch.Tensor] = []

    def capture(self, forward: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        output = forward()
        self.outputs.append(output)

        def replay() -> torch.Tensor:
            self.num_replays += 1
            return output.copy_(forward())

        return replay
