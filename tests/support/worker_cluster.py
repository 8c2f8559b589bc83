"""Prefill and decode workers in the test's event loop, and a client that plays the gateway.

Nothing is mocked: real NATS, real gRPC, real engines. The test may also play the prefill worker.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.context import Context
from prometheus_client import CollectorRegistry

from pagoda.rpc.v1 import generate_pb2, status_pb2
from pagoda_decode.config import DecodeSettings
from pagoda_decode.server import serve as serve_decode
from pagoda_engine import EngineConfig, LoadedModel, SamplingParams
from pagoda_prefill.config import PrefillSettings
from pagoda_prefill.server import serve as serve_prefill
from pagoda_runtime.block_hash import cache_root, hash_prompt
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.identity import new_request_id
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.service import ServiceContext
from pagoda_worker.settings import WorkerSettings
from pagoda_worker.telemetry.metrics import WorkerMetrics
from support.engine_driver import EngineDriver
from support.sampling_message import sampling_message

SECONDS = 60.0
BLOCK_SIZE = 16
STREAM_BYTES = 1 << 20
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
SMALL: dict[str, Any] = {
    "device": "cpu",
    "num_threads": 1,
    "num_blocks": 128,
    "block_size": BLOCK_SIZE,
    "max_num_batched_tokens": 32,
    "drain_seconds": 0.2,
}


@dataclass
class Answer:
    """What the gateway has of one sequence: each output index once."""

    request: generate_pb2.GenerateRequest
    frames: list[generate_pb2.Frame] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)
    prompt_logprobs: dict[int, generate_pb2.PositionLogprobs] = field(default_factory=dict)
    last: generate_pb2.Frame | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def token_ids(self) -> list[int]:
        first = len(self.request.output_token_ids)
        assert sorted(self.tokens) == list(range(first, first + len(self.tokens)))
        return [self.tokens[i] for i in sorted(self.tokens)]

    async def wait_for(self, predicate: Callable[["Answer"], bool]) -> "Answer":
        async with asyncio.timeout(SECONDS), self.changed:
            await self.changed.wait_for(lambda: predicate(self))
        return self

    async def finished(self) -> "Answer":
        return await self.wait_for(lambda answer: answer.last is not None)

    async def first_token(self) -> "Answer":
        return await self.wait_for(lambda answer: bool(answer.tokens))


@dataclass
class RunningWorker:
    """One service in this event loop."""

    worker_id: str
    settings: WorkerSettings
    registry: CollectorRegistry
    stop: asyncio.Event
    task: "asyncio.Task[None]"

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


class Cluster:
    """Workers, heartbeats and answers."""

    def __init__(self, common: CommonSettings, model: LoadedModel, bus: Bus) -> None:
        self.common = common
        self.model = model
        self.bus = bus
        self.gateway_id = f"gateway-{new_request_id()[-8:]}"
        self.answers: dict[tuple[str, int], Answer] = {}
        self.statuses: dict[str, status_pb2.WorkerStatus] = {}
        self._status_changed = asyncio.Condition()
        self._stack = contextlib.AsyncExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, common: CommonSettings, model: LoadedModel) -> AsyncIterator["Cluster"]:
        async with Bus.connect(common, name="test-gateway") as bus:
            cluster = cls(common, model, bus)
            await bus.subscribe(
                subjects.frames(cluster.gateway_id), generate_pb2.FramesMessage, cluster._on_frames
            )
            await bus.subscribe(subjects.STATUS_ALL, status_pb2.WorkerStatus, cluster._on_status)
            # As an applier and a router do: without the first each worker waits for it at its end.
            for stream, pattern in (
                (subjects.USAGE_STREAM, subjects.USAGE_ALL),
                (subjects.KV_EVENTS_STREAM, subjects.KV_EVENTS_ALL),
            ):
                await bus.ensure_stream(
                    stream,
                    [pattern],
                    max_bytes=STREAM_BYTES,
                    discard_old=True,
                )
            async with cluster._stack:
                yield cluster

    async def start_decode(self, worker_id: str, **fields: Any) -> RunningWorker:
        settings = DecodeSettings(**(SMALL | {"worker_id": worker_id} | fields))
        return await self._start("decode", settings, serve_decode)

    async def start_prefill(
        self, worker_id: str, *, producer_class: Any = None, **fields: Any
    ) -> RunningWorker:
        settings = PrefillSettings(**(SMALL | {"worker_id": worker_id} | fields))
        options = {} if producer_class is None else {"producer_class": producer_class}
        return await self._start("prefill", settings, serve_prefill, **options)

    async def _start(self, name: str, settings: Any, serve: Any, **options: Any) -> RunningWorker:
        registry, stop = CollectorRegistry(), asyncio.Event()

        async def run() -> None:
            async with asyncio.TaskGroup() as tasks:
                context = ServiceContext(
                    name, settings.worker_id, self.common, Health(), stop, tasks
                )
                await serve(context, settings, metrics=WorkerMetrics(registry), **options)

        task = asyncio.create_task(run())
        worker = RunningWorker(settings.worker_id, settings, registry, stop, task)
        self._stack.push_async_callback(self.stop, worker)
        ready = asyncio.create_task(self.status(settings.worker_id, lambda status: True))
        await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            ready.cancel()
            task.result()
        return worker

    async def stop(self, worker: RunningWorker) -> None:
        worker.stop.set()
        async with asyncio.timeout(SECONDS):
            with contextlib.suppress(BaseExceptionGroup):
                await worker.task

    def request(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = GREEDY,
        prefill_worker_id: str = "",
        num_fetch_blocks: int = 0,
        deadline_seconds: float = SECONDS,
        output_token_ids: Sequence[int] = (),
        attempt: int = 0,
        request_id: str = "",
    ) -> generate_pb2.GenerateRequest:
        root = cache_root(kv_identity=bytes(16), cache_salt=self.gateway_id.encode())
        return generate_pb2.GenerateRequest(
            request_id=request_id or new_request_id(),
            attempt=attempt,
            gateway_id=self.gateway_id,
            prompt_token_ids=prompt,
            output_token_ids=output_token_ids,
            cache_root=root,
            block_hashes=b"".join(hash_prompt(root, prompt, BLOCK_SIZE)),
            sampling=sampling_message(sampling),
            plan=generate_pb2.KvPlan(
                prefill_worker_id=prefill_worker_id, num_fetch_blocks=num_fetch_blocks
            ),
            remaining_seconds=deadline_seconds,
        )

    async def ask(
        self,
        decode_worker_id: str,
        request: generate_pb2.GenerateRequest,
        *,
        context: Context | None = None,
    ) -> generate_pb2.GenerateResponse:
        return await self.bus.request(
            subjects.decode(decode_worker_id),
            request,
            generate_pb2.GenerateResponse,
            timeout_seconds=SECONDS,
            context=context,
        )

    async def generate(
        self,
        decode_worker_id: str,
        prompt: Sequence[int],
        *,
        context: Context | None = None,
        **fields: Any,
    ) -> Answer:
        """Start one sequence; the answer fills as frames come."""
        request = self.request(prompt, **fields)
        answer = Answer(request)
        self.answers[request.request_id, request.attempt] = answer
        response = await self.ask(decode_worker_id, request, context=context)
        assert response.status == generate_pb2.ADMIT_STATUS_ACCEPTED, response
        return answer

    async def cancel(self, worker_id: str, answer: Answer) -> None:
        await self.bus.publish(
            subjects.cancel(worker_id),
            generate_pb2.CancelRequest(
                request_id=answer.request.request_id, reason="client_disconnect"
            ),
        )

    async def status(
        self,
        worker_id: str,
        predicate: Callable[[status_pb2.WorkerStatus], bool],
        *,
        is_new: bool = False,
    ) -> status_pb2.WorkerStatus:
        """Wait for a heartbeat that fulfils `predicate`."""
        before = self.statuses.pop(worker_id, None) if is_new else None

        def is_met() -> bool:
            status = self.statuses.get(worker_id)
            return status is not None and status is not before and predicate(status)

        async with asyncio.timeout(SECONDS), self._status_changed:
            await self._status_changed.wait_for(is_met)
        return self.statuses[worker_id]

    async def idle(self, worker: RunningWorker) -> None:
        """Wait until the worker holds nothing: every block free, nothing waiting or running."""

        def is_idle(status: status_pb2.WorkerStatus) -> bool:
            load = status.load
            return (
                load.num_free_blocks == load.num_blocks == worker.settings.num_blocks
                and not load.num_waiting
                and not load.num_running
            )

        await self.status(worker.worker_id, is_idle, is_new=True)

    async def tokens(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What "decode-1" answers to prompts that come together, which "prefill-1" computes."""
        answers = await asyncio.gather(
            *(self.generate("decode-1", p, prefill_worker_id="prefill-1") for p in prompts)
        )
        return [(await answer.finished()).token_ids for answer in answers]

    def alone(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams = GREEDY
    ) -> list[list[int]]:
        """What a single engine generates for these prompts."""
        config = EngineConfig(block_size=BLOCK_SIZE, num_blocks=256, max_num_batched_tokens=512)
        return EngineDriver(self.model, config).generate(prompts, sampling=sampling)

    async def _on_frames(self, message: generate_pb2.FramesMessage, context: Context) -> None:
        for frame in message.frames:
            answer = self.answers.get((frame.request_id, frame.attempt))
            if answer is None:
                continue
            async with answer.changed:
                answer.frames.append(frame)
                for offset, token_id in enumerate(frame.token_ids):
                    known = answer.tokens.setdefault(frame.first_index + offset, token_id)
                    assert known == token_id, "an index came twice with different tokens"
                for i, logprobs in enumerate(frame.prompt_logprobs, frame.first_prompt_index):
                    assert not answer.tokens, "logprobs of the prompt after its first token"
                    answer.prompt_logprobs[i] = logprobs
                if frame.finish_reason:
                    answer.last = frame
                answer.changed.notify_all()

    async def _on_status(self, status: status_pb2.WorkerStatus, context: Context) -> None:
        async with self._status_changed:
            self.statuses[status.worker_id] = status
            self._status_changed.notify_all()
