"""The benchmark's null worker keeps the worker's contract on a real bus."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.context import Context
from support.fixtures import *  # noqa: F403

from pagoda.rpc.v1 import generate_pb2, route_pb2
from pagoda.rpc.v1.status_pb2 import Role, WorkerStatus
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "serving" / "null_worker.py"
SECONDS = 60.0


@pytest.fixture
def worker(nats_common: CommonSettings) -> Iterator["subprocess.Popen[str]"]:
    environ = {
        "PYTHONPATH": ":".join(path for path in sys.path if path),
        "PAGODA_NATS_URL": nats_common.nats_url,
        "PAGODA_NATS_TOKEN": nats_common.nats_token.get_secret_value(),
    }
    command = [sys.executable, str(SCRIPT), "--model", "bench", "--step-ms", "5"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate(timeout=SECONDS)


async def test_counts_up_one_message_per_step_and_stops_when_cancelled(
    worker: "subprocess.Popen[str]", nats_common: CommonSettings
) -> None:
    frames: asyncio.Queue[generate_pb2.FramesMessage] = asyncio.Queue()
    is_alive = asyncio.Event()

    async def on_status(status: WorkerStatus, _context: Context) -> None:
        assert (status.role, status.model.name) == (Role.ROLE_DECODE, "bench")
        is_alive.set()

    async def on_frames(message: generate_pb2.FramesMessage, _context: Context) -> None:
        frames.put_nowait(message)

    async with asyncio.timeout(SECONDS), Bus.connect(nats_common, name="test") as bus:
        await bus.subscribe(subjects.STATUS_ALL, WorkerStatus, on_status)
        await bus.subscribe(subjects.frames("gw"), generate_pb2.FramesMessage, on_frames)
        await is_alive.wait()
        placed = await bus.request(
            subjects.route("bench"),
            route_pb2.RouteRequest(request_id="r"),
            route_pb2.RouteResponse,
            timeout_seconds=SECONDS,
        )
        assert placed.status == route_pb2.ROUTE_STATUS_PLACED
        for request_id, max_tokens in (("short", 3), ("endless", 1 << 20)):
            request = generate_pb2.GenerateRequest(
                request_id=request_id,
                gateway_id="gw",
                sampling=generate_pb2.SamplingParams(max_tokens=max_tokens),
            )
            answer = await bus.request(
                subjects.decode(placed.decode_worker_id),
                request,
                generate_pb2.GenerateResponse,
                timeout_seconds=SECONDS,
            )
            assert answer.status == generate_pb2.ADMIT_STATUS_ACCEPTED
        short: list[generate_pb2.Frame] = []
        while not short or not short[-1].finish_reason:
            message = await frames.get()
            short += [frame for frame in message.frames if frame.request_id == "short"]
        assert [frame.first_index for frame in short] == [0, 1, 2]
        assert short[-1].finish_reason == generate_pb2.FINISH_REASON_LENGTH
        cancel = generate_pb2.CancelRequest(request_id="endless")
        await bus.publish(subjects.cancel(placed.decode_worker_id), cancel)
    worker.terminate()
    counts = json.loads(worker.communicate(timeout=SECONDS)[0])
    assert counts["num_sequences"] == 2
    assert counts["num_messages"] == counts["num_steps"]
