"""Asks the router where a sequence should run, again where that makes sense."""

import asyncio
import time
from collections.abc import Collection

from opentelemetry.context import Context

from pagoda.rpc.v1 import route_pb2
from pagoda.rpc.v1.status_pb2 import Role
from pagoda_gateway.config import GatewaySettings
from pagoda_gateway.errors import GatewayError, OverloadedError, UnavailableError
from pagoda_gateway.sequences.backoff import pause_seconds
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.request import AskedAhead, RequestContext
from pagoda_gateway.served_model import ServedModel
from pagoda_gateway.text.prompts import Prompt
from pagoda_runtime.errors import BusError
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import WorkerDirectory

DEFAULT_RETRY_AFTER_SECONDS = 1.0
ECHO_SECONDS = 1.0  # for NATS to show that it is not what is silent


class RouterClient:
    """Knows who is alive and what this request has tried; the choice is the router's."""

    def __init__(self, bus: Bus, directory: WorkerDirectory, settings: GatewaySettings) -> None:
        self._bus = bus
        self._directory = directory
        self._settings = settings

    def ask_ahead(
        self,
        request_id: str,
        model: ServedModel,
        prompt: Prompt,
        max_tokens: int,
        trace_context: Context,
    ) -> AskedAhead | None:
        """Ask where a request's first sequence should run; `route` takes the answer.

        None where nothing can be sent now: `route` will wait for that, or say so.
        """
        question = route_pb2.RouteRequest(
            request_id=request_id,
            model=model.name,
            kv_identity=model.kv_identity,
            num_prompt_tokens=len(prompt.token_ids),
            max_tokens=max_tokens,
            block_hashes=b"".join(prompt.block_hashes),
            adapter=model.adapter_digest,
        )
        try:
            asked = self._bus.ask(
                subjects.route(model.name),
                question,
                route_pb2.RouteResponse,
                timeout_seconds=self._settings.route_timeout_seconds,
                context=trace_context,
            )
        except BusError:
            return None
        return AskedAhead(time.perf_counter(), asked)

    async def route(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> route_pb2.RouteResponse:
        """Return a placement. A router that is away is waited for; a worker only after a failure.

        Args:
            context: of the request.
            sequence: to place, with the tokens it has by now.
            refused: workers that failed this request.

        Raises:
            UnavailableError, OverloadedError: none is to be had.
        """
        started = time.monotonic()
        worker_wait = self._settings.failover_wait_seconds if sequence.attempt else 0.0
        router_wait = max(worker_wait, self._settings.router_wait_seconds)
        num_tries, is_silent = 0, False
        while True:
            try:
                answer = await self._ask_router(context, sequence, refused)
            except BusError as error:
                was_silent, is_silent = is_silent, not await self._bus.answers(ECHO_SECONDS)
                if was_silent and not is_silent:  # what was asked may never have been heard
                    continue
                who = "NATS, by which routers are asked," if is_silent else "the router"
                problem: GatewayError = UnavailableError(
                    f"{who} does not answer ({error}); try again",
                    retry_after_seconds=DEFAULT_RETRY_AFTER_SECONDS,
                )
                patience = router_wait
            else:
                if answer.status == route_pb2.ROUTE_STATUS_PLACED:
                    return answer
                problem = _refusal(answer)
                patience = worker_wait
            if time.monotonic() - started >= patience:
                raise problem
            await asyncio.sleep(pause_seconds(num_tries))
            num_tries += 1

    async def _ask_router(
        self, context: RequestContext, sequence: OutputSequence, refused: set[str]
    ) -> route_pb2.RouteResponse:
        if context.asked_ahead is not None and not sequence.index:
            (started, asked), context.asked_ahead = context.asked_ahead, None
            answer = await asked.answer()
        else:
            started = time.perf_counter()
            answer = await self._bus.request(
                subjects.route(context.model.name),
                self._question(context, sequence, refused),
                route_pb2.RouteResponse,
                timeout_seconds=self._settings.route_timeout_seconds,
                context=context.trace_context,
            )
        context.on_route(sequence, answer, 1000 * (time.perf_counter() - started))
        return answer

    def _question(
        self, context: RequestContext, sequence: OutputSequence, refused: Collection[str]
    ) -> route_pb2.RouteRequest:
        return route_pb2.RouteRequest(
            request_id=context.request_id,
            sequence_index=sequence.index,
            attempt=sequence.attempt,
            model=context.model.name,
            kv_identity=context.model.kv_identity,
            num_prompt_tokens=len(sequence.prompt.token_ids) + len(sequence.token_ids),
            max_tokens=sequence.sampling.max_tokens,
            block_hashes=b"".join(sequence.prompt.block_hashes),
            excluded_worker_ids=self._excluded(context.model.name, refused),
            adapter=context.model.adapter_digest,
        )

    def _excluded(self, model: str, refused: Collection[str]) -> list[str]:
        """Leave out who failed this request; one that is alive only if another one is too."""
        if not refused:
            return []
        alive = {
            status.worker_id
            for status in self._directory.alive(Role.ROLE_DECODE)
            if status.model.name == model
        }
        failed = set(refused)
        return sorted(failed if alive - failed else failed - alive)


def _refusal(answer: route_pb2.RouteResponse) -> GatewayError:
    kind = (
        OverloadedError if answer.status == route_pb2.ROUTE_STATUS_OVERLOADED else UnavailableError
    )
    return kind(
        answer.message or "no worker can take this request now; try again",
        retry_after_seconds=answer.retry_after_seconds or DEFAULT_RETRY_AFTER_SECONDS,
    )
