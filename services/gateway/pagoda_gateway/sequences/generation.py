"""One request from its placement to its last token: its sequences, its accounts, its trace.

Whoever answers the client waits on `changed`, reads the sequences and says what was delivered.
Knows no HTTP.
"""

import asyncio
import logging
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import orjson
from google.protobuf.json_format import MessageToDict
from opentelemetry.context import Context
from opentelemetry.trace import Span

from pagoda.rpc.v1.generate_pb2 import CachedTokens
from pagoda.rpc.v1.route_pb2 import RouteResponse
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.errors import (
    DeadlineError,
    GatewayError,
    InternalError,
    LongAnswerError,
    UndeliveredError,
)
from pagoda_gateway.sequences import usage
from pagoda_gateway.sequences.frames import FrameReceiver
from pagoda_gateway.sequences.output.sequence import OutputSequence
from pagoda_gateway.sequences.placement import Placer
from pagoda_gateway.sequences.replay import KeptOutput, replay
from pagoda_gateway.sequences.request import (
    AskedAhead,
    RequestContext,
    RequestIdentity,
    tenant_tag,
)
from pagoda_gateway.sequences.stages import stage_span
from pagoda_gateway.sequences.unread_limit import UnreadLimit
from pagoda_gateway.served_model import ServedModel

logger = logging.getLogger(__name__)

MAX_EXPLAINED_CANDIDATES = 16
_IS_SETTLED = operator.attrgetter("is_settled")


class Gate(Protocol):
    """What a request has to pass before it runs: all that sequences know of limits."""

    @property
    def stage(self) -> str:
        """What it waits for."""

    async def enter(self) -> None:
        """Return when it may run; raise GatewayError if it must not."""

    def expired(self) -> DeadlineError:
        """Return the error of a request whose deadline passes in `enter`."""

    def settle(self, opened: UsageOpen | None, closed: UsageClose, num_tokens: int) -> None:
        """Hear what it is billed, as the usage log does, and how many tokens it came to.

        Without an open record nothing of it is billed.
        """


class Generation:
    """The sequences of one request, running."""

    def __init__(
        self,
        *,
        identity: RequestIdentity,
        model: ServedModel,
        gateway_id: str,
        placer: Placer,
        frames: FrameReceiver,
        open_log: usage.OpenLog,
        span: Span,
        context: Context,
        deadline: float,
        unread_limit: UnreadLimit,
        max_placed: int,
        asked_ahead: AskedAhead | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `add_sequence` and `run` come next.

        Args:
            identity: of the request.
            model: to run.
            gateway_id: frames come here.
            placer: places sequences.
            frames: delivers their tokens.
            open_log: stores the open record.
            span: gateway.request.
            context: of the trace, with that span.
            deadline: when it must have ended, by the event loop's clock.
            unread_limit: bound on what waits for the client.
            max_placed: sequences that workers have at a time; others wait here.
            asked_ahead: has the router's answer for the first sequence; None: it was not asked.
            monotonic: seconds, for how long it takes: that of the identity and of the sequences.
        """
        self.identity = identity
        self.model = model
        self.span = span
        self.context = context
        self.sequences: list[OutputSequence] = []
        self.changed = asyncio.Event()
        self.on_progress: Callable[[], None] = self.changed.set  # there is something to read
        self.gate: Gate | None = None  # to pass before anything else; set before `run`
        self.judge: Callable[[], Awaitable[None]] | None = None  # of the prompt, behind the gate
        self.failure: GatewayError | None = None
        self.is_disconnected = False
        self.meanwhile: Callable[[], None] | None = None  # nobody waits for it: see `_note_asking`
        self.kept_outputs: Sequence[KeptOutput] | None = None  # an answer that needs no worker
        self.opened: UsageOpen | None = None  # was sent, so a close record must follow
        self.is_opened = False  # it is on disk: before that no token leaves this process
        self._opened_seconds = 0.0
        self._stored: asyncio.Future[None] | None = None  # the open record
        self._gateway_id = gateway_id
        self._placer = placer
        self._frames = frames
        self._open_log = open_log
        self._unread_limit, self._max_unread_tokens = unread_limit, unread_limit.num_tokens
        self._max_placed = max_placed
        self._is_at_gate = self._is_being_judged = False
        self._monotonic = monotonic
        self._limits_ms = self._route_ms = 0.0
        self._routes: list[tuple[int, dict[str, float], RouteResponse]] = []
        self._runner: asyncio.Task[None] | None = None
        self._request = RequestContext(
            request_id=identity.request_id,
            model=model,
            priority=identity.priority,
            deadline=deadline,
            trace_context=context,
            on_route=self._note_route,
            on_asking=self._note_asking,
            tenant_tag=tenant_tag(identity.tenant),
            weight=identity.weight,
            asked_ahead=asked_ahead,
        )

    def add_sequence(self, sequence: OutputSequence) -> None:
        """Take one more sequence; before `run`."""
        self.sequences.append(sequence)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to wait for."""
        if self.failure is not None or self.is_disconnected:
            return True
        return all(map(_IS_SETTLED, self.sequences))  # asked for each token: without a generator

    @property
    def stage(self) -> str:
        """What the request waits for, in a word or a few."""
        if self.gate is not None and self._is_at_gate:
            return self.gate.stage
        if self._is_being_judged:
            return "moderation"
        if any(sequence.attempt for sequence in self.sequences):
            return "failover"
        if any(sequence.token_ids for sequence in self.sequences):
            return "decode"
        if all(sequence.worker_id or sequence.leader for sequence in self.sequences):
            return "prefill"
        return "route"

    def on_sequence_change(self, num_unread: int) -> None:
        """Tell whoever reads; cut a request of which too much waits for the client.

        `num_unread`: tokens of the sequence that changed.
        """
        self.on_progress()
        limit = self._max_unread_tokens
        if num_unread <= limit // len(self.sequences):
            return
        if sum(s.num_unread for s in self.sequences) > limit:
            self.fail(self._unread_limit.error(), reason="client_disconnect")

    def begin(self) -> None:
        """Open the account, if nothing can keep the request from running; `run` must follow.

        The record is synced while the answer is prepared and the router thinks. What has a gate to
        pass, or a judge, costs nobody anything before that.
        """
        if self.gate is None and self.judge is None:
            self._open()

    async def run(self) -> None:
        """Run every sequence to its end. Never raises but for cancellation: see `failure`."""
        self._runner = asyncio.current_task()
        timer = asyncio.get_running_loop().call_at(self._request.deadline, self._expire)
        for sequence in self.sequences:
            self._frames.register(self.identity.request_id, sequence)
        try:
            if self.failure is None and not self.is_disconnected:  # before this task began
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
            self.meanwhile = None  # what has not begun would not be settled
            for sequence in self.sequences:
                self._frames.unregister(self.identity.request_id, sequence)
                sequence.close()
            self.changed.set()

    def disconnect(self) -> None:
        """The client went away: stop everything now. It gets nothing that waits for its account."""
        is_withheld = self.failure is None and not self.is_opened
        if not self.is_over or is_withheld:
            self.is_disconnected = True
            self._stop("client_disconnect")

    def fail(self, error: GatewayError, *, reason: str) -> None:
        """Stop everything now; the client gets `error`, workers hear `reason`."""
        if not self.is_over:
            self._set_failure(error)
            self._stop(reason)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once whatever n is."""
        return usage.num_prompt_tokens(self.sequences)

    def most_output_tokens(self) -> int:
        """Return how many tokens all sequences together can still come to."""
        return usage.most_output_tokens(self.sequences)

    def cached_tokens(self) -> tuple[int, CachedTokens]:
        """Return reused prompt tokens: their number, and by tier."""
        return usage.cached_tokens(self.sequences)

    def final_record(self) -> UsageClose:
        """Return the account of what the client will have got when it has all of the answer."""
        return self.close_record("finished", is_whole=True)

    def close_record(self, outcome: str, *, is_whole: bool = False) -> UsageClose:
        """Return the account of what the client got."""
        return usage.close_record(
            self.identity,
            self._request,
            self.sequences,
            outcome=outcome,
            is_prompt_due=self._is_prompt_due(outcome),
            is_whole=is_whole,
            ttft_seconds=self.ttft_seconds,
            e2e_seconds=self._monotonic() - self.identity.arrived_seconds,
            limits_ms=self._limits_ms,
            route_ms=self._route_ms,
            now=self._now(),
        )

    def _now(self) -> float:
        """Return Unix seconds by the clock of its arrival, which nobody sets meanwhile."""
        identity = self.identity
        return identity.arrived_unix_seconds + self._monotonic() - identity.arrived_seconds

    def num_counted_tokens(self, record: UsageClose) -> int:
        """Return how many tokens rate limits count; `record` is its account.

        That says what is billed: what the client got. Workers have worked for the rest too, which
        it left, or which no answer had room for.
        """
        if self.kept_outputs is not None:  # no worker has
            return record.num_prompt_tokens + record.num_output_tokens
        left = self._request.accepted if self._is_cut_by_client else ()
        num_made = usage.made_tokens(self.sequences, left=left)
        return num_made + (record.num_prompt_tokens or usage.prompts_read(self.sequences))

    @property
    def _is_cut_by_client(self) -> bool:
        """Whether it left, did not read, asked for too much, or had no more time."""
        own_faults = DeadlineError | UndeliveredError | LongAnswerError
        return self.is_disconnected or isinstance(self.failure, own_faults)

    def _is_prompt_due(self, outcome: str) -> bool:
        """Return whether the prompt is used up.

        Not by what failed here before the client had any of it. Who leaves, does not read, asks for
        more than fits in an answer, or sets a deadline that passes has had it computed, if a worker
        was asked.
        """
        if any(sequence.num_delivered for sequence in self.sequences):
            return True
        if self._is_cut_by_client:
            return bool(self._request.worker_ids)
        return outcome == "finished"

    @property
    def ttft_seconds(self) -> float | None:
        """Arrival to the first token that the client may have; None without a token."""
        times = [s.first_token_seconds for s in self.sequences if s.first_token_seconds]
        if not times:
            return None
        return max(min(times), self._opened_seconds) - self.identity.arrived_seconds

    def describe_routes(self) -> None:
        """Note on the span how its sequences were placed; to write that takes long: once, late."""
        routes, self._routes = self._routes, []
        for nanoseconds, place, answer in routes:
            del answer.candidates[MAX_EXPLAINED_CANDIDATES:]
            explanation = MessageToDict(answer, preserving_proto_field_name=True)
            text = orjson.dumps(explanation).decode()
            self.span.add_event(
                "pagoda.route", {**place, "pagoda.route.explanation": text}, nanoseconds
            )

    def release(self) -> None:
        """Let go of whoever hears of it; it is over, and accounted for.

        Else each request is a circle, which the garbage collector would have to find: thousands of
        objects at a time, while everybody waits.
        """
        self.on_progress, self.meanwhile = self.changed.set, None
        self._runner = self.gate = self.judge = self._stored = None
        self._request.on_route = self._request.on_asking = _hear_nothing
        for sequence in self.sequences:
            sequence.release()

    async def _run_all(self) -> None:
        if self.gate is not None:
            self._is_at_gate = True
            came = self._monotonic()
            with stage_span("gateway.limits", self.span, self.context):
                await self.gate.enter()
            self._is_at_gate = False
            self._limits_ms = 1000 * (self._monotonic() - came)
        if self.judge is not None:  # who is refused gives back what the gate took: see `settle`
            self._is_being_judged = True
            await self.judge()
            self._is_being_judged = False
        if self.opened is None:
            self._open()
        if len(self.sequences) == 1:  # as nearly always: without a task of its own
            await self._run_sequence(self.sequences[0])
            return
        places = asyncio.Semaphore(self._max_placed)
        async with asyncio.TaskGroup() as tasks:
            for sequence in self.sequences:
                tasks.create_task(self._run_placed(sequence, places))

    async def _run_placed(self, sequence: OutputSequence, places: asyncio.Semaphore) -> None:
        async with places:
            await self._run_sequence(sequence)

    async def _run_sequence(self, sequence: OutputSequence) -> None:
        if sequence.guard is None:
            await self._make(sequence)
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sequence.guard.run(sequence.on_judged))
            tasks.create_task(self._make(sequence))

    async def _make(self, sequence: OutputSequence) -> None:
        """Have a sequence's tokens made, or take them from an answer that was kept."""
        if self.kept_outputs is None and sequence.leader is not None:
            await sequence.attention.wait()  # if the leader fails, this is cancelled with it
        elif self.kept_outputs is None:
            await self._placer.run(self._request, sequence)
        else:
            assert self._stored is not None, "the account is opened before sequences run"
            await asyncio.shield(self._stored)  # a stream of it is one, not all of it at once
            await replay(sequence, self.kept_outputs[sequence.index])

    def _open(self) -> None:
        """Have the open record stored; workers do not wait for that, tokens do."""
        self.opened = usage.open_record(
            self.identity,
            self._request,
            self.sequences,
            gateway_id=self._gateway_id,
            now=self._now(),
        )
        self._stored = self._open_log.open(self.opened)
        for sequence in self.sequences:
            # What was kept costs nothing, and of what has no output there is nothing to note.
            if self.kept_outputs is None and sequence.sampling.max_tokens:
                sequence.delivery = self._open_log.delivery(self.opened.request_id, sequence.index)
        self._stored.add_done_callback(self._note_opened)

    def _note_opened(self, opened: asyncio.Future[None]) -> None:
        """Let tokens go, or end what must have none, though its workers may be done with it."""
        error = opened.exception()
        if error is None:
            self.is_opened, self._opened_seconds = True, self._monotonic()
            self.changed.set()
            return
        assert isinstance(error, GatewayError), "the log raises nothing else"
        self.opened = None  # it is not stored, and will not be
        self._set_failure(error)
        self._stop("deadline")

    def _note_asking(self) -> None:
        """A worker is about to be asked: what nobody waits for is done once that is sent.

        Nearly all of the time to the first token is left then.
        """
        if self.meanwhile is not None:
            asyncio.get_running_loop().call_soon(self._do_meanwhile)

    def _do_meanwhile(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def _note_route(
        self, sequence: OutputSequence, answer: RouteResponse, milliseconds: float
    ) -> None:
        self._route_ms += milliseconds
        if sequence.first_token_seconds is None:
            sequence.route = answer
        place = {
            "pagoda.sequence_index": sequence.index,
            "pagoda.attempt": sequence.attempt,
            "pagoda.route.milliseconds": milliseconds,
        }
        self._routes.append((time.time_ns(), place, answer))

    def _expire(self) -> None:
        error = DeadlineError("the request did not end before its deadline; ask for fewer tokens")
        if self.gate is not None and self._is_at_gate:
            error = self.gate.expired()
        self.fail(error, reason="deadline")

    def _set_failure(self, error: GatewayError) -> None:
        if self.failure is None:
            self.failure = error
        self.changed.set()

    def _stop(self, reason: str) -> None:
        self._request.cancel_reason = reason
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
        self.changed.set()


def _hear_nothing(*_: object) -> None:
    pass


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
