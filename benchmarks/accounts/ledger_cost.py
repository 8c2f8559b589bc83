"""What the ledger costs: records applied a second, and looking things up among many rows.

    python benchmarks/accounts/ledger_cost.py                     # 10 million rows in SQLite
    python benchmarks/accounts/ledger_cost.py --rows 1000000 --url postgresql://postgres@host/empty

Rows are made up in the database itself, sealed, of 100 tenants over 30 days; one in ten was named
by its client. Look-ups are of random rows, as routes make them, one at a time: of any day, which
reads the disk, and of the last 0.3 days. Records are applied in batches of 256, before the rows are
there and after. Prints one JSON object; the file is deleted.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from pagoda.rpc.v1.generate_pb2 import CachedTokens
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.ledger import Ledger, open_ledger
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.spending import Spending, Spent
from pagoda_gateway.accounts.money.chains import Chains
from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.accounts.money.receipts import find_row
from pagoda_gateway.accounts.money.statements import Statements

NUM_TENANTS = 100
DAYS = 30
FIRST_SECONDS = 20_000 * 86_400
CHUNK_ROWS = 20_000  # of one statement, which has 15 s
BATCH = 256
NUM_APPLIED = 10_000
NUM_LOOK_UPS = 500

# Both databases understand it. Numbers are padded to the length of real ids and hashes.
_NUMBERS = """
WITH RECURSIVE numbers(i) AS (
    SELECT CAST(:first AS BIGINT) UNION ALL SELECT i + 1 FROM numbers WHERE i < :last
)
"""
_FILL_USAGE = f"""{_NUMBERS}
INSERT INTO usage (
    request_id, object_id, tenant, api_key_id, model, endpoint, max_output_tokens,
    opened_prompt_tokens, opened_unix_seconds, gateway_id, service_tier, prompt_tokens,
    cached_device_tokens, cached_cpu_tokens, cached_nvme_tokens, output_tokens, finish_reasons,
    stages_ms, ttft_ms, e2e_ms, attempts, closed_unix_seconds, outcome, worker_ids,
    price_id, cost_micros, price_lines, receipt_number, previous_hash, receipt_hash
)
SELECT
    '01K0000000000' || substr(CAST(10000000000000 + i AS TEXT), 2),
    'chatcmpl-01K0000000000' || substr(CAST(10000000000000 + i AS TEXT), 2),
    'tenant-' || (i % {NUM_TENANTS}), 'key-' || (i % {NUM_TENANTS}), 'model', 'chat.completions',
    256, 800, {FIRST_SECONDS} + i * :step, 'gateway-abcdefgh', 'default', 800, 512, 0, 0, 128,
    '["stop"]', :stages, 123.4, 2345.6, 1, {FIRST_SECONDS} + i * :step + 2, 'finished',
    '["decode-abcdefgh"]', 'price-0123456789abcdef', 1234, :lines, i / {NUM_TENANTS} + 1,
    substr(CAST(10000000000000 + i AS TEXT) || :hash, 1, 64),
    substr(CAST(10000000000000 + i + {NUM_TENANTS} AS TEXT) || :hash, 1, 64)
FROM numbers
"""
_FILL_NAMES = f"""{_NUMBERS}
INSERT INTO request_names (request_id, tenant, client_request_id)
SELECT '01K0000000000' || substr(CAST(10000000000000 + i AS TEXT), 2),
    'tenant-' || (i % {NUM_TENANTS}), 'order-' || i
FROM numbers WHERE i % 10 = 0
"""
_FILL_CHAIN = """
INSERT INTO receipt_chains (tenant, last_number, last_hash, cut_number, cut_hash)
VALUES (:tenant, :last, :hash, 0, :hash)
"""
_FILL_DAYS = """
INSERT INTO usage_days (
    tenant, day, api_key_id, model, requests, prompt_tokens, cached_tokens, output_tokens,
    cost_micros
) VALUES (:tenant, :day, 'key', 'model', 1, 1, 1, 1, 1234)
"""
_STAGE_NAMES = (
    "tokenize", "route", "prefill_queue", "kv_fetch", "prefill_compute", "kv_transfer",
    "decode_queue", "decode_generate",
)  # fmt: skip
_LINES = [
    {"item": item, "tokens": 512, "micros_per_million": 500_000, "micros": 256}
    for item in ("input", "cached_device", "output")
]


def request_id(number: int) -> str:
    return f"01K{number:023d}"


async def fill(ledger: Ledger, num_rows: int) -> None:
    values = {
        "step": DAYS * 86_400 / num_rows,
        "stages": json.dumps(dict.fromkeys(_STAGE_NAMES, 12.345)),
        "lines": json.dumps(_LINES),
        "hash": "0123456789abcdef" * 4,
    }
    is_sqlite = not ledger.database.is_postgresql
    if is_sqlite:
        await execute(ledger, "PRAGMA synchronous = OFF", {})
    for first in range(0, num_rows, CHUNK_ROWS):
        within = {"first": first, "last": min(first + CHUNK_ROWS, num_rows) - 1}
        await execute(ledger, _FILL_USAGE, values | within)
        await execute(ledger, _FILL_NAMES, within)
    for number in range(NUM_TENANTS):
        tenant = {"tenant": f"tenant-{number}"}
        last = {"last": num_rows // NUM_TENANTS, "hash": "0" * 64}
        await execute(ledger, _FILL_CHAIN, tenant | last)
        days = range(FIRST_SECONDS // 86_400, FIRST_SECONDS // 86_400 + DAYS)
        await execute(ledger, _FILL_DAYS, [tenant | {"day": day} for day in days])
    if is_sqlite:
        await execute(ledger, "PRAGMA synchronous = FULL", {})
        await execute(ledger, "PRAGMA wal_checkpoint(TRUNCATE)", {})


async def execute(ledger: Ledger, statement: str, values: Any) -> None:
    await ledger.database.call(lambda connection: connection.execute(sa.text(statement), values))


async def apply(ledger: Ledger, prefix: str) -> dict[str, float]:
    """Apply opened and closed requests of 100 tenants, as they come: first opened, then closed."""
    opened, closed = [], []
    for number in range(NUM_APPLIED):
        name, at = f"{prefix}r{number:024d}", FIRST_SECONDS + 0.1 * number
        opened.append(
            UsageRecord(
                open=UsageOpen(
                    request_id=name, tenant=f"{prefix}tenant-{number % NUM_TENANTS}",
                    object_id=f"chatcmpl-{name}", api_key_id="key", model="model",
                    endpoint="chat.completions", num_prompt_tokens=800, max_output_tokens=256,
                    opened_unix_seconds=at, gateway_id="gateway-abcdefgh",
                )
            )
        )  # fmt: skip
        closed.append(
            UsageRecord(
                close=UsageClose(
                    request_id=name, num_prompt_tokens=800, num_output_tokens=128,
                    cached=CachedTokens(device=512), finish_reasons=["stop"], outcome="finished",
                    closed_unix_seconds=at + 2, num_attempts=1, worker_ids=["decode-abcdefgh"],
                    ttft_ms=123.4, e2e_ms=2345.6,
                )
            )
        )  # fmt: skip
    half = BATCH // 2
    batches = [opened[:half]]
    for start in range(0, NUM_APPLIED, half):
        batches.append(opened[start + half : start + BATCH] + closed[start : start + half])
    started, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        await ledger.apply(batch)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    return {
        "records_per_second": round(2 * NUM_APPLIED / seconds),
        "cpu_us_a_record": round(1e6 * cpu / (2 * NUM_APPLIED), 1),
    }


async def timed(ask: Callable[[], Awaitable[Any]], count: int = NUM_LOOK_UPS) -> dict[str, float]:
    times, cpu = [], time.process_time()
    for _ in range(count):
        started = time.perf_counter()
        await ask()
        times.append(1000 * (time.perf_counter() - started))
    times.sort()
    return {
        "cpu_ms": round(1000 * (time.process_time() - cpu) / count, 3),
        "p50_ms": round(statistics.median(times), 3),
        "p99_ms": round(times[int(0.99 * (len(times) - 1))], 3),
        "max_ms": round(times[-1], 3),
    }


async def look_up(ledger: Ledger, num_rows: int) -> dict[str, Any]:
    draws, database = random.Random(1), ledger.database
    statements = Statements(database)
    since = FIRST_SECONDS + (DAYS - 1) * 86_400

    async def receipt(name: str, among: range, *, is_there: bool = True) -> None:
        number = 10 * (draws.choice(among) // 10)
        tenant, wanted = f"tenant-{number % NUM_TENANTS}", name.format(request_id(number), number)
        row = await database.call(lambda connection: find_row(connection, tenant, wanted))
        assert (row is not None) == is_there

    spending = Spending(database, PriceBook([]))

    def spent() -> Awaitable[Spent]:
        tenant = f"tenant-{draws.randrange(NUM_TENANTS)}"
        scope, key = LimitScope("tenant", tenant), ApiKey("", tenant)
        return spending.of(scope, key, at=since + 43_200, without=())

    def exported() -> Awaitable[Any]:
        return statements.receipts(
            "tenant-7", since_unix_seconds=since, until_unix_seconds=1e12, limit=1000
        )

    found: dict[str, Any] = {}
    for age, among in (
        ("of the last 0.3 days", range(num_rows - num_rows // 100, num_rows)),
        ("of any day", range(num_rows)),
    ):
        for whose, name in (
            ("our id", "{0}"), ("OpenAI's id", "chatcmpl-{0}"), ("the client's id", "order-{1}"),
        ):  # fmt: skip
            found[f"receipt {age} by {whose}"] = await timed(partial(receipt, name, among))
    nowhere = partial(receipt, "none-{1}", range(num_rows), is_there=False)
    return found | {
        "receipt that is not there": await timed(nowhere),
        "spent this month by a tenant": await timed(spent),
        "balances of all tenants": await timed(statements.balances, 20),
        "1000 receipts of an export": await timed(exported, 20),
        "first receipt of a check": await timed(
            lambda: Chains(database).check("tenant-7", limit=1), 20
        ),
    }


async def measure(url: str, num_rows: int) -> dict[str, Any]:
    async with open_ledger(url) as ledger:
        empty = await apply(ledger, "early-")
        started = time.perf_counter()
        await fill(ledger, num_rows)
        filled = time.perf_counter() - started
        return {
            "database": "postgresql" if ledger.database.is_postgresql else "sqlite",
            "rows": num_rows,
            "cpus": os.cpu_count(),
            "machine": platform.processor() or platform.machine(),
            "load": [round(value, 1) for value in os.getloadavg()],
            "fill_seconds": round(filled),
            "look_ups": await look_up(ledger, num_rows),
            "applied_to_an_empty_ledger": empty,
            "applied_to_the_full_ledger": await apply(ledger, ""),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--url", default="", help="An empty database; default: a SQLite file.")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pagoda-ledger-"))
    try:
        url = arguments.url or f"sqlite:///{folder}/ledger.sqlite"
        found = asyncio.run(measure(url, arguments.rows))
        found["bytes"] = sum(path.stat().st_size for path in folder.iterdir())
        print(json.dumps(found, indent=2))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
