"""One generation request over HTTP: admit, tokenise, generate, answer, settle."""

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_gateway import metrics
from pagoda_gateway.accounts.ledger import ApiKey
from pagoda_gateway.errors import GatewayError
from pagoda_gateway.http.body import read_body
from pagoda_gateway.http.responder import Responder, send_error, watch_disconnect
from pagoda_gateway.openai.preparation import Prepared
from pagoda_gateway.openai.replies import ChatReply, CompletionReply
from pagoda_gateway.openai.schemas.chat import ChatBody
from pagoda_gateway.openai.schemas.completions import CompletionBody
from pagoda_gateway.openai.schemas.sampling import Endpoint
from pagoda_gateway.sequences.catalog import ServedModel
from pagoda_gateway.sequences.generation import Generation, RequestIdentity
from pagoda_gateway.sequences.output_sequence import OutputSequence
from pagoda_runtime.telemetry.tracing import extract, tracer

if TYPE_CHECKING:
    from pagoda_gateway.gateway import Gateway

logger = logging.getLogger(__name__)

DEADLINE_GRACE_SECONDS = 5.0  # for the last bytes to a slow reader
_OBJECT_ID_PREFIX = {"chat.completions": "chatcmpl-", "completions": "cmpl-"}
_OPERATION = {"chat.completions": "chat", "completions": "text_completion"}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent the request, and what it is called; the middleware puts it into the scope.

    Attributes:
        request_id: ours (ULID).
        client_request_id: the client's own x-request-id; empty if it sent no usable one.
        key: whose key it is; None on routes without one.
        arrived_unix_seconds: when the request came.
    """

    request_id: str
    client_request_id: str
    key: ApiKey | None
    arrived_unix_seconds: float


class GenerationExchange(Response):
    """Serves one request when the framework sends it as its response."""

    def __init__(self, gateway: "Gateway", request: Request, endpoint: Endpoint) -> None:
        """Serve `request`; nothing happens before the framework calls this object."""
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._endpoint: Endpoint = endpoint
        self._caller: Caller = request.scope["pagoda.caller"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do everything; errors before the first byte become an error answer."""
        caller = self._caller
        span = tracer().start_span(
            "gateway.request",
            context=extract({k: self._request.headers.get(k, "") for k in _TRACE_HEADERS}),
            kind=SpanKind.SERVER,
            start_time=int(caller.arrived_unix_seconds * 1e9),
            attributes={
                "pagoda.request_id": caller.request_id,
                "pagoda.client_request_id": caller.client_request_id,
                "gen_ai.operation.name": _OPERATION[self._endpoint],
                "gen_ai.provider.name": "pagoda",
            },
        )
        try:
            with self._gateway.admission.slot():
                try:
                    generation, responder, is_stream = await self._begin(span, send)
                except GatewayError as error:
                    _mark_failed(span, error)
                    await send_error(send, error)
                    return
                with self._gateway.admission.tracked(generation):
                    try:
                        await self._answer(generation, responder, receive, is_stream)
                    finally:
                        await self._settle(generation, responder, span)
        except GatewayError as error:  # no slot
            _mark_failed(span, error)
            await send_error(send, error)
        finally:
            span.end()

    async def _begin(self, span: Span, send: Send) -> tuple[Generation, Responder, bool]:
        """Read, check and tokenise; return what is ready to run."""
        gateway, caller = self._gateway, self._caller
        assert caller.key is not None, "the middleware lets nobody here without a key"
        context = set_span_in_context(span)
        with tracer().start_as_current_span(
            "gateway.admit", context=context, start_time=int(caller.arrived_unix_seconds * 1e9)
        ):
            schema: type[ChatBody] | type[CompletionBody] = (
                ChatBody if self._endpoint == "chat.completions" else CompletionBody
            )
            body = await read_body(self._request, schema, max_bytes=gateway.settings.max_body_bytes)
            model = gateway.catalog.get(body.model)
            preparer = gateway.preparer
            if isinstance(body, ChatBody):
                options = preparer.chat_options(body)
            else:
                options = preparer.completion_options(body)
        started = time.perf_counter()
        with tracer().start_as_current_span("gateway.tokenize", context=context):
            if isinstance(body, ChatBody):
                prepared = await preparer.chat(body, options, model, caller.key.tenant)
            else:
                prepared = await preparer.completion(body, options, model, caller.key.tenant)
        identity = RequestIdentity(
            request_id=caller.request_id,
            object_id=_OBJECT_ID_PREFIX[self._endpoint] + caller.request_id,
            endpoint=self._endpoint,
            tenant=caller.key.tenant,
            api_key_id=caller.key.api_key_id,
            arrived_unix_seconds=caller.arrived_unix_seconds,
            tokenize_ms=1000 * (time.perf_counter() - started),
        )
        is_stream = bool(body.stream)
        generation = self._generation(identity, model, prepared, span, is_stream=is_stream)
        stream_options = body.stream_options
        include_usage = bool(stream_options and stream_options.include_usage)
        reply_type = ChatReply if isinstance(body, ChatBody) else CompletionReply
        reply = reply_type(
            generation,
            options,
            gateway.tokenizer,
            echo_texts=prepared.echo_texts,
            include_usage=include_usage,
            continuous_usage=bool(stream_options and stream_options.continuous_usage_stats),
        )
        responder = Responder(
            generation,
            reply,
            send,
            keepalive_seconds=gateway.settings.keepalive_seconds,
            include_usage=include_usage,
        )
        _describe(span, generation, body)
        return generation, responder, is_stream

    def _generation(
        self,
        identity: RequestIdentity,
        model: ServedModel,
        prepared: Prepared,
        span: Span,
        *,
        is_stream: bool,
    ) -> Generation:
        gateway = self._gateway
        settings = gateway.settings
        generation = Generation(
            identity=identity,
            model=model,
            gateway_id=gateway.gateway_id,
            dispatcher=gateway.dispatcher,
            frames=gateway.frames,
            usage_log=gateway.usage_log,
            span=span,
            deadline_unix_seconds=identity.arrived_unix_seconds + settings.request_timeout_seconds,
            max_undelivered_tokens=settings.max_undelivered_tokens if is_stream else None,
        )
        for index, sampling in enumerate(prepared.sampling):
            generation.add_sequence(
                OutputSequence(
                    index=index,
                    prompt=prepared.prompts[index // prepared.options.num_choices],
                    sampling=sampling,
                    options=prepared.options,
                    tokenizer=gateway.tokenizer,
                    on_change=generation.on_sequence_change,
                    gap_timeout_seconds=settings.gap_timeout_seconds,
                    clock=time.time,
                )
            )
        return generation

    async def _answer(
        self, generation: Generation, responder: Responder, receive: Receive, is_stream: bool
    ) -> None:
        """Run the generation and write it, until the end or until the client is gone."""
        patience = self._gateway.settings.request_timeout_seconds + DEADLINE_GRACE_SECONDS
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(generation.run())
            watcher = tasks.create_task(watch_disconnect(receive, generation))
            if self._caller.client_request_id:
                tasks.create_task(self._remember_name())
            try:
                async with asyncio.timeout(patience):
                    await (responder.stream() if is_stream else responder.whole())
            except TimeoutError:
                logger.warning("request %s: the client does not read", self._caller.request_id)
            finally:
                watcher.cancel()
                generation.disconnect()  # no effect on one that is over

    async def _remember_name(self) -> None:
        caller = self._caller
        assert caller.key is not None, "the middleware lets nobody here without a key"
        try:
            await self._gateway.ledger.name_request(
                caller.key.tenant, caller.client_request_id, caller.request_id
            )
        except Exception:  # a convenience must not fail the request
            logger.exception("the name of request %s is not stored", caller.request_id)

    async def _settle(self, generation: Generation, responder: Responder, span: Span) -> None:
        """Write the account; the client has its answer already."""
        if responder.is_complete:
            outcome = "finished"
        elif generation.is_disconnected:
            outcome = "disconnected"
        else:
            outcome = "failed"
        record = generation.close_record(outcome)
        if generation.is_opened:
            with tracer().start_as_current_span("gateway.settle", context=generation.context):
                await self._gateway.usage_log.close(record, generation.context)
        _count(generation, outcome)
        span.set_attributes(
            {
                "pagoda.outcome": outcome,
                "pagoda.attempts": record.num_attempts,
                "gen_ai.response.finish_reasons": list(record.finish_reasons),
                "gen_ai.usage.output_tokens": record.num_output_tokens,
                "gen_ai.usage.cache_read.input_tokens": generation.prompts_cached()[0],
                "pagoda.cached_tokens.device": record.cached.device,
                "pagoda.cached_tokens.cpu": record.cached.cpu,
                "pagoda.cached_tokens.nvme": record.cached.nvme,
                "pagoda.ttft_ms": record.ttft_ms,
            }
        )
        if generation.failure is not None:
            _mark_failed(span, generation.failure)


_TRACE_HEADERS = ("traceparent", "tracestate")


def _describe(span: Span, generation: Generation, body: ChatBody | CompletionBody) -> None:
    attributes: dict[str, Any] = {
        "gen_ai.request.model": body.model,
        "gen_ai.response.model": generation.model.name,
        "gen_ai.response.id": generation.identity.object_id,
        "gen_ai.usage.input_tokens": generation.num_prompt_tokens,
        "gen_ai.request.max_tokens": generation.sequences[0].sampling.max_tokens,
        "gen_ai.request.temperature": generation.sequences[0].sampling.temperature,
        "gen_ai.request.choice.count": body.n or 1,
        "pagoda.tenant": generation.identity.tenant,
    }
    span.set_attributes(attributes)


def _mark_failed(span: Span, error: GatewayError) -> None:
    span.set_status(StatusCode.ERROR, str(error)[:500])
    span.set_attribute("error.type", error.code or type(error).__name__)


def _count(generation: Generation, outcome: str) -> None:
    metrics.REQUESTS.labels(generation.identity.endpoint, outcome).inc()
    metrics.E2E.observe(time.time() - generation.identity.arrived_unix_seconds)
    metrics.INPUT_TOKENS.inc(generation.num_prompt_tokens)
    metrics.OUTPUT_TOKENS.inc(sum(s.num_delivered for s in generation.sequences))
    _, tiers = generation.prompts_cached()
    for tier in ("device", "cpu", "nvme"):
        metrics.CACHED_TOKENS.labels(tier).inc(getattr(tiers, tier))
    if generation.ttft_seconds is not None:
        metrics.TTFT.observe(generation.ttft_seconds)
    for sequence in generation.sequences:
        first, last = sequence.first_token_seconds, sequence.last_token_seconds
        if first is not None and last is not None and len(sequence.token_ids) > 1:
            metrics.TPOT.observe((last - first) / (len(sequence.token_ids) - 1))
