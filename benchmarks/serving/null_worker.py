"""A decode worker that computes nothing: the gateway and the bus alone, under any load.

Speaks the worker's NATS contract, and the router's with one placement for all. A step gives each
sequence its next token, in one message per gateway. Prints what it did, as JSON, when it stops.

    python benchmarks/serving/null_worker.py --model NAME --step-ms 10
"""

import argparse
import asyncio
import json
import math
import signal
import struct
import time
from collections import defaultdict
from dataclasses import asdict, dataclass

import uvloop
from opentelemetry.context import Context

from pagoda.rpc.v1 import generate_pb2, route_pb2, status_pb2
from pagoda_gateway.accounts.usage.stream import ensure_usage_stream
from pagoda_runtime.configuration.settings import CommonSettings, load_settings
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.status import Heartbeat, slow_status

USAGE_BYTES = 4 << 30
WORKER_ID = "decode-null"
EPOCH = "null-epoch"
KV_IDENTITY = bytes(16)
NOTHING_CACHED = generate_pb2.CachedTokens()
EMBEDDING_SIZE = 1024
EMBEDDING = struct.pack(f"<{EMBEDDING_SIZE}f", *(math.sin(i) for i in range(EMBEDDING_SIZE)))
FIRST_TOKEN_ID = 300  # past single bytes and special tokens: each of these is text


@dataclass(slots=True)
class Running:
    """One sequence: how far it is and where its tokens go."""

    request: generate_pb2.GenerateRequest
    next_index: int


@dataclass(slots=True)
class Counts:
    """What happened."""

    num_steps: int = 0  # with at least one sequence
    num_messages: int = 0
    num_tokens: int = 0
    num_sequences: int = 0
    max_batch: int = 0
    step_seconds: float = 0.0


class NullWorker:
    """Accepts every sequence and counts up."""

    def __init__(
        self,
        bus: Bus,
        *,
        model: str,
        step_seconds: float,
        vocab_size: int,
        max_model_len: int,
        first_at_once: bool,
    ) -> None:
        self._first_at_once = first_at_once
        self.counts = Counts()
        self._bus = bus
        self._model = model
        self._step_seconds = step_seconds
        self._num_text_tokens = vocab_size - FIRST_TOKEN_ID
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._running: dict[tuple[str, int], Running] = {}

    def status(self) -> status_pb2.WorkerStatus:
        """Return the heartbeat."""
        card = status_pb2.ModelCard(
            name=self._model,
            kv_identity=KV_IDENTITY,
            block_size=16,
            block_bytes=1,
            max_model_len=self._max_model_len,
            vocab_size=self._vocab_size,
            dtype="none",
            embedding_size=EMBEDDING_SIZE,
        )
        load = status_pb2.Load(
            num_running=len(self._running),
            num_blocks=1 << 20,
            num_free_blocks=1 << 20,
            max_num_seqs=1 << 16,
            max_num_waiting=1 << 16,
        )
        return status_pb2.WorkerStatus(
            worker_id=WORKER_ID,
            epoch=EPOCH,
            role=status_pb2.ROLE_DECODE,
            state=status_pb2.WORKER_STATE_READY,
            model=card,
            load=load,
            host_id="null",
        )

    async def on_route(
        self, _request: route_pb2.RouteRequest, _context: Context
    ) -> route_pb2.RouteResponse:
        """Place everything here."""
        return route_pb2.RouteResponse(
            status=route_pb2.ROUTE_STATUS_PLACED,
            decode_worker_id=WORKER_ID,
            decode_epoch=EPOCH,
            router_id="router-null",
        )

    async def on_generate(
        self, request: generate_pb2.GenerateRequest, _context: Context
    ) -> generate_pb2.GenerateResponse:
        """Take the sequence into the next step."""
        key = (request.request_id, request.sequence_index)
        self._running[key] = Running(request, len(request.output_token_ids))
        self.counts.num_sequences += 1
        if self._first_at_once:
            await self._give([key])
        return generate_pb2.GenerateResponse(status=generate_pb2.ADMIT_STATUS_ACCEPTED, epoch=EPOCH)

    async def on_cancel(self, request: generate_pb2.CancelRequest, _context: Context) -> None:
        """Drop a request's sequences."""
        for key in [key for key in self._running if key[0] == request.request_id]:
            del self._running[key]

    async def step_forever(self) -> None:
        """Step at a steady pace; late steps are not made up for."""
        due = time.perf_counter()
        while True:
            due = max(due + self._step_seconds, time.perf_counter())
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            if self._running:
                started = time.perf_counter()
                await self._step()
                self.counts.step_seconds += time.perf_counter() - started

    async def _step(self) -> None:
        keys = list(self._running)
        self.counts.num_steps += 1
        self.counts.max_batch = max(self.counts.max_batch, len(keys))
        await self._give(keys)

    async def _give(self, keys: list[tuple[str, int]]) -> None:
        """Publish one token of each of these sequences."""
        frames: dict[str, list[generate_pb2.Frame]] = defaultdict(list)
        for key in keys:
            running = self._running[key]
            request = running.request
            if request.sampling.embed:
                frames[request.gateway_id].append(_embedding(request))
                del self._running[key]
                continue
            is_last = running.next_index + 1 >= request.sampling.max_tokens
            frames[request.gateway_id].append(
                generate_pb2.Frame(
                    request_id=request.request_id,
                    sequence_index=request.sequence_index,
                    attempt=request.attempt,
                    first_index=running.next_index,
                    token_ids=[FIRST_TOKEN_ID + running.next_index % self._num_text_tokens],
                    cached=None if running.next_index else NOTHING_CACHED,
                    finish_reason=(
                        generate_pb2.FINISH_REASON_LENGTH
                        if is_last
                        else generate_pb2.FINISH_REASON_UNSPECIFIED
                    ),
                )
            )
            running.next_index += 1
            if is_last:
                del self._running[key]
        for gateway_id, group in frames.items():
            message = generate_pb2.FramesMessage(worker_id=WORKER_ID, epoch=EPOCH, frames=group)
            await self._bus.publish(subjects.frames(gateway_id), message, context=Context())
            self.counts.num_messages += 1
            self.counts.num_tokens += len(group)


def _embedding(request: generate_pb2.GenerateRequest) -> generate_pb2.Frame:
    return generate_pb2.Frame(
        request_id=request.request_id,
        sequence_index=request.sequence_index,
        attempt=request.attempt,
        embedding=EMBEDDING,
        finish_reason=generate_pb2.FINISH_REASON_STOP,
    )


async def serve(
    *, model: str, step_ms: float, vocab_size: int, max_model_len: int, first_at_once: bool
) -> Counts:
    """Work until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with Bus.connect(load_settings(CommonSettings), name="null-worker") as bus:
        worker = NullWorker(
            bus,
            model=model,
            step_seconds=step_ms / 1e3,
            vocab_size=vocab_size,
            max_model_len=max_model_len,
            first_at_once=first_at_once,
        )
        # As an applier would: without it records of usage wait at the gateway, and cost nothing.
        await ensure_usage_stream(bus, USAGE_BYTES)
        await bus.serve(
            subjects.route(model),
            route_pb2.RouteRequest,
            worker.on_route,
            queue=subjects.ROUTER_QUEUE,
        )
        await bus.serve(
            subjects.decode(WORKER_ID), generate_pb2.GenerateRequest, worker.on_generate
        )
        await bus.subscribe(
            subjects.cancel(WORKER_ID), generate_pb2.CancelRequest, worker.on_cancel
        )
        router_status = slow_status(status_pb2.ROLE_ROUTER, "router-null", EPOCH)
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(worker.step_forever()),
                tasks.create_task(Heartbeat(bus, worker.status).run()),
                tasks.create_task(Heartbeat(bus, lambda: router_status).run()),
            ]
            await stop.wait()
            for task in background:
                task.cancel()
        return worker.counts


def main() -> None:
    """Run with the settings of the environment (PAGODA_NATS_URL, PAGODA_NATS_TOKEN)."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="name the gateway serves")
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--max-model-len", type=int, default=1 << 20)
    parser.add_argument(
        "--first-at-once", action="store_true", help="a sequence's first token waits for no step"
    )
    arguments = parser.parse_args()
    counts = uvloop.run(serve(**vars(arguments)))
    print(json.dumps(asdict(counts)), flush=True)


if __name__ == "__main__":
    main()
