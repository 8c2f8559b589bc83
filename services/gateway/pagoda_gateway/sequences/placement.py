"""One sequence to its end: routed, handed to a decode worker, to another when that one fails.

Knows messages and workers; knows no text and no HTTP.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message
from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, route_pb2
from pagoda.rpc.v1.status_pb2 import Role
from pagoda_gateway import metrics
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import (
    GatewayError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from pagoda_gateway.sequences.catalog import ServedModel
from pagoda_gateway.sequences.output_sequence import OutputSequence
from pagoda_runtime.errors import BusError, MessageTooLargeError, NoResponderError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import WorkerDirectory

R = TypeVar("R", bound=Message)

logger = logging.getLogger(__name__)

DEFAULT_RETRY_AFTER_SECONDS = 1.0
CANCEL_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.05
_MAX_PAUSE_SECONDS = 0.5

_ACCEPTED = generate_pb2.ADMIT_STATUS_ACCEPTED
_INVALID = generate_pb2.ADMIT_STATUS_INVALID
_OVERLOADED = generate_pb2.ADMIT_STATUS_OVERLOADED


@dataclass(slots=True)
class Call:
    """What the sequences of one request share on their way to the workers.

    Attributes:
        request_id: ours.
        model: whose workers are meant.
        deadline_unix_seconds: nothing goes on after this.
        context: trace context of gateway.request.
        opened: set once the usage log has the request; no worker is asked before.
        on_route: hears each routing answer, its attempt and its milliseconds.
        cancel_reason: sent to the worker when the call is cancelled.
    """

    request_id: str
    model: ServedModel
    deadline_unix_seconds: float
    context: Context
    opened: asyncio.Event
    on_route: Callable[[OutputSequence, route_pb2.RouteResponse, float], None]
    cancel_reason: str = "client_disconnect"
    worker_ids: list[str] = field(default_factory=list)


class _AttemptFailedError(Exception):
    """This attempt is over, another may succeed; `error` is for the client if none does."""

    def __init__(self, cause: str, error: GatewayError) -> None:
        super().__init__(str(error))
        self.cause = cause
        self.error = error


class Dispatcher:
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
        self._draw = draw

    async def run(self, call: Call, sequence: OutputSequence) -> None:
        """Return when the sequence has finished. Cancelled: the worker is told before this returns.

        Raises:
            GatewayError: it cannot be finished.
        """
        refused: set[str] = set()
        try:
            for attempt in range(self._settings.max_attempts):
                sequence.begin_attempt(attempt)
                try:
                    await self._attempt(call, sequence, refused)
                    return
                except _AttemptFailedError as failure:
                    await self._cancel(call, sequence, "superseded")
                    if attempt + 1 == self._settings.max_attempts:
                        raise failure.error from None
                    metrics.ATTEMPTS.labels(failure.cause).inc()
                    logger.warning(
                        "request %s sequence %d attempt %d: %s",
                        call.request_id, sequence.index, attempt, failure,
                    )  # fmt: skip
                    if failure.cause == "refused":
                        await self._pause(attempt)
        except BaseException:
            await self._cancel(call, sequence, call.cancel_reason)
            raise

    async def _attempt(self, call: Call, sequence: OutputSequence, refused: set[str]) -> None:
        placement = await self._route(call, sequence, refused)
        await call.opened.wait()
        sequence.worker_id = placement.decode_worker_id
        if sequence.worker_id not in call.worker_ids:
            call.worker_ids.append(sequence.worker_id)
        await self._hand_over(call, sequence, placement, refused)
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
            await self._cancel(call, sequence, "stop_string")

    async def _route(
        self, call: Call, sequence: OutputSequence, refused: set[str]
    ) -> route_pb2.RouteResponse:
        """Return a placement; a sequence that already produced tokens may wait for a worker."""
        patience = self._settings.failover_wait_seconds if sequence.attempt else 0.0
        give_up = time.monotonic() + patience
        num_tries = 0
        while True:
            try:
                answer = await self._ask_router(call, sequence, refused)
            except BusError as error:
                problem: GatewayError = UnavailableError(
                    f"the router does not answer ({error}); try again",
                    retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
                )
                may_retry = num_tries < 2
            else:
                if answer.status == route_pb2.ROUTE_STATUS_PLACED:
                    return answer
                problem = _refusal(answer)
                may_retry = False
            if not may_retry and time.monotonic() >= give_up:
                raise problem
            await self._pause(num_tries)
            num_tries += 1

    async def _ask_router(
        self, call: Call, sequence: OutputSequence, refused: set[str]
    ) -> route_pb2.RouteResponse:
        request = route_pb2.RouteRequest(
            request_id=call.request_id,
            sequence_index=sequence.index,
            attempt=sequence.attempt,
            model=call.model.name,
            kv_identity=call.model.kv_identity,
            num_prompt_tokens=len(sequence.prompt.token_ids) + len(sequence.token_ids),
            max_tokens=sequence.sampling.max_tokens,
            block_hashes=b"".join(sequence.prompt.block_hashes),
            excluded_worker_ids=self._excluded(refused),
        )
        started = time.perf_counter()
        answer = await self._bus.request(
            subjects.route(call.model.name),
            request,
            route_pb2.RouteResponse,
            timeout_seconds=self._settings.route_timeout_seconds,
            context=call.context,
        )
        call.on_route(sequence, answer, 1000 * (time.perf_counter() - started))
        return answer

    def _excluded(self, refused: set[str]) -> list[str]:
        """Leave out who failed this request; one that is alive only if another one is too."""
        alive = {status.worker_id for status in self._directory.alive(Role.ROLE_DECODE)}
        return sorted(refused if alive - refused else refused - alive)

    async def _hand_over(
        self,
        call: Call,
        sequence: OutputSequence,
        placement: route_pb2.RouteResponse,
        refused: set[str],
    ) -> None:
        request = generate_pb2.GenerateRequest(
            request_id=call.request_id,
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
            deadline_unix_seconds=call.deadline_unix_seconds,
        )
        worker_id = placement.decode_worker_id
        try:
            answer = await self._bus.request(
                subjects.decode(worker_id),
                request,
                generate_pb2.GenerateResponse,
                timeout_seconds=self._settings.admit_timeout_seconds,
                context=call.context,
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

    async def _cancel(self, call: Call, sequence: OutputSequence, reason: str) -> None:
        """Tell the sequence's worker to stop; best effort, the deadline frees what this misses."""
        worker_id, sequence.worker_id = sequence.worker_id, ""
        if not worker_id or sequence.is_ended_by_worker:
            return
        request = generate_pb2.CancelRequest(
            request_id=call.request_id, sequence_indices=[sequence.index], reason=reason
        )
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._bus.publish(subjects.cancel(worker_id), request, context=call.context)

    async def _pause(self, num_tries: int) -> None:
        """Wait a little, longer each time, never in step with others."""
        longest = min(_MAX_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**num_tries)
        await asyncio.sleep(longest * (0.5 + self._draw() / 2))


def _refusal(answer: route_pb2.RouteResponse) -> GatewayError:
    kind = (
        OverloadedError if answer.status == route_pb2.ROUTE_STATUS_OVERLOADED else UnavailableError
    )
    return kind(
        answer.message or "no worker can take this request now; try again",
        retry_after_seconds=answer.retry_after_seconds or DEFAULT_RETRY_AFTER_SECONDS,
    )
