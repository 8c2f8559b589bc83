"""Tokens on their way to the gateways: one message per step per gateway.

Knows frames and the bus. Knows nothing of the engine.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from pagoda.rpc.v1 import generate_pb2
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects

logger = logging.getLogger(__name__)

MAX_QUEUED_MESSAGES = 4096
MAX_FRAMES_PER_MESSAGE = 512
MAX_MESSAGE_BYTES = 1 << 19  # NATS takes 1 MiB unless told otherwise
PUBLISH_SECONDS = 5.0

Publish = Callable[[str, generate_pb2.FramesMessage], Awaitable[None]]


class FramePublisher:
    """Collects the frames of one step and publishes them in order.

    A message that cannot be sent is dropped and counted: the gateway sees the gap in the output
    indices, or silence, and moves the sequence to another worker.
    """

    def __init__(
        self,
        publish: Publish,
        *,
        worker_id: str,
        epoch: str,
        on_dropped: Callable[[int], None],
        max_queued: int = MAX_QUEUED_MESSAGES,
    ) -> None:
        self._publish = publish
        self._worker_id = worker_id
        self._epoch = epoch
        self._on_dropped = on_dropped
        self._step: dict[str, list[generate_pb2.Frame]] = {}
        self._queue: asyncio.Queue[tuple[str, generate_pb2.FramesMessage]] = asyncio.Queue(
            max_queued
        )

    def add(self, gateway_id: str, frame: generate_pb2.Frame) -> None:
        """Put one frame into the current step's message for its gateway."""
        self._step.setdefault(gateway_id, []).append(frame)

    def flush(self) -> None:
        """End the step: queue one message for each gateway that has frames, several if large."""
        if not self._step:
            return
        step, self._step = self._step, {}
        for gateway_id, frames in step.items():
            for some in _split(frames):
                message = generate_pb2.FramesMessage(
                    worker_id=self._worker_id, epoch=self._epoch, frames=some
                )
                self._enqueue(gateway_id, message)

    def _enqueue(self, gateway_id: str, message: generate_pb2.FramesMessage) -> None:
        try:
            self._queue.put_nowait((subjects.frames(gateway_id), message))
        except asyncio.QueueFull:
            self._on_dropped(len(message.frames))

    async def run(self) -> None:
        """Publish what was flushed, until cancelled."""
        while True:
            subject, message = await self._queue.get()
            try:
                async with asyncio.timeout(PUBLISH_SECONDS):
                    await self._publish(subject, message)
            except (BusError, TimeoutError) as error:
                logger.warning("dropped %d frames for %s: %s", len(message.frames), subject, error)
                self._on_dropped(len(message.frames))
            finally:
                self._queue.task_done()

    async def drain(self, timeout_seconds: float) -> None:
        """Wait until everything flushed was published (or dropped), at most this long."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._queue.join()
        except TimeoutError:
            logger.warning("%d frame messages were not published in time", self._queue.qsize())


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
