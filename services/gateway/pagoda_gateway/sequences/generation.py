"""One request from its placement to its last token: its sequences, its accounts, its trace.

Whoever answers the client waits on `changed`, reads the sequences and says what was delivered.
Knows no HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.trace import Span, set_span_in_context

from pagoda.rpc.v1 import route_pb2
from pagoda.rpc.v1.generate_pb2 import CachedTokens, StageTimes
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.accounts.usage_log import UsageLog
from pagoda_gateway.errors import DeadlineError, GatewayError, InternalError, UnavailableError
from pagoda_gateway.openai.schemas.sampling import Endpoint
from pagoda_gateway.sequences.catalog import ServedModel
from pagoda_gateway.sequences.frames import FrameReceiver
from pagoda_gateway.sequences.output_sequence import STAGE_NAMES, OutputSequence
from pagoda_gateway.sequences.placement import Call, Dispatcher

if TYPE_CHECKING:
    from opentelemetry.context import Context

logger = logging.getLogger(__name__)

MAX_EXPLAINED_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """Who asks for what.

    Attributes:
        request_id: ours (ULID).
        object_id: the OpenAI id.
        endpoint: which one.
        tenant: whose account and cache.
        api_key_id: which of the tenant's keys.
        arrived_unix_seconds: when the request came.
        tokenize_ms: spent on template, tokens and hashes.
    """

    request_id: str
    object_id: str
    endpoint: Endpoint
    tenant: str
    api_key_id: str
    arrived_unix_seconds: float
    tokenize_ms: float


@dataclass(slots=True)
class _RouteTimes:
    total_ms: float = 0.0
    explanations: list[dict[str, object]] = field(default_factory=list)


class Generation:
    """The sequences of one request, running."""

    def __init__(
        self,
        *,
        identity: RequestIdentity,
        model: ServedModel,
        gateway_id: str,
        dispatcher: Dispatcher,
        frames: FrameReceiver,
        usage_log: UsageLog,
        span: Span,
        deadline_unix_seconds: float,
        max_undelivered_tokens: int | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; `add_sequence` and `run` come next.

        Args:
            identity: of the request.
            model: to run.
            gateway_id: frames come here.
            dispatcher: places sequences.
            frames: delivers their tokens.
            usage_log: stores the open record.
            span: gateway.request.
            deadline_unix_seconds: when it must have ended.
            max_undelivered_tokens: bound on what waits for a slow reader; None: nobody reads yet.
            clock: Unix seconds.
        """
        self.identity = identity
        self.model = model
        self.span = span
        self.context: Context = set_span_in_context(span)
        self.sequences: list[OutputSequence] = []
        self.changed = asyncio.Event()
        self.failure: GatewayError | None = None
        self.is_disconnected = False
        self.is_opened = False  # an open record was sent, so a close record must follow
        self._gateway_id = gateway_id
        self._dispatcher = dispatcher
        self._frames = frames
        self._usage_log = usage_log
        self._max_undelivered_tokens = max_undelivered_tokens
        self._clock = clock
        self._route = _RouteTimes()
        self._runner: asyncio.Task[None] | None = None
        self._call = Call(
            request_id=identity.request_id,
            model=model,
            deadline_unix_seconds=deadline_unix_seconds,
            context=self.context,
            opened=asyncio.Event(),
            on_route=self._note_route,
        )

    def add_sequence(self, sequence: OutputSequence) -> None:
        """Take one more sequence; before `run`."""
        self.sequences.append(sequence)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        return (
            self.failure is not None
            or self.is_disconnected
            or all(sequence.is_finished for sequence in self.sequences)
        )

    @property
    def stage(self) -> str:
        """What the request waits for, in one word."""
        if any(sequence.attempt for sequence in self.sequences):
            return "failover"
        if any(sequence.token_ids for sequence in self.sequences):
            return "decode"
        if all(sequence.worker_id for sequence in self.sequences):
            return "prefill"
        return "route"

    def on_sequence_change(self) -> None:
        """Wake whoever reads; cut a request whose reader is far too slow."""
        self.changed.set()
        limit = self._max_undelivered_tokens
        if limit is not None and sum(s.num_unread for s in self.sequences) > limit:
            self.fail(
                UnavailableError(
                    f"more than {limit} tokens wait for this client: it reads too slowly"
                ),
                reason="client_disconnect",
            )

    async def run(self) -> None:
        """Run every sequence to its end. Never raises but for cancellation: see `failure`."""
        self._runner = asyncio.current_task()
        timer = asyncio.get_running_loop().call_later(
            max(0.0, self._call.deadline_unix_seconds - self._clock()), self._expire
        )
        for sequence in self.sequences:
            self._frames.register(self.identity.request_id, sequence)
        try:
            if not self.is_over:  # the client may have gone before this task began
                await self._run_all()
        except* GatewayError as group:
            error = _first(group)
            assert isinstance(error, GatewayError), "the clause takes nothing else"
            self._set_failure(error)
        except* Exception as group:
            error = _first(group)
            logger.error("request %s failed", self.identity.request_id, exc_info=error)
            self._set_failure(InternalError("the gateway failed; its log has the details"))
        finally:
            timer.cancel()
            for sequence in self.sequences:
                self._frames.unregister(self.identity.request_id, sequence)
                sequence.close()
            self.changed.set()

    def disconnect(self) -> None:
        """The client went away: stop everything now."""
        if not self.is_over:
            self.is_disconnected = True
            self._stop("client_disconnect")

    def fail(self, error: GatewayError, *, reason: str) -> None:
        """Stop everything now; the client gets `error`, workers hear `reason`."""
        if not self.is_over:
            self._set_failure(error)
            self._stop(reason)

    def prompts_cached(self) -> tuple[int, CachedTokens]:
        """Return reused prompt tokens: their number, and by tier. Each prompt counts once."""
        total, tiers = 0, CachedTokens()
        for sequence in self.first_sequences():
            total += sequence.num_cached_tokens
            if sequence.cached is not None:
                tiers.device += sequence.cached.device
                tiers.cpu += sequence.cached.cpu
                tiers.nvme += sequence.cached.nvme
        return total, tiers

    def first_sequences(self) -> list[OutputSequence]:
        """Return one sequence for each prompt: its first choice."""
        seen: dict[int, OutputSequence] = {}
        for sequence in self.sequences:
            seen.setdefault(id(sequence.prompt), sequence)
        return list(seen.values())

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once whatever n is."""
        return sum(len(sequence.prompt.token_ids) for sequence in self.first_sequences())

    def close_record(self, outcome: str) -> UsageClose:
        """Return the account of what the client got."""
        now = self._clock()
        stages = StageTimes()
        for name in STAGE_NAMES:
            setattr(stages, name, sum(sequence.stages[name] for sequence in self.sequences))
        return UsageClose(
            request_id=self.identity.request_id,
            num_prompt_tokens=self.num_prompt_tokens,
            cached=self.prompts_cached()[1],
            num_output_tokens=sum(sequence.num_delivered for sequence in self.sequences),
            finish_reasons=[s.finish_reason or "abort" for s in self.sequences],
            stages=stages,
            ttft_ms=1000 * (self.ttft_seconds or 0.0),
            e2e_ms=1000 * (now - self.identity.arrived_unix_seconds),
            num_attempts=sum(sequence.attempt + 1 for sequence in self.sequences),
            closed_unix_seconds=now,
            outcome=outcome,
            worker_ids=self._call.worker_ids,
            gateway_tokenize_ms=self.identity.tokenize_ms,
            gateway_route_ms=self._route.total_ms,
        )

    @property
    def ttft_seconds(self) -> float | None:
        """Arrival to the first token of any sequence; None without a token."""
        times = [s.first_token_seconds for s in self.sequences if s.first_token_seconds]
        return min(times) - self.identity.arrived_unix_seconds if times else None

    async def _run_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._open())
            for sequence in self.sequences:
                tasks.create_task(self._dispatcher.run(self._call, sequence))

    async def _open(self) -> None:
        identity = self.identity
        self.is_opened = True
        record = UsageOpen(
            request_id=identity.request_id,
            object_id=identity.object_id,
            tenant=identity.tenant,
            api_key_id=identity.api_key_id,
            model=self.model.name,
            endpoint=identity.endpoint,
            num_prompt_tokens=self.num_prompt_tokens,
            max_output_tokens=sum(s.sampling.max_tokens for s in self.sequences),
            opened_unix_seconds=self._clock(),
            gateway_id=self._gateway_id,
        )
        await self._usage_log.open(record, self.context)
        self._call.opened.set()

    def _note_route(
        self, sequence: OutputSequence, answer: route_pb2.RouteResponse, milliseconds: float
    ) -> None:
        self._route.total_ms += milliseconds
        if not self.span.is_recording():
            return
        del answer.candidates[MAX_EXPLAINED_CANDIDATES:]
        explanation = MessageToDict(answer, preserving_proto_field_name=True)
        self.span.add_event(
            "pagoda.route",
            {
                "pagoda.sequence_index": sequence.index,
                "pagoda.attempt": sequence.attempt,
                "pagoda.route.milliseconds": milliseconds,
                "pagoda.route.explanation": orjson.dumps(explanation).decode(),
            },
        )

    def _expire(self) -> None:
        self.fail(
            DeadlineError("the request did not end before its deadline; ask for fewer tokens"),
            reason="deadline",
        )

    def _set_failure(self, error: GatewayError) -> None:
        if self.failure is None:
            self.failure = error
        self.changed.set()

    def _stop(self, reason: str) -> None:
        self._call.cancel_reason = reason
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
        self.changed.set()


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
