"""Asks workers about sequences that have gone silent: frames may be lost, and workers too.

Frames are sent at most once. A gap in the indices shows when a later frame comes; that nothing
comes at all shows only here. Knows sequences and workers, no text.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2
from pagoda_gateway import metrics
from pagoda_gateway.sequences.frames import FrameReceiver
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_runtime.errors import BusError, NoResponderError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.ticks import next_tick

logger = logging.getLogger(__name__)

Silent = tuple[str, OutputSequence]
"""(request id, sequence)."""

MAX_PER_PROBE = 512
MAX_STRIKES = 2
"""Bad answers in a row that end an attempt: one may have crossed with a frame on its way."""


class SilenceWatch:
    """Probes what is silent for a while; who does not know better loses the sequence.

    Args:
        bus: to the workers.
        frames: knows which sequences run.
        forget: is told of a worker at whose address nobody listens any more.
        silence_seconds: how long a sequence may be silent before its worker is asked.
        timeout_seconds: for an answer.
        clock: seconds.
    """

    def __init__(
        self,
        bus: Bus,
        frames: FrameReceiver,
        forget: Callable[[str], None],
        *,
        silence_seconds: float,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._frames = frames
        self._forget = forget
        self._silence_seconds = silence_seconds
        self._timeout_seconds = timeout_seconds
        self._clock = clock

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await next_tick(self._silence_seconds / 2)
            if self._bus.is_connected:
                await self.probe_silent()

    async def probe_silent(self) -> None:
        """Ask about every sequence that is silent by now, each worker once."""
        by_worker: dict[str, list[Silent]] = defaultdict(list)
        for request_id, sequence in self._frames.sequences():
            if sequence.is_handed_over and sequence.silent_seconds >= self._silence_seconds:
                by_worker[sequence.worker_id].append((request_id, sequence))
        async with asyncio.TaskGroup() as tasks:
            for worker_id, silent in by_worker.items():
                for part in _parts(silent):
                    tasks.create_task(self._probe(worker_id, part))

    async def _probe(self, worker_id: str, silent: list[Silent]) -> None:
        request = generate_pb2.ProbeRequest(
            sequences=[
                generate_pb2.ProbedSequence(
                    request_id=request_id, sequence_index=sequence.index, attempt=sequence.attempt
                )
                for request_id, sequence in silent
            ]
        )
        before = [(sequence.attempt, len(sequence.token_ids)) for _, sequence in silent]
        try:
            response = await self._bus.request(
                subjects.probe(worker_id),
                request,
                generate_pb2.ProbeResponse,
                timeout_seconds=self._timeout_seconds,
                context=Context(),
            )
        except BusError as error:
            is_unheard = isinstance(error, NoResponderError)
            if is_unheard or await self._bus.answers(self._timeout_seconds):  # else NATS is silent
                reason = f"decode worker {worker_id} is silent and does not answer ({error})"
                is_lost = [
                    self._strike(sequence, state, reason)
                    for (_, sequence), state in zip(silent, before, strict=True)
                ]
                if is_unheard and any(is_lost):
                    self._forget(worker_id)  # or they would be handed to it again
            return
        for (_, sequence), state, progress in zip(silent, before, response.progress, strict=False):
            if not progress.is_known:
                reason = f"decode worker {worker_id} does not have it any more"
            elif progress.next_index > state[1]:
                reason = f"tokens {state[1]} to {progress.next_index - 1} never came"
            else:
                sequence.hear()
                continue
            self._strike(sequence, state, reason)

    def _strike(self, sequence: OutputSequence, before: tuple[int, int], reason: str) -> bool:
        """Count a bad answer; return whether it was one too many."""
        if (sequence.attempt, len(sequence.token_ids)) != before:
            return False  # it has moved on meanwhile
        sequence.num_strikes += 1
        if sequence.num_strikes < MAX_STRIKES:
            return False
        metrics.SILENT_SEQUENCES.inc()
        sequence.lose(reason)
        return True


def _parts(silent: list[Silent]) -> Iterable[list[Silent]]:
    for start in range(0, len(silent), MAX_PER_PROBE):
        yield silent[start : start + MAX_PER_PROBE]
