"""The response of a generation request: runs it, writes it to the client, settles the account."""

import asyncio
import contextlib
import logging
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_gateway.accounts.money.receipts import receipt_beside_answer
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body_pipe import BodyPipe
from pagoda_gateway.http.caller import Caller
from pagoda_gateway.http.generation.prefix_watch import PrefixWatch
from pagoda_gateway.http.generation.request_policy import RequestPolicy
from pagoda_gateway.http.generation.request_telemetry import count, describe_outcome
from pagoda_gateway.http.generation.streaming import GenerationWriter
from pagoda_gateway.openai.serializer import Serializer
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.stages import stage_span
from pagoda_runtime.telemetry.tracing import attached

logger = logging.getLogger(__name__)

SETTLE_SECONDS = 0.005  # a client that asks again at once need not wait for its last account
EXPLAIN_SECONDS = 0.5
DEADLINE_GRACE_SECONDS = 5.0  # for the last bytes to a slow reader


class GenerationResponse(Response):
    """Nothing of it happens before the framework sends it."""

    def __init__(
        self,
        gateway: Gateway,
        caller: Caller,
        generation: Generation,
        serializer: Serializer,
        prefix: PrefixWatch,
        *,
        is_stream: bool,
        include_receipt: bool,
        held: contextlib.ExitStack,
        policy: RequestPolicy | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            gateway: its parts.
            caller: whom to answer.
            generation: what to run.
            serializer: writes it down.
            prefix: says why its prompts were not in the cache.
            is_stream: the answer is a stream of events.
            include_receipt: it ends with the receipt; an answer that is no stream has it anyway.
            held: the request's slot and span; closed when the account is settled.
            policy: that applies to it.
        """
        super().__init__()
        self._gateway = gateway
        self._caller = caller
        self._generation = generation
        self.serializer = serializer
        self._prefix = prefix
        self._is_stream = is_stream
        self._include_receipt = include_receipt or not is_stream
        self._held = held
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, then settle; a failure before the first byte has its own HTTP status."""
        with self._held, self._gateway.admission.tracked(self._generation):
            pipe = BodyPipe.of(scope)
            writer = GenerationWriter(
                self._generation,
                self.serializer,
                send,
                pipe,
                after_step=self._gateway.after_step,
                receipt=self._receipt if self._include_receipt else None,
                keepalive_seconds=self._gateway.settings.keepalive_seconds,
            )
            try:
                await self._answer(writer, pipe, receive)
            finally:
                try:
                    await self._settle(writer)
                finally:
                    self._generation.release()

    async def _answer(
        self, writer: GenerationWriter, pipe: BodyPipe | None, receive: Receive
    ) -> None:
        """Run the generation and write it, until the end or until the client is gone."""
        generation = self._generation
        patience = self._gateway.settings.request_timeout_seconds + DEADLINE_GRACE_SECONDS
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(generation.run())
            watcher: asyncio.Task[None] | None = None
            if pipe is not None:
                pipe.on_loss(generation.disconnect)
            else:
                watcher = tasks.create_task(_watch_disconnect(receive, generation))
            try:
                async with asyncio.timeout(patience):
                    await (writer.stream() if self._is_stream else writer.whole())
            except TimeoutError:
                logger.warning("request %s: the client does not read", self._caller.request_id)
                generation.is_disconnected = True  # as good as gone
            finally:
                if watcher is not None:
                    watcher.cancel()
                elif pipe is not None:
                    pipe.on_loss(None)  # the connection goes on, and would keep all of the request
                generation.disconnect()  # no effect on one that is over

    def _receipt(self) -> dict[str, Any]:
        opened = self._generation.opened
        assert opened is not None, "what was not opened has no good end"
        final = self._generation.final_record()
        if self._policy is not None:
            self._policy.complete(self._generation, final)
        return receipt_beside_answer(opened, final, self._gateway.price_book)

    async def _settle(self, writer: GenerationWriter) -> None:
        """Write the account; the client has its answer already."""
        generation = self._generation
        failure = generation.failure
        if writer.is_complete:
            outcome = "finished"
        elif generation.is_disconnected:
            outcome = "disconnected"
        elif generation.opened is None and failure is not None and failure.status < 500:
            outcome = "refused"  # by a limit or a policy: nothing of it has begun
        else:
            outcome = "failed"
        record = generation.close_record(outcome)
        try:
            if self._policy is not None:
                self._policy.settle(generation, record)
            if generation.gate is not None:
                num_tokens = generation.num_counted_tokens(record)
                generation.gate.settle(generation.opened, record, num_tokens)
            await asyncio.sleep(SETTLE_SECONDS)
            with contextlib.suppress(TimeoutError):  # the client has its answer: the account waits
                async with asyncio.timeout(EXPLAIN_SECONDS):
                    await self._prefix.settle(record)
        finally:  # cancelled meanwhile: what was delivered is billed all the same
            if generation.opened is not None:
                span, context = generation.span, generation.context
                with attached(context), stage_span("gateway.settle", span, context):
                    await self._gateway.usage_log.close(record)
            count(generation, record)
            describe_outcome(generation, record)


async def _watch_disconnect(receive: Receive, generation: Generation) -> None:
    """Stop the generation when the client goes away, where no pipe says so.

    The body has been read before.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    generation.disconnect()
