"""One sequence to its end: placed on a decode worker, on another when that one fails.

Knows messages and workers; knows no text and no HTTP.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

from pagoda.rpc.v1 import generate_pb2, route_pb2
from pagoda_gateway import metrics
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import (
    GatewayError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from pagoda_gateway.sequences.backoff import Backoff
from pagoda_gateway.sequences.output_sequence import OutputSequence
from pagoda_gateway.sequences.request import RequestContext
from pagoda_gateway.sequences.router_client import DEFAULT_RETRY_AFTER_SECONDS, RouterClient
from pagoda_runtime.errors import BusError, MessageTooLargeError, NoResponderError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import WorkerDirectory

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0

_ACCEPTED = generate_pb2.ADMIT_STATUS_ACCEPTED
_INVALID = generate_pb2.ADMIT_STATUS_INVALID
_OVERLOADED = generate_pb2.ADMIT_STATUS_OVERLOADED


class _AttemptFailedError(Exception):
    """This attempt is over, another may succeed; `error` is for the client if none does."""

    def __init__(self, cause: str, error: GatewayError) -> None:
        super().__init__(str(error))
        self.cause = cause
        self.error = error


class Placer:
    """Places sequences and keeps them placed."""

    def __init__(
        self,
        bus: Bus,
        directory: WorkerDirectory,
        settings: GatewaySettings,
        *,
        gateway_id: str,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._bus = bus
        self._directory = directory
        self._settings = settings
        self._gateway_id = gateway_id
        self._backoff = Backoff(draw)
        self._router = RouterClient(bus, directory, settings, self._backoff)

    async def run(self, context: RequestContext, sequence: OutputSequence) -> None:
        """Return when the sequence has finished. Cancelled: the worker is told before this returns.

        Raises:
            GatewayError: it cannot be finished.
        """
        refused: set[str] = set()
        try:
            for attempt in range(self._settings.max_attempts):
                sequence.begin_attempt(attempt)
                try:
                    await self._attempt(context, sequence, refused)
                    return
                except _AttemptFailedError as failure:
                    await self._cancel(context, sequence, "superseded")
                    if attempt + 1 == self._settings.max_attempts:
                        raise failure.error from None
                    metrics.ATTEMPTS.labels(failure.cause).inc()
                    logger.warning(
                        "request %s sequence %d attempt %d: %s",
                        context.request_id, sequence.index, attempt, failure,
                    )  # fmt: skip
                    if failure.cause == "refused":
                        await self._backoff.pause(attempt)
        except BaseException:
            await self._cancel(context, sequence, context.cancel_reason)
            raise

    async def _attempt(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> None:
        placement = await self._router.route(context, sequence, refused)
        await context.opened.wait()
        sequence.worker_id = placement.decode_worker_id
        if sequence.worker_id not in context.worker_ids:
            context.worker_ids.append(sequence.worker_id)
        await self._hand_over(context, sequence, placement, refused)
        await sequence.attention.wait()
        if sequence.error is not None:
            sequence.worker_id = ""
            raise InternalError(f"the engine failed: {sequence.error}")
        if not sequence.is_finished:
            refused.add(sequence.worker_id)
            reason = sequence.lost_reason or "lost"
            raise _AttemptFailedError(
                "lost",
                UnavailableError(
                    f"the sequence lost its worker ({reason}) in "
                    f"{self._settings.max_attempts} attempts; try again",
                    retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
                ),
            )
        if not sequence.is_ended_by_worker:
            await self._cancel(context, sequence, "stop_string")

    async def _hand_over(
        self,
        context: RequestContext,
        sequence: OutputSequence,
        placement: route_pb2.RouteResponse,
        refused: set[str],
    ) -> None:
        request = generate_pb2.GenerateRequest(
            request_id=context.request_id,
            sequence_index=sequence.index,
            attempt=sequence.attempt,
            gateway_id=self._gateway_id,
            prompt_token_ids=sequence.prompt.token_ids,
            output_token_ids=sequence.token_ids,
            cache_root=sequence.prompt.cache_root,
            block_hashes=b"".join(sequence.prompt.block_hashes),
            sampling=sequence.sampling,
            plan=generate_pb2.KvPlan(
                prefill_worker_id=placement.prefill_worker_id,
                num_fetch_blocks=placement.num_fetch_blocks,
            ),
            deadline_unix_seconds=context.deadline_unix_seconds,
        )
        worker_id = placement.decode_worker_id
        try:
            answer = await self._bus.request(
                subjects.decode(worker_id),
                request,
                generate_pb2.GenerateResponse,
                timeout_seconds=self._settings.admit_timeout_seconds,
                context=context.trace_context,
            )
        except MessageTooLargeError as error:
            raise InvalidRequestError(f"the prompt is too large to send: {error}") from error
        except BusError as error:
            refused.add(worker_id)
            if isinstance(error, NoResponderError):  # sooner known than by its silence
                self._directory.forget(worker_id)
            raise _AttemptFailedError(
                "unreachable",
                UnavailableError(
                    f"decode worker {worker_id} does not answer ({error}); try again",
                    retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
                ),
            ) from error
        if answer.status == _ACCEPTED:
            return
        sequence.worker_id = ""  # it holds nothing of ours
        if answer.status == _INVALID:
            raise InvalidRequestError(answer.message or "the worker cannot run this sequence")
        refused.add(worker_id)
        kind = OverloadedError if answer.status == _OVERLOADED else UnavailableError
        raise _AttemptFailedError(
            "refused",
            kind(
                f"decode worker {worker_id} takes no more now ({answer.message}); try again",
                retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
            ),
        )

    async def _cancel(self, context: RequestContext, sequence: OutputSequence, reason: str) -> None:
        """Tell the sequence's worker to stop; best effort, the deadline frees what this misses."""
        worker_id, sequence.worker_id = sequence.worker_id, ""
        if not worker_id or sequence.is_ended_by_worker:
            return
        request = generate_pb2.CancelRequest(
            request_id=context.request_id, sequence_indices=[sequence.index], reason=reason
        )
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._bus.publish(
                    subjects.cancel(worker_id), request, context=context.trace_context
                )
