"""What a generation request leaves in traces and metrics. Span names are in ARCHITECTURE.md."""

import logging
import re
from collections.abc import Iterable
from http import HTTPStatus

import orjson
from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanKind,
    StatusCode,
)
from starlette.requests import Request
from starlette.types import Scope

from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway import metrics
from pagoda_gateway.errors import GatewayError, InvalidRequestError
from pagoda_gateway.http.caller import Caller
from pagoda_gateway.http.request_head import header
from pagoda_gateway.openai.schemas.generation import GenerationBody
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.stages import unix_nanoseconds
from pagoda_gateway.text.prompts import Prompt
from pagoda_gateway.text.tokenizer import ModelTokenizer
from pagoda_runtime.telemetry.tracing import extract, tracer

MAX_USER_CHARS = 128
_CACHED_TOKENS = [(t, metrics.CACHED_TOKENS.labels(t)) for t in ("device", "cpu", "nvme")]
logger = logging.getLogger(__name__)

_FIELD = re.compile(
    r"[a-z_]{1,32}(?![^.\[])"
)  # of a body; what is within it has names of the client's


def start_request_span(request: Request, caller: Caller, operation: str) -> Span:
    """Start gateway.request when the request arrived, below the client's own span."""
    return tracer().start_span(
        "gateway.request",
        context=_clients_context(request.scope),
        kind=SpanKind.SERVER,
        start_time=unix_nanoseconds(caller.arrived_unix_seconds),
        attributes={
            "pagoda.request_id": caller.request_id,
            "pagoda.client_request_id": caller.client_request_id,
            "pagoda.service_tier": caller.service_tier,
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "pagoda",
        },
    )


def end_request_span(
    span: Span, _kind: object, error: BaseException | None, _traceback: object
) -> None:
    """End gateway.request, as a context does, and note on it what error there was."""
    if isinstance(error, GatewayError):  # no slot, or a request that cannot be served
        mark_failed(span, error)
    span.end()


def _clients_context(scope: Scope) -> Context:
    """Return the trace that the client says its request belongs to; an empty one if none."""
    parent = header(scope, b"traceparent")
    if not parent:
        return Context()
    return extract({"traceparent": parent, "tracestate": header(scope, b"tracestate")})


def describe_request(generation: Generation, body: GenerationBody) -> None:
    """Note what was asked for."""
    if not generation.span.is_recording():
        return
    generation.span.set_attributes(
        {
            "gen_ai.request.model": body.model,
            "gen_ai.response.model": generation.model.full_name,
            "gen_ai.response.id": generation.identity.object_id,
            "gen_ai.usage.input_tokens": generation.num_prompt_tokens,
            "gen_ai.request.max_tokens": generation.sequences[0].sampling.max_tokens,
            "gen_ai.request.temperature": generation.sequences[0].sampling.temperature,
            "gen_ai.request.choice.count": body.n or 1,
            "pagoda.tenant": generation.identity.tenant,
        }
    )
    if body.user:
        generation.span.set_attribute("enduser.id", body.user[:MAX_USER_CHARS])
    if body.metadata:
        generation.span.set_attribute("pagoda.metadata", orjson.dumps(body.metadata).decode())


def log_prompts(request_id: str, prompts: Iterable[Prompt], tokenizer: ModelTokenizer) -> None:
    """Write prompts to the log as the model sees them; only where a setting says so."""
    for prompt in prompts:
        text = tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
        logger.info("request %s: prompt %r", request_id, text)


def describe_outcome(generation: Generation, record: UsageClose) -> None:
    """Note how it was placed, how it ended and what the client got."""
    if not generation.span.is_recording():
        return
    generation.describe_routes()
    generation.span.set_attributes(
        {
            "pagoda.outcome": record.outcome,
            "pagoda.attempts": record.num_attempts,
            "gen_ai.response.finish_reasons": list(record.finish_reasons),
            "gen_ai.usage.output_tokens": record.num_output_tokens,
            "gen_ai.usage.cache_read.input_tokens": generation.cached_tokens()[0],
            "pagoda.cached_tokens.device": record.cached.device,
            "pagoda.cached_tokens.cpu": record.cached.cpu,
            "pagoda.cached_tokens.nvme": record.cached.nvme,
            "pagoda.ttft_ms": record.ttft_ms,
            "pagoda.proposed_tokens": record.num_proposed_tokens,
            "pagoda.accepted_tokens": record.num_accepted_tokens,
        }
    )
    if record.safety_findings:
        generation.span.set_attribute("pagoda.safety_findings", list(record.safety_findings))
    if record.is_cached_answer:
        generation.span.set_attribute("pagoda.is_cached_answer", True)
    if generation.failure is not None:
        mark_failed(generation.span, generation.failure)


def mark_failed(span: Span, error: GatewayError) -> None:
    """Note an error that the client hears of; of one that is its own, only which field it is in.

    Such a message shows what the client sent: that is for the client alone. What a client can mend
    is no failure of the server's span, by OpenTelemetry's conventions for HTTP.
    """
    message = str(error)[:500]
    if isinstance(error, InvalidRequestError):
        field = _FIELD.match(error.param or "")
        message = f"in '{field[0]}'" if field else ""
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        span.set_status(StatusCode.ERROR, message)
    else:
        span.set_attribute("error.message", message)
    span.set_attribute("error.type", error.code or type(error).__name__)


def count(generation: Generation, record: UsageClose) -> None:
    """Add a generation that ended to the metrics; not a line of a batch that only waits."""
    identity, failure = generation.identity, generation.failure
    if record.outcome == "refused" and identity.service_tier == "batch":
        assert failure is not None, "the outcome says so"
        if failure.retry_after_seconds is not None:
            return
    metrics.REQUESTS.labels(identity.endpoint, record.outcome).inc()
    if record.outcome != "refused":  # nothing of it has run
        metrics.E2E.observe(record.e2e_ms / 1000)  # not what was done once the client had it all
    metrics.INPUT_TOKENS.inc(record.num_prompt_tokens)
    metrics.OUTPUT_TOKENS.inc(record.num_output_tokens)
    for tier, tokens in _CACHED_TOKENS:
        if num_tokens := getattr(record.cached, tier):
            tokens.inc(num_tokens)
    if generation.ttft_seconds is not None:
        metrics.TTFT.observe(generation.ttft_seconds)
    for sequence in generation.sequences:
        first, last = sequence.first_token_seconds, sequence.last_token_seconds
        if first is not None and last is not None and len(sequence.token_ids) > 1:
            metrics.TPOT.observe((last - first) / (len(sequence.token_ids) - 1))
