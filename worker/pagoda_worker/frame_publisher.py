"""Tokens on their way to the gateways: one message per step per gateway.

Knows frames and the bus. Knows nothing of the engine.
"""

import logging
from collections.abc import Callable, Iterator

from pagoda.rpc.v1 import generate_pb2
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects

logger = logging.getLogger(__name__)

MAX_FRAMES_PER_MESSAGE = 512
MAX_MESSAGE_BYTES = 1 << 19  # NATS takes 1 MiB unless told otherwise

Post = Callable[[str, generate_pb2.FramesMessage], None]


class FramePublisher:
    """Collects the frames of one step and sends them in order.

    A message that cannot be sent is dropped and counted: the gateway sees the gap in the output
    indices, or silence, and moves the sequence to another worker.
    """

    def __init__(
        self,
        post: Post,
        *,
        worker_id: str,
        epoch: str,
        on_dropped: Callable[[int], None],
    ) -> None:
        """Send by `post`, which bounds what waits while there is no connection."""
        self._post = post
        self._worker_id = worker_id
        self._epoch = epoch
        self._on_dropped = on_dropped
        self._step: dict[str, list[generate_pb2.Frame]] = {}

    def add(self, gateway_id: str, frame: generate_pb2.Frame) -> None:
        """Put one frame into the current step's message for its gateway."""
        frames = self._step.get(gateway_id)
        if frames is None:
            self._step[gateway_id] = [frame]
        else:
            frames.append(frame)

    def flush(self) -> None:
        """End the step: send one message to each gateway that has frames, several if large."""
        if not self._step:
            return
        step, self._step = self._step, {}
        for gateway_id, frames in step.items():
            subject = subjects.frames(gateway_id)
            for some in _split(frames):
                self._send(subject, some)

    def _send(self, subject: str, frames: list[generate_pb2.Frame]) -> None:
        message = generate_pb2.FramesMessage(
            worker_id=self._worker_id, epoch=self._epoch, frames=frames
        )
        try:
            self._post(subject, message)
        except BusError as error:
            logger.warning("dropped %d frames for %s: %s", len(frames), subject, error)
            self._on_dropped(len(frames))


def _split(frames: list[generate_pb2.Frame]) -> Iterator[list[generate_pb2.Frame]]:
    """Yield frames in order, as many at a time as one message may have."""
    some: list[generate_pb2.Frame] = []
    num_bytes = 0
    for frame in frames:
        size = frame.ByteSize()
        is_full = len(some) == MAX_FRAMES_PER_MESSAGE or num_bytes + size > MAX_MESSAGE_BYTES
        if some and is_full:
            yield some
            some, num_bytes = [], 0
        some.append(frame)
        num_bytes += size
    yield some
