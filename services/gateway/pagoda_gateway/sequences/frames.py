"""Tokens on their way in: one NATS subscription for all sequences of this gateway.

The handler only sorts frames into their sequences and never waits: a slow client slows nobody.
"""

from pagoda.rpc.v1.generate_pb2 import FramesMessage
from pagoda.rpc.v1.status_pb2 import WorkerStatus
from pagoda_gateway.sequences.after_step import AfterStep
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus, Subscription


class FrameReceiver:
    """Knows which sequence each frame belongs to."""

    def __init__(self, after_step: AfterStep) -> None:
        """`after_step`: writes what came."""
        self._after_step = after_step
        self._sequences: dict[tuple[str, int], OutputSequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def sequences(self) -> list[tuple[str, OutputSequence]]:
        """Return every sequence that runs, with its request's id."""
        return [(request_id, sequence) for (request_id, _), sequence in self._sequences.items()]

    def register(self, request_id: str, sequence: OutputSequence) -> None:
        """Deliver this sequence's frames from now on."""
        self._sequences[request_id, sequence.index] = sequence

    def unregister(self, request_id: str, sequence: OutputSequence) -> None:
        """Drop this sequence's frames from now on."""
        self._sequences.pop((request_id, sequence.index), None)

    def on_worker(self, worker_id: str, status: WorkerStatus | None) -> None:
        """Hear of a worker; when it is gone, the sequences that run there need another one."""
        if status is not None:
            return
        for sequence in self._sequences.values():
            if sequence.worker_id == worker_id:
                sequence.lose(f"decode worker {worker_id} is gone")

    async def subscribe(self, bus: Bus, gateway_id: str) -> Subscription:
        """Take the frames addressed to `gateway_id`."""
        return await bus.listen(subjects.frames(gateway_id), FramesMessage, self.on_message)

    def on_message(self, message: FramesMessage) -> None:
        """Sort one step's frames."""
        sequences = self._sequences
        self._after_step.begin()
        try:
            for frame in message.frames:
                sequence = sequences.get((frame.request_id, frame.sequence_index))
                if sequence is not None:
                    sequence.take(frame)
        finally:
            self._after_step.end()
