"""A decode worker and a router that compute nothing: the NATS contract, tokens from a function.

For gateway tests and for benchmarks of everything but the engine. Deterministic: the token at an
output index depends on (prompt, seed, index) alone, so another attempt goes on exactly where the
first one stopped.
"""

import asyncio
import contextlib
import hashlib
import math
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda.rpc.v1 import route_pb2
from pagoda.rpc.v1.status_pb2 import ModelCard, Role, WorkerState, WorkerStatus
from pagoda_runtime.identity import new_epoch, new_worker_id
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus, Subscription
from pagoda_runtime.status import Heartbeat, WorkerDirectory, slow_status

EMBEDDING_SIZE = 4
TokenAt = Callable[[pb.GenerateRequest, int], int]


def tiny_card(name: str = "tiny", **values: int) -> ModelCard:
    """A model card that fits `tiny_tokenizer`."""
    fields = {"block_size": 16, "block_bytes": 1024, "max_model_len": 512, "vocab_size": 267}
    fields["embedding_size"] = EMBEDDING_SIZE
    identity = hashlib.blake2b(name.encode(), digest_size=16).digest()
    fields |= values
    dtype = "float32"
    return ModelCard(name=name, kv_identity=identity, dtype=dtype, kv_cache_dtype=dtype, **fields)


def letters(request: pb.GenerateRequest, index: int) -> int:
    """a to z of `tiny_tokenizer`, drawn from prompt, seed (unless greedy) and index."""
    seed = request.sampling.seed if request.sampling.temperature > 0 else 0
    state = repr((list(request.prompt_token_ids), seed, index)).encode()
    # Byte-level alphabets sort printable ASCII first: id 5 is "!", 5 + 64 is "a".
    return 5 + 64 + hashlib.blake2b(state, digest_size=2).digest()[0] % 26


def spell(token_ids: list[int]) -> TokenAt:
    """The same text for everybody, then its last token again and again."""
    return lambda _request, index: token_ids[min(index, len(token_ids) - 1)]


@dataclass(slots=True)
class _Running:
    request: pb.GenerateRequest
    index: int
    is_new: bool = True


@dataclass
class ScriptedWorker:
    """A decode worker. One step makes one token of every running sequence that no gate holds.

    Attributes:
        bus: its connection.
        card: what it serves.
        token_at: what it says.
        eos_id: ends a sequence unless ignore_eos.
        step_seconds: pause between steps; 0 = as fast as the event loop goes.
        admit_status: answers of the waiting queue; anything but ACCEPTED refuses.
        gate_index: sequences wait before this output index until `open_gate`; None = no gate.
        finish_error: ends every sequence at `gate_index`.
        finish_reason: with this reason.
        cached: prompt tokens reported as reused (device).
        speculated: proposed and accepted tokens that it reports for each output token.
        logprob_of: the log probability of a token that it says.
        requests, cancels, probes: everything that came.
    """

    bus: Bus
    card: ModelCard = field(default_factory=tiny_card)
    token_at: TokenAt = letters
    eos_id: int = 1
    step_seconds: float = 0.0
    admit_status: pb.AdmitStatus = pb.ADMIT_STATUS_ACCEPTED
    gate_index: int | None = None
    finish_error: str = ""
    finish_reason: "pb.FinishReason.ValueType" = pb.FINISH_REASON_ERROR
    cached: int = 0
    speculated: tuple[int, int] = (0, 0)
    logprob_of: Callable[[int], float] = lambda _token_id: -0.5
    worker_id: str = field(default_factory=lambda: new_worker_id("decode"))
    epoch: str = field(default_factory=new_epoch)
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    cancels: list[pb.CancelRequest] = field(default_factory=list)
    probes: list[pb.ProbeRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._running: dict[tuple[str, int], _Running] = {}
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._work = asyncio.Event()
        self._changed = asyncio.Condition()

    @property
    def num_running(self) -> int:
        """Sequences not ended."""
        return len(self._running)

    async def start(self) -> None:
        """Listen, then announce itself."""
        self._subscriptions = [
            await self.bus.serve(subjects.decode(self.worker_id), pb.GenerateRequest, self._admit),
            await self.bus.subscribe(
                subjects.cancel(self.worker_id), pb.CancelRequest, self._cancel
            ),
            await self.bus.serve(subjects.probe(self.worker_id), pb.ProbeRequest, self._probe),
        ]
        heartbeat = Heartbeat(self.bus, self.status)
        await heartbeat.publish_now()
        self._tasks = [
            asyncio.create_task(heartbeat.run()),
            asyncio.create_task(self._step_forever()),
        ]

    async def stop(self) -> None:
        """Say goodbye and end."""
        await self._end()

    async def kill(self) -> None:
        """End at once, as a killed process looks from outside once its silence is noticed."""
        self._running.clear()
        await self._end()

    def status(self) -> WorkerStatus:
        """What a heartbeat says."""
        return WorkerStatus(
            worker_id=self.worker_id,
            epoch=self.epoch,
            role=Role.ROLE_DECODE,
            state=WorkerState.WORKER_STATE_READY,
            model=self.card,
        )

    def open_gate(self) -> None:
        """Let everybody go on."""
        self.gate_index = None
        self._work.set()

    def fail(self, error: str) -> None:
        """End what waits at the gate with this error."""
        self.finish_error = error
        self._work.set()

    async def wait_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Return when `condition()` holds; looked at after each step, admission and cancel."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(condition)

    async def publish(self, gateway_id: str, *frames: pb.Frame) -> None:
        """Send frames as one step's message."""
        message = pb.FramesMessage(worker_id=self.worker_id, epoch=self.epoch, frames=frames)
        await self.bus.publish(subjects.frames(gateway_id), message, context=Context())

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions, self._tasks = [], []

    async def _admit(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        self.requests.append(request)
        self.contexts.append(context)
        if self.admit_status == pb.ADMIT_STATUS_ACCEPTED:
            key = (request.request_id, request.sequence_index)
            self._running[key] = _Running(request, len(request.output_token_ids))
            self._work.set()
        await self._notify()
        return pb.GenerateResponse(
            status=self.admit_status, epoch=self.epoch, message="scripted to say so"
        )

    async def _cancel(self, request: pb.CancelRequest, _context: Context) -> None:
        self.cancels.append(request)
        for key, running in list(self._running.items()):
            is_meant = not request.HasField("attempt") or running.request.attempt <= request.attempt
            is_index = not request.sequence_indices or key[1] in request.sequence_indices
            if key[0] == request.request_id and is_index and is_meant:
                del self._running[key]
        await self._notify()

    async def _probe(self, request: pb.ProbeRequest, _context: Context) -> pb.ProbeResponse:
        self.probes.append(request)
        response = pb.ProbeResponse()
        for asked in request.sequences:
            running = self._running.get((asked.request_id, asked.sequence_index))
            is_known = running is not None and running.request.attempt == asked.attempt
            response.progress.add(
                is_known=is_known, next_index=running.index if running is not None else 0
            )
        await self._notify()
        return response

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _step_forever(self) -> None:
        while True:
            await self._work.wait()
            by_gateway: dict[str, list[pb.Frame]] = defaultdict(list)
            for running in self._running.values():
                if running.is_new and running.request.sampling.HasField("num_prompt_logprobs"):
                    by_gateway[running.request.gateway_id] += self._prompt_frames(running)
                running.is_new = False
            for key, running in list(self._running.items()):
                if self.gate_index is not None and running.index >= self.gate_index:
                    if not self.finish_error:
                        continue
                    frame = self._frame(running)
                    frame.finish_reason = self.finish_reason
                    frame.error = self.finish_error
                else:
                    frame = self._next_frame(running)
                by_gateway[running.request.gateway_id].append(frame)
                if frame.finish_reason:
                    del self._running[key]
            for gateway_id, frames in by_gateway.items():
                await self.publish(gateway_id, *frames)
            if not by_gateway:
                self._work.clear()
            await self._notify()
            await asyncio.sleep(self.step_seconds)

    def _frame(self, running: _Running) -> pb.Frame:
        request = running.request
        return pb.Frame(
            request_id=request.request_id,
            sequence_index=request.sequence_index,
            attempt=request.attempt,
            first_index=running.index,
        )

    def _prompt_frames(self, running: _Running) -> list[pb.Frame]:
        """Log probabilities of all prompt tokens but the first, two in a frame."""
        prompt, num = running.request.prompt_token_ids, running.request.sampling.num_prompt_logprobs
        frames = []
        for start in range(1, len(prompt), 2):
            frame = self._frame(running)
            frame.first_prompt_index = start
            for token_id in prompt[start : start + 2]:
                position = _logprobs(token_id, num)
                position.rank = 1
                frame.prompt_logprobs.append(position)
            frames.append(frame)
        return frames

    def _next_frame(self, running: _Running) -> pb.Frame:
        request, sampling = running.request, running.request.sampling
        frame = self._frame(running)
        if sampling.embed:
            frame.finish_reason = pb.FINISH_REASON_STOP
            frame.embedding = embedding_of(request.prompt_token_ids)
            frame.cached.device = self.cached
            return frame
        if sampling.HasField("beam_search"):
            frame.finish_reason = pb.FINISH_REASON_LENGTH
            frame.cached.device = self.cached
            frame.hypotheses.extend(
                self._hypothesis(request, i) for i in range(sampling.beam_search.width)
            )
            return frame
        if not sampling.max_tokens:
            frame.finish_reason = pb.FINISH_REASON_LENGTH
            return frame
        token_id = self.token_at(request, running.index)
        forced = [i for i, bias in sampling.logit_bias.items() if bias >= 100]
        token_id = forced[0] if forced else token_id
        frame.token_ids.append(token_id)
        if sampling.HasField("num_logprobs"):
            logprobs = _logprobs(token_id, sampling.num_logprobs)
            logprobs.chosen.logprob = self.logprob_of(token_id)
            frame.logprobs.append(logprobs)
        is_first = running.index == len(request.output_token_ids)
        if is_first:
            frame.cached.device = self.cached
            frame.stages.prefill_compute_ms = 2.0
        running.index += 1
        num_published = running.index - len(request.output_token_ids)
        frame.num_proposed_tokens = num_published * self.speculated[0]
        frame.num_accepted_tokens = num_published * self.speculated[1]
        stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else {self.eos_id})
        if token_id in stops and running.index > sampling.min_tokens:
            frame.finish_reason = pb.FINISH_REASON_STOP
            frame.matched_stop_token_id = token_id
        elif running.index >= sampling.max_tokens:
            frame.finish_reason = pb.FINISH_REASON_LENGTH
        if frame.finish_reason:
            frame.stages.decode_generate_ms = 3.0
        return frame

    def _hypothesis(self, request: pb.GenerateRequest, rank: int) -> pb.Hypothesis:
        """What it says from output index `rank` on, one token less than that of the rank before."""
        sampling = request.sampling
        token_ids = [self.token_at(request, rank + i) for i in range(sampling.max_tokens - rank)]
        hypothesis = pb.Hypothesis(
            token_ids=token_ids, finish_reason=pb.FINISH_REASON_LENGTH, score=-rank
        )
        if sampling.HasField("num_logprobs"):
            hypothesis.logprobs.extend(_logprobs(i, sampling.num_logprobs) for i in token_ids)
        return hypothesis


def embedding_of(token_ids: Sequence[int]) -> bytes:
    """What a prompt's embedding is: of length 1, and of each prompt another."""
    values = [len(token_ids), *(token_ids[i % len(token_ids)] for i in range(EMBEDDING_SIZE - 1))]
    return struct.pack(f"<{EMBEDDING_SIZE}f", *(value / math.hypot(*values) for value in values))


def _logprobs(token_id: int, num_top: int) -> pb.PositionLogprobs:
    tops = [
        pb.TokenLogprob(token_id=(token_id + i) % 267, logprob=-0.5 - i) for i in range(num_top)
    ]
    chosen = pb.TokenLogprob(token_id=token_id, logprob=-0.5)
    return pb.PositionLogprobs(chosen=chosen, top=tops)


@dataclass
class ScriptedRouter:
    """A router that takes the first decode worker of the model that is alive and not excluded.

    Attributes:
        bus: its connection.
        answer: replaces the choice where set.
        is_silent: it hears requests and answers none.
        requests: everything that came.
    """

    bus: Bus
    answer: route_pb2.RouteResponse | None = None
    is_silent: bool = False
    requests: list[route_pb2.RouteRequest] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.router_id = new_worker_id("router")
        self.directory = WorkerDirectory()
        self._subscriptions: list[Subscription] = []

    async def start(self) -> None:
        """Follow heartbeats and answer."""
        self._subscriptions = [
            await self.directory.subscribe(self.bus, Role.ROLE_DECODE),
            await self.bus.serve(
                subjects.ROUTE_ALL,
                route_pb2.RouteRequest,
                self._route,
                queue=subjects.ROUTER_QUEUE,
            ),
        ]
        own_status = slow_status(Role.ROLE_ROUTER, self.router_id, new_epoch())
        self.heartbeat = Heartbeat(self.bus, lambda: own_status)
        self._beating = asyncio.create_task(self.heartbeat.run())

    async def stop(self) -> None:
        """Answer nobody any more."""
        self._beating.cancel()
        await asyncio.wait([self._beating])
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions = []

    async def _route(
        self, request: route_pb2.RouteRequest, _context: Context
    ) -> route_pb2.RouteResponse:
        self.requests.append(request)
        if self.is_silent:
            await asyncio.Event().wait()
        if self.answer is not None:
            return self.answer
        for status in self.directory.alive(Role.ROLE_DECODE):
            is_excluded = status.worker_id in request.excluded_worker_ids
            if status.model.name == request.model and not is_excluded:
                chosen = route_pb2.Candidate(decode_worker_id=status.worker_id, is_chosen=True)
                return route_pb2.RouteResponse(
                    status=route_pb2.ROUTE_STATUS_PLACED,
                    decode_worker_id=status.worker_id,
                    decode_epoch=status.epoch,
                    candidates=[chosen],
                )
        return route_pb2.RouteResponse(
            status=route_pb2.ROUTE_STATUS_NO_WORKER,
            message="no decode worker is alive",
            retry_after_seconds=1.5,
        )


@contextlib.asynccontextmanager
async def running_worker(worker: ScriptedWorker) -> AsyncIterator[ScriptedWorker]:
    """Start a worker, stop it at the end."""
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


@contextlib.asynccontextmanager
async def running_router(router: ScriptedRouter) -> AsyncIterator[ScriptedRouter]:
    """Start a router, stop it at the end."""
    await router.start()
    try:
        yield router
    finally:
        await router.stop()
