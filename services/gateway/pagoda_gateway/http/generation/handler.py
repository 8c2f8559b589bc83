"""A generation request up to its first worker: slot, body, prompts. Its answer is a response.

One handler serves one endpoint; what makes APIs differ is in their `Endpoint`.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from opentelemetry.context import Context
from opentelemetry.trace import Span, set_span_in_context
from starlette.requests import Request
from starlette.types import Scope

from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limits.reservation import LimitedRequest
from pagoda_gateway.errors import InvalidRequestError
from pagoda_gateway.gateway import Gateway
from pagoda_gateway.http.body import read_object, validated
from pagoda_gateway.http.body_reader import BodyReader
from pagoda_gateway.http.caller import Caller, caller_of, key_of
from pagoda_gateway.http.generation.form_check import FormCheck
from pagoda_gateway.http.generation.prefix_watch import PrefixWatch
from pagoda_gateway.http.generation.request_policy import RequestPolicy
from pagoda_gateway.http.generation.request_telemetry import (
    describe_request,
    end_request_span,
    log_prompts,
    start_request_span,
)
from pagoda_gateway.http.generation.response import GenerationResponse
from pagoda_gateway.http.ignored_fields import note_ignored, note_loose
from pagoda_gateway.http.limit_headers import note_limits
from pagoda_gateway.http.request_head import timeout_of
from pagoda_gateway.openai.endpoint import Endpoint, Sent, Translated
from pagoda_gateway.openai.request_processor import Body, ProcessedRequest
from pagoda_gateway.openai.schemas.base import MAX_PRIORITY
from pagoda_gateway.sequences.generation import Generation
from pagoda_gateway.sequences.output.options import OutputOptions
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.request import AskedAhead, RequestIdentity
from pagoda_gateway.sequences.stages import stage_span
from pagoda_gateway.sequences.unread_limit import UnreadLimit
from pagoda_gateway.served_model import ServedModel
from pagoda_runtime.telemetry.tracing import attached

PRIORITY_OF_TIER = {"default": 0, "batch": 2 * MAX_PRIORITY + 1}  # behind whatever a client says


@dataclass(frozen=True, slots=True)
class _Admitted(Generic[Body]):
    """A body as the model may see it, what it asks of its output, and the policy that applies."""

    body: Body
    model: ServedModel
    options: OutputOptions
    policy: RequestPolicy | None


class GenerationHandler(Generic[Sent, Body]):
    """Turns requests of one endpoint into responses that run them."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint[Sent, Body]) -> None:
        self._gateway = gateway
        self._endpoint = endpoint
        self._bodies = BodyReader.of(gateway)
        settings = gateway.settings
        self._limits = {
            "max_n": settings.max_n,
            "max_beam_width": settings.max_beam_width,
            "max_sequences": settings.max_sequences,
        }
        self._form_check = FormCheck(gateway, endpoint, self._limits)

    async def handle(self, request: Request) -> GenerationResponse:
        """Read, check and tokenise; the response runs what comes out, and frees the slot.

        The slot is taken when the body is there: who sends slowly keeps nobody out.

        Raises:
            GatewayError: the request cannot be served.
        """
        began = asyncio.get_running_loop().time()
        caller = caller_of(request)
        span = start_request_span(request, caller, self._endpoint.operation)
        context = set_span_in_context(span, Context())
        with contextlib.ExitStack() as held:
            held.push(partial(end_request_span, span))
            admission, tenant = self._gateway.admission, caller.key.tenant
            admission.check(tenant)  # before anything is sent in vain
            with attached(context), self._bodies.held() as held_bytes:
                value = await read_object(request, self._bodies, held_bytes)
                held.enter_context(admission.slot(tenant))
                part = self._form_check.part_of(value)
                try:
                    translated = await self._translated(
                        request.scope, value, caller, held_bytes.num_bytes
                    )
                    del value
                    admitted = await self._admitted(translated.body, caller, span, context)
                except InvalidRequestError as error:
                    raise await self._form_check.named_with(error, part, caller) from None
                del part
                generation, processed = await self._process(
                    admitted, caller, span, context, request.scope, held, began
                )
                self._limit(generation, caller, request, admitted.body.model)
                generation.begin()
                try:
                    return self._response(generation, caller, translated, processed, admitted, held)
                except BaseException:  # what no response runs has its account closed
                    if generation.opened is not None:
                        self._gateway.usage_log.close_failed(caller.request_id)
                    raise

    def _response(
        self,
        generation: Generation,
        caller: Caller,
        translated: Translated[Body],
        processed: ProcessedRequest,
        admitted: _Admitted[Body],
        held: contextlib.ExitStack,
    ) -> GenerationResponse:
        tokenizer = self._endpoint.processors[generation.model.name].tokenizer
        options = translated.body.stream_options
        return GenerationResponse(
            self._gateway,
            caller,
            generation,
            translated.serializer(processed, generation),
            PrefixWatch(self._gateway.prefixes, generation, admitted.body, tokenizer),
            is_stream=bool(translated.body.stream),
            include_receipt=bool(options and options.include_receipt),
            held=held.pop_all(),
            policy=admitted.policy,
        )

    async def _translated(
        self, scope: Scope, value: dict[str, Any], caller: Caller, num_bytes: int
    ) -> Translated[Body]:
        """Return what a client has sent, in so many bytes, as the processors take it."""
        schema, tenant = self._endpoint.schema, caller.key.tenant
        note_ignored(scope, value, schema)
        validate = partial(validated, value, schema, self._limits)
        sent = await self._bodies.large.read(tenant, num_bytes, validate)
        line_id = caller.request_id if caller.service_tier == "batch" else ""
        translated = await self._endpoint.translate(sent, tenant, line_id)
        note_loose(scope, translated.left_out)
        return translated

    async def _admitted(
        self, body: Body, caller: Caller, span: Span, context: Context
    ) -> _Admitted[Body]:
        """Return a body that its model and the tenant's policy let through."""
        gateway, key = self._gateway, caller.key
        arrived = caller.arrived_unix_seconds
        with stage_span("gateway.admit", span, context, start_seconds=arrived):
            model = gateway.model_of(key, body.model)
            options = self._endpoint.processors[model.name].options(body)
            policy = RequestPolicy.of(gateway, key.tenant, model)
            if policy is not None:
                body = await policy.checked(body)
        return _Admitted(body, model, options, policy)

    async def _process(
        self,
        admitted: _Admitted[Body],
        caller: Caller,
        span: Span,
        context: Context,
        scope: Scope,
        held: contextlib.ExitStack,
        began: float,
    ) -> tuple[Generation, ProcessedRequest]:
        """Return what is ready to run, and what it was made of."""
        gateway, endpoint, key = self._gateway, self._endpoint, caller.key
        body, model, policy = admitted.body, admitted.model, admitted.policy
        tenant, processor = key.tenant, endpoint.processors[model.name]
        timeout_seconds = timeout_of(scope, gateway.settings.request_timeout_seconds)
        started = time.perf_counter()
        with stage_span("gateway.tokenize", span, context):
            processed = await processor.process(body, admitted.options, model, tenant)
            if policy is not None:
                await policy.see_cut(processed)
        note_loose(scope, processed.form.ignored)
        asked = None
        if policy is None and not key.scopes:  # nothing can keep it from running
            asked = gateway.placer.router.ask_ahead(
                caller.request_id,
                model,
                processed.prompts[0],
                processed.sampling[0].max_tokens,
                context,
            )
        if asked is not None:
            held.callback(asked.asked.close)
        if gateway.settings.log_prompts:
            log_prompts(caller.request_id, processed.prompts, processor.tokenizer)
        if policy is not None:
            processed = policy.guarded(processed)
        arrived = gateway.now() - (time.monotonic() - caller.arrived_seconds)
        identity = RequestIdentity(
            request_id=caller.request_id,
            client_request_id=caller.client_request_id,
            object_id=endpoint.object_id_prefix + caller.request_id,
            endpoint=endpoint.name,
            tenant=tenant,
            api_key_id=key.api_key_id,
            arrived_unix_seconds=arrived,
            tokenize_ms=1000 * (time.perf_counter() - started),
            priority=(body.priority or 0) + PRIORITY_OF_TIER[caller.service_tier],
            service_tier=caller.service_tier,
            price_id=gateway.price_book.price_id_at(self._priced_name(model, arrived), arrived),
            weight=key.weight,
            arrived_seconds=caller.arrived_seconds,
        )
        is_stream = bool(body.stream)
        generation = self._generation(
            identity, model, processed, span, context, policy, asked,
            deadline=began + timeout_seconds, is_stream=is_stream,
        )  # fmt: skip
        if policy is not None:
            generation.judge = policy.judge
            policy.look_up(generation, processed, scope, is_seeded=body.seed is not None)
        describe_request(generation, body)
        return generation, processed

    def _limit(
        self, generation: Generation, caller: Caller, request: Request, asked_model: str
    ) -> None:
        """Have the generation pass the limits of its key, if it has any."""
        if not caller.key.scopes:
            return

        async def ask_again() -> ApiKey:
            key = await key_of(request.scope, self._gateway.authenticator)
            self._gateway.model_of(key, asked_model)
            return key

        identity = generation.identity
        generation.gate = self._gateway.limits.reservation(
            caller.key,
            LimitedRequest(
                request_id=identity.request_id,
                model=self._priced_name(generation.model, identity.arrived_unix_seconds),
                num_prompt_tokens=generation.num_prompt_tokens,
                most_output_tokens=generation.most_output_tokens,
                service_tier=identity.service_tier,
                arrived_unix_seconds=identity.arrived_unix_seconds,
                ask_again=ask_again,
            ),
            lambda headers: note_limits(request.scope, headers),
        )

    def _priced_name(self, model: ServedModel, at: float) -> str:
        """Return whose price applies: that of the model with its adapter, or else its own."""
        if not model.adapter:
            return model.name
        return self._gateway.price_book.priced_name((model.full_name, model.name), at)

    def _generation(
        self,
        identity: RequestIdentity,
        model: ServedModel,
        processed: ProcessedRequest,
        span: Span,
        context: Context,
        policy: RequestPolicy | None,
        asked: AskedAhead | None,
        *,
        deadline: float,
        is_stream: bool,
    ) -> Generation:
        gateway, settings = self._gateway, self._gateway.settings
        generation = Generation(
            identity=identity,
            model=model,
            gateway_id=gateway.gateway_id,
            placer=gateway.placer,
            frames=gateway.frames,
            open_log=gateway.usage_log,
            span=span,
            context=context,
            deadline=deadline,
            unread_limit=UnreadLimit(
                settings.max_undelivered_tokens if is_stream else settings.max_whole_tokens,
                is_stream,
                processed.options.num_logprobs or 0,
            ),
            max_placed=settings.max_sequences,
            asked_ahead=asked,
        )
        num_choices = processed.options.num_choices
        for index, sampling in enumerate(processed.sampling):
            sequence = OutputSequence(
                index=index,
                prompt=processed.prompts[index // num_choices],
                sampling=sampling,
                options=processed.options,
                tokenizer=self._endpoint.processors[model.name].tokenizer,
                on_change=generation.on_sequence_change,
                gap_timeout_seconds=settings.gap_timeout_seconds,
                guard=policy.guard(index) if policy is not None else None,
            )
            if processed.options.is_search and index % num_choices:
                sequence.follow(generation.sequences[index - index % num_choices])
            generation.add_sequence(sequence)
        return generation
