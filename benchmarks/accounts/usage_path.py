"""What a usage record costs on its way: into the outbox, and from JetStream into the ledger.

    PYTHONPATH=tests python benchmarks/accounts/usage_path.py [--output FILE]

Outbox: N streams store an open and a close record again and again, on a real disk: with a second
between records on average, as requests do (milliseconds of one record, its sync included), and
without a pause (records a second). Gateway: CPU of its process for both records of a request, the
writing thread and the way to a real NATS included, 64 requests at a time. Ledger: the applier's
own work on records as they come, on SQLite and on a PostgreSQL that syncs; records a second.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from support.postgres import postgres_server
from support.servers import nats_server, settings_for

from pagoda.rpc.v1.generate_pb2 import CachedTokens, StageTimes
from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage, UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.database import open_database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.usage.applier import flattened
from pagoda_gateway.accounts.usage.forwarder import Forwarder
from pagoda_gateway.accounts.usage.outbox import Outbox
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages
from pagoda_gateway.accounts.usage.stream import ensure_usage_stream
from pagoda_gateway.accounts.usage.usage_log import UsageLog
from pagoda_runtime.identity import new_request_id
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.tasks.background_tasks import BackgroundTasks

REQUESTS_PER_STREAM = {1: 400, 64: 60, 512: 16}
PACED_REQUESTS = 3  # of a stream, at least
PACED_RECORDS = 200  # of all streams, at least
MEAN_PAUSE_SECONDS = 1.0
NUM_REQUESTS = 6000
NUM_GATEWAY_REQUESTS = 3000
REQUESTS_PER_MESSAGE = 64


def open_record(request_id: str) -> UsageOpen:
    """As large as those of real requests."""
    return UsageOpen(
        request_id=request_id,
        object_id=f"chatcmpl-{request_id}",
        tenant="acme-prod",
        api_key_id="key-0123456789abcdef",
        model="qwen3-8b",
        endpoint="chat.completions",
        num_prompt_tokens=812,
        max_output_tokens=1024,
        opened_unix_seconds=time.time(),
        gateway_id="gateway-0a1b2c3d",
        service_tier="default",
        num_choices=1,
    )


def close_record(request_id: str) -> UsageClose:
    """As large as those of real requests."""
    return UsageClose(
        request_id=request_id,
        num_prompt_tokens=812,
        cached=CachedTokens(device=512, cpu=128),
        num_output_tokens=377,
        finish_reasons=["stop"],
        stages=StageTimes(prefill_queue_ms=1.5, prefill_compute_ms=40.25, decode_generate_ms=900.5),
        ttft_ms=57.5,
        e2e_ms=1033.0,
        num_attempts=1,
        closed_unix_seconds=time.time(),
        outcome="finished",
        worker_ids=["decode-0a1b2c3d"],
    )


def sequence_record(request_id: str, number: int) -> SequenceUsage:
    """One of a decode worker."""
    return SequenceUsage(
        record_id=f"01M81QSSWBDBCJGDZMV3N1HYYE-{number}",
        request_id=request_id,
        worker_id="decode-0a1b2c3d",
        role=Role.ROLE_DECODE,
        first_index=1,
        num_published_tokens=376,
        compute_ns=123_456_789,
        ended_unix_seconds=time.time(),
        finish_reason="stop",
    )


async def measure_outbox(folder: Path, num_streams: int) -> dict[str, float]:
    """Return p50 and p99 of one record at a pace, in ms, and records a second without one."""
    pause = MEAN_PAUSE_SECONDS if num_streams > 1 else 0.02
    num_paced = max(PACED_REQUESTS, PACED_RECORDS // (2 * num_streams))
    paced, _, _ = await store(folder, num_streams, num_paced, pause)
    flat, elapsed, cpu = await store(folder, num_streams, REQUESTS_PER_STREAM[num_streams], 0.0)
    return {
        "p50_ms": round(1e3 * statistics.median(paced), 3),
        "p99_ms": round(1e3 * paced[int(0.99 * len(paced))], 3),
        "records_per_second": round(len(flat) / elapsed),
        "cpu_us_per_record": round(1e6 * cpu / len(flat), 1),
    }


async def store(
    folder: Path, num_streams: int, num_requests: int, pause: float
) -> tuple[list[float], float, float]:
    """Return seconds of each record, sorted, of all of them, and of CPU."""
    outbox = await Outbox.open(
        folder, f"{num_streams}-{pause}", max_bytes=1 << 30, on_state=lambda *_: None
    )
    log, seconds, rng = UsageLog(outbox, timeout_seconds=60), list[float](), random.Random(1)

    async def stream() -> None:
        for _ in range(num_requests):
            request_id = new_request_id()
            for write, record in (
                (log.open, open_record(request_id)), (log.close, close_record(request_id)),
            ):  # fmt: skip
                if pause:
                    await asyncio.sleep(rng.uniform(0, 2 * pause))
                started = time.perf_counter()
                await write(record)
                seconds.append(time.perf_counter() - started)

    started, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(num_streams):
            tasks.create_task(stream())
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    await outbox.close()
    return sorted(seconds), elapsed, cpu


async def measure_gateway(folder: Path) -> dict[str, float]:
    """Return microseconds of CPU of both records of a request, until NATS has them."""
    with nats_server(folder) as nats:
        async with Bus.connect(settings_for(nats, home=folder), name="bench") as bus:
            await ensure_usage_stream(bus, 1 << 30)
            outbox = await Outbox.open(
                folder, "gateway", max_bytes=1 << 30, on_state=lambda *_: None
            )
            forwarder = Forwarder(bus, outbox, folder, timeout_seconds=20)
            log, tasks = UsageLog(outbox, timeout_seconds=60), BackgroundTasks()
            tasks.start(forwarder.run())
            ids = iter([new_request_id() for _ in range(NUM_GATEWAY_REQUESTS)])

            async def place() -> None:
                for request_id in ids:
                    await log.open(open_record(request_id))
                    await log.close(close_record(request_id))

            cpu = time.process_time()
            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(place())
            await outbox.is_drained.wait()
            cpu = time.process_time() - cpu
            await tasks.close()
            await outbox.close()
    return {"cpu_us_per_request": round(1e6 * cpu / NUM_GATEWAY_REQUESTS, 1)}


async def measure_ledger(url: str) -> dict[str, float]:
    """Return records a second: three a request, of gateways and of a worker."""
    ids = [new_request_id() for _ in range(NUM_REQUESTS)]
    random.Random(1).shuffle(ids)
    messages = []
    for start in range(0, NUM_REQUESTS, REQUESTS_PER_MESSAGE):
        records = []
        for number, request_id in enumerate(ids[start : start + REQUESTS_PER_MESSAGE], start):
            records += [
                UsageRecord(open=open_record(request_id)),
                UsageRecord(close=close_record(request_id)),
                UsageRecord(sequence=sequence_record(request_id, number)),
            ]
        messages.append(UsageRecord(batch=records))
    async with open_database(url) as database:
        ledger, sequences = Ledger(database), SequenceUsages(database)
        started = time.perf_counter()
        for start in range(0, len(messages), 8):
            records = list(flattened(messages[start : start + 8]))
            await ledger.apply([r for r in records if not r.HasField("sequence")])
            await sequences.apply([r.sequence for r in records if r.HasField("sequence")])
        elapsed = time.perf_counter() - started
        assert (await ledger.totals("acme-prod"))[1] == 377 * NUM_REQUESTS
    return {
        "records_per_second": round(3 * NUM_REQUESTS / elapsed),
        "requests_per_second": round(NUM_REQUESTS / elapsed),
    }


async def measure(folder: Path, postgres_url: str) -> dict[str, object]:
    """Return all rows."""
    return {
        "python": platform.python_version(),
        "outbox": {str(n): await measure_outbox(folder, n) for n in REQUESTS_PER_STREAM},
        "gateway": await measure_gateway(folder),
        "ledger": {
            "sqlite": await measure_ledger(f"sqlite:///{folder}/ledger.sqlite"),
            "postgresql": await measure_ledger(postgres_url),
        },
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        postgres_server(is_durable=True) as postgres,
    ):
        result = asyncio.run(measure(Path(folder), postgres.new_database()))
    text = json.dumps(result, indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
