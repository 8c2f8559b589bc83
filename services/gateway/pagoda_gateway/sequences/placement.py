"""One sequence to its end: placed on a decode worker, on another when that one fails.

Knows messages and workers; knows no text and no HTTP.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict

from pagoda.rpc.v1 import generate_pb2, route_pb2
from pagoda_gateway import metrics
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import (
    DeadlineError,
    GatewayError,
    InternalError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from pagoda_gateway.sequences.backoff import pause_seconds
from pagoda_gateway.sequences.output.guard import CONTENT_FILTER
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.request import RequestContext
from pagoda_gateway.sequences.router_client import DEFAULT_RETRY_AFTER_SECONDS, RouterClient
from pagoda_runtime.errors import BusError, MessageTooLargeError, NoResponderError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import WorkerDirectory

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 2.0
MAX_ENGINE_FAULTS = 2
"""Engines that may fail over a sequence that has not brought a token there: then it is to blame."""

_ACCEPTED = generate_pb2.ADMIT_STATUS_ACCEPTED
_INVALID = generate_pb2.ADMIT_STATUS_INVALID
_OVERLOADED = generate_pb2.ADMIT_STATUS_OVERLOADED
_OVERDUE = generate_pb2.ADMIT_STATUS_OVERDUE


class _AttemptFailedError(Exception):
    """This attempt is over, another may succeed.

    `cause` in a word and `detail` are for whoever runs this; `error` is for the client if no other
    attempt succeeds.
    """

    def __init__(self, cause: str, detail: str, error: GatewayError) -> None:
        super().__init__(detail)
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
    ) -> None:
        self._bus = bus
        self._directory = directory
        self._settings = settings
        self._gateway_id = gateway_id
        self.router = RouterClient(bus, directory, settings)
        self._suspect_runs: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by model

    async def run(self, context: RequestContext, sequence: OutputSequence) -> None:
        """Return when the sequence has finished. Cancelled: the worker is told before this returns.

        Raises:
            GatewayError: it cannot be finished.
        """
        refused: set[str] = set()
        num_faults = 0
        try:
            for attempt in range(self._settings.max_attempts):
                sequence.begin_attempt(attempt)
                try:
                    if num_faults:
                        await self._place_suspect(context, sequence, refused)
                    else:
                        await self._place(context, sequence, refused)
                    await self._finish(context, sequence, refused)
                    return
                except _AttemptFailedError as failure:
                    await self._cancel(context, sequence, "superseded")
                    num_faults += failure.cause == "engine fault" and not sequence.has_progressed
                    is_last = attempt + 1 == self._settings.max_attempts
                    if is_last or num_faults >= MAX_ENGINE_FAULTS:
                        raise failure.error from None
                    metrics.ATTEMPTS.labels(failure.cause).inc()
                    logger.log(
                        # one that is full refuses as it should, hundreds of times a second
                        logging.DEBUG if failure.cause == "refused" else logging.WARNING,
                        "request %s sequence %d: attempt %d of %d failed (%s): %s; another follows",
                        context.request_id, sequence.index, attempt + 1,
                        self._settings.max_attempts, failure.cause, failure,
                    )  # fmt: skip
                    if failure.cause == "refused":
                        await asyncio.sleep(pause_seconds(attempt))
        except BaseException:
            await self._cancel(context, sequence, context.cancel_reason)
            raise

    async def _place_suspect(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> None:
        """Place one that an engine failed over; others of its model wait until it brings a token.

        One of those that shared the engine is to blame. Were they placed together again, the others
        would fail with it again, and be blamed too.
        """
        async with self._suspect_runs[context.model.name]:
            await self._place(context, sequence, refused)
            await sequence.progress.wait()

    async def _place(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> None:
        request = self._request(context, sequence)  # while the router thinks
        placement = await self._placement(context, sequence, refused)
        _plan(sequence.sampling, placement, request.plan)
        sequence.worker_id = placement.decode_worker_id
        if sequence.worker_id not in context.worker_ids:
            context.worker_ids.append(sequence.worker_id)
        context.on_asking()
        await self._hand_over(context, sequence, request, refused)
        context.accepted.add(sequence.index)
        sequence.hand_over()

    async def _placement(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> route_pb2.RouteResponse:
        """Route a sequence; further choices of a prompt follow its first one, which prefills it."""
        leader = context.placements.get(id(sequence.prompt))
        if leader is not None and not sequence.attempt:
            found = await asyncio.shield(leader)
            if found is not None:
                placement = route_pb2.RouteResponse()
                placement.CopyFrom(found)
                placement.prefill_worker_id, placement.num_fetch_blocks = "", 0
                return placement
        if leader is not None:
            return await self.router.route(context, sequence, refused)
        leader = context.placements[id(sequence.prompt)] = (
            asyncio.get_running_loop().create_future()
        )
        try:
            placement = await self.router.route(context, sequence, refused)
            leader.set_result(placement)
        finally:
            if not leader.done():
                leader.set_result(None)
        return placement

    async def _finish(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> None:
        """Wait for the end of an attempt that was handed over."""
        await sequence.attention.wait()
        if sequence.error is not None and sequence.is_own_fault:
            sequence.worker_id = ""
            name = context.model.full_name
            raise InvalidRequestError(f"the output of {name} cannot go on: {sequence.error}")
        if sequence.error is not None:
            refused.add(sequence.worker_id)
            sequence.worker_id = ""  # it has forgotten the sequence
            detail = f"the engine failed: {sequence.error}"
            raise _AttemptFailedError("engine fault", detail, InternalError(detail))
        if not sequence.is_finished:
            refused.add(sequence.worker_id)
            reason = sequence.lost_reason or "lost"
            raise _AttemptFailedError(
                "lost",
                f"on {sequence.worker_id}: {reason}",
                UnavailableError(
                    f"the sequence lost its worker ({reason}) in "
                    f"{self._settings.max_attempts} attempts; try again",
                    retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
                ),
            )
        if not sequence.is_ended_by_worker:
            is_blocked = sequence.finish_reason == CONTENT_FILTER
            await self._cancel(context, sequence, CONTENT_FILTER if is_blocked else "stop_string")

    def _request(
        self, context: RequestContext, sequence: OutputSequence
    ) -> generate_pb2.GenerateRequest:
        """Return what a worker is asked, without the plan for its KV."""
        return generate_pb2.GenerateRequest(
            request_id=context.request_id,
            sequence_index=sequence.index,
            attempt=sequence.attempt,
            gateway_id=self._gateway_id,
            prompt_token_ids=sequence.prompt.token_ids,
            output_token_ids=sequence.token_ids,
            cache_root=sequence.prompt.cache_root,
            block_hashes=b"".join(sequence.prompt.block_hashes),
            sampling=sequence.sampling,
            priority=context.priority,
            tenant=context.tenant_tag,
            weight=context.weight,
            adapter=context.model.adapter_digest,
        )

    async def _hand_over(
        self,
        context: RequestContext,
        sequence: OutputSequence,
        request: generate_pb2.GenerateRequest,
        refused: set[str],
    ) -> None:
        worker_id = sequence.worker_id
        request.remaining_seconds = context.deadline - asyncio.get_running_loop().time()
        try:
            async with sequence.asking():
                answer = await self._bus.request(
                    subjects.decode(worker_id),
                    request,
                    generate_pb2.GenerateResponse,
                    timeout_seconds=self._settings.admit_timeout_seconds,
                    context=context.trace_context,
                )
        except MessageTooLargeError as error:
            raise InvalidRequestError(f"the prompt is too large to send: {error}") from error
        except (BusError, TimeoutError) as error:
            refused.add(worker_id)
            if isinstance(error, NoResponderError):  # sooner known than by its silence
                self._directory.forget(worker_id)
            detail = (
                f"decode worker {worker_id} does not answer ({str(error) or sequence.lost_reason})"
            )
            raise _AttemptFailedError(
                "unreachable",
                detail,
                UnavailableError(
                    f"{detail}; try again",
                    retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
                ),
            ) from error
        if answer.status == _ACCEPTED:
            return
        sequence.worker_id = ""  # it holds nothing of ours
        if answer.status == _INVALID:
            raise InvalidRequestError(answer.message or "the worker cannot run this sequence")
        if answer.status == _OVERDUE:
            raise DeadlineError(f"decode worker {worker_id} did not begin: {answer.message}")
        refused.add(worker_id)
        kind = OverloadedError if answer.status == _OVERLOADED else UnavailableError
        detail = f"decode worker {worker_id} takes no more now ({answer.message})"
        raise _AttemptFailedError(
            "refused",
            detail,
            kind(f"{detail}; try again", retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS),
        )

    async def _cancel(self, context: RequestContext, sequence: OutputSequence, reason: str) -> None:
        """Tell the sequence's worker to stop; best effort, the deadline frees what this misses."""
        worker_id, sequence.worker_id = sequence.worker_id, ""
        if not worker_id or sequence.is_ended_by_worker:
            return
        request = generate_pb2.CancelRequest(
            request_id=context.request_id,
            sequence_indices=[sequence.index],
            reason=reason,
            attempt=sequence.attempt,
        )
        with contextlib.suppress(BusError, TimeoutError):
            async with asyncio.timeout(CANCEL_SECONDS):
                await self._bus.publish(
                    subjects.cancel(worker_id), request, context=context.trace_context
                )


def _plan(
    sampling: generate_pb2.SamplingParams,
    placement: route_pb2.RouteResponse,
    plan: generate_pb2.KvPlan,
) -> None:
    """Fill in where a sequence's KV comes from."""
    if sampling.HasField("num_prompt_logprobs") or sampling.embed:
        return  # who answers computes the prompt: KV alone has no logits, no hidden state
    plan.num_fetch_blocks = placement.num_fetch_blocks
    if not sampling.HasField("beam_search"):  # it needs several first tokens, prefill finds one
        plan.prefill_worker_id = placement.prefill_worker_id
