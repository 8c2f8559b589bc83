"""A gateway killed in the middle of a batch: the next one goes on, and every line counts once."""

import asyncio
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import openai
import pytest
import pytest_asyncio
import sqlalchemy as sa
from openai.types import Batch
from opentelemetry.context import Context
from support.batch_files import answers, numbered
from support.gateway_process import gateway_environment, launch_gateway, until_ready
from support.running_gateway import API_KEY
from support.scripted_worker import (
    ScriptedRouter,
    ScriptedWorker,
    running_router,
    running_worker,
)
from support.seeds import seed_of_tests
from support.servers import free_port

from pagoda.rpc.v1.usage_pb2 import UsageRecord
from pagoda_gateway.accounts.ledger import open_ledger
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.usage.applier import flattened
from pagoda_gateway.accounts.usage.stream import ensure_usage_stream
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

NUM_LINES = 120
NUM_TOKENS = 5
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)


@pytest_asyncio.fixture(loop_scope="module")
async def worker(bus: Bus) -> AsyncIterator[ScriptedWorker]:
    slow = ScriptedWorker(bus, step_seconds=0.01)
    async with running_router(ScriptedRouter(bus)), running_worker(slow) as made:
        yield made


def end_leases(home: Path) -> None:
    """As if the time of a lease had passed since the kill."""
    with sqlite3.connect(home / "ledger.sqlite", timeout=60) as ledger:
        ledger.execute("UPDATE batches SET lease_unix_seconds = 0")
    ledger.close()


async def billed_tokens(url: str, records: list[UsageRecord]) -> list[tuple[str, int]]:
    """(line, output tokens) of each row that a ledger makes of these records, in their order."""
    statement = sa.select(USAGE.c.request_id, USAGE.c.output_tokens).where(
        USAGE.c.service_tier == "batch", USAGE.c.outcome == "finished"
    )
    async with open_ledger(url) as ledger:
        await ledger.apply(records)
        rows = await ledger.database.rows(statement)
    return [(row["request_id"].rsplit("-", 1)[0], row["output_tokens"]) for row in rows]


async def create(client: openai.AsyncOpenAI) -> str:
    data = numbered(NUM_LINES, max_tokens=NUM_TOKENS, ignore_eos=True)
    file = await client.files.create(file=("in.jsonl", data), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    return batch.id


async def answered(client: openai.AsyncOpenAI, batch_id: str, num_lines: int) -> Batch:
    """Return the batch once it has so many answers, or has ended."""
    async with asyncio.timeout(60):
        while True:
            batch = await client.batches.retrieve(batch_id)
            assert batch.request_counts is not None
            if batch.status == "completed" or batch.request_counts.completed >= num_lines:
                return batch
            await asyncio.sleep(0.005)  # another process: there is no event to wait on


async def end(process: asyncio.subprocess.Process, how: signal.Signals) -> None:
    process.send_signal(how)
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    if how is signal.SIGTERM:
        assert process.returncode == 0, output.decode()
        assert b"Traceback" not in output


async def test_no_line_is_lost_or_delivered_or_billed_twice(
    nats_common: CommonSettings,
    model_folder: Path,
    worker: ScriptedWorker,
    bus: Bus,
    tmp_path: Path,
) -> None:
    records: list[UsageRecord] = []  # what killed gateways took of the log comes back after 30 s

    async def note(record: UsageRecord, _context: Context) -> None:
        records.append(record)

    await ensure_usage_stream(bus, 1 << 24)  # as an applier does
    listening = await bus.subscribe(subjects.USAGE_ALL, UsageRecord, note)
    moments = sorted(random.Random(seed_of_tests()).sample(range(5, NUM_LINES - 30), len(ENDS)))
    port = free_port()
    environ = gateway_environment(nats_common, model_folder, port)
    url = f"http://127.0.0.1:{port}"
    batch_id, counts = "", [0]
    async with (
        httpx.AsyncClient(base_url=url) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=API_KEY, timeout=60) as client,
    ):
        for how, moment in zip([*ENDS, None], [*moments, NUM_LINES + 1], strict=True):
            process = await launch_gateway(environ)
            try:
                await until_ready(http)
                batch_id = batch_id or await create(client)
                batch = await answered(client, batch_id, moment)
                assert batch.request_counts is not None
                counts.append(batch.request_counts.completed)
                if how is None:
                    output = await client.files.content(batch.output_file_id or "")
                await end(process, how or signal.SIGTERM)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.communicate()
            if how is signal.SIGKILL:
                await asyncio.to_thread(end_leases, nats_common.home)
    assert counts == sorted(counts)
    assert counts[-1] == NUM_LINES
    found = answers(output.content)
    assert [line["custom_id"] for line in found] == [f"line-{i}" for i in range(NUM_LINES)]
    await listening.unsubscribe()
    records = list(flattened(records))
    for name, ordered in (("first", records), ("last", records[::-1])):  # no order is assured
        billed = await billed_tokens(f"sqlite:///{tmp_path}/{name}.sqlite3", ordered)
        assert Counter(line for line, _ in billed) == dict.fromkeys(
            (line["id"] for line in found), 1
        )
        assert {tokens for _, tokens in billed} == {NUM_TOKENS}
