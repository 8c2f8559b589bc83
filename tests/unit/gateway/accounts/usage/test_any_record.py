"""Whatever a record says: it is written, and nothing that comes with it or after it suffers."""

import json
import math

import pytest
import sqlalchemy as sa
from support.clocks import Now

from pagoda.rpc.v1.generate_pb2 import CachedTokens, StageTimes
from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import PrefixMiss, SequenceUsage, UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.receipts import Receipts
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.accounts.usage.reconcile import Reconciler
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages

NAN, INF = math.nan, math.inf
UINT32, UINT64, LEAST = 2**32 - 1, 2**64 - 1, -(2**63)
CACHED = CachedTokens(device=UINT32, cpu=UINT32, nvme=UINT32)


def opened(**values: object) -> UsageOpen:
    fields = {
        "request_id": "r",
        "tenant": "t",
        "model": "m",
        "num_prompt_tokens": 5,
        "opened_unix_seconds": 5.0,
    }
    return UsageOpen(**fields | values)  # type: ignore[arg-type]


def closed(**values: object) -> UsageClose:
    fields = {
        "request_id": "r",
        "num_output_tokens": 5,
        "outcome": "finished",
        "closed_unix_seconds": 6.0,
    }
    return UsageClose(**fields | values)  # type: ignore[arg-type]


def ended(**values: object) -> SequenceUsage:
    fields = {"request_id": "r", "record_id": "e-1", "worker_id": "w", "role": Role.ROLE_DECODE}
    return SequenceUsage(**fields | values)  # type: ignore[arg-type]


REQUESTS = [
    (opened(opened_unix_seconds=moment), closed(closed_unix_seconds=moment))
    for moment in (NAN, INF, -INF, -1.0, 1e308, -1e308)
] + [
    (opened(num_prompt_tokens=UINT32, max_output_tokens=UINT32, num_choices=UINT32), closed()),
    (opened(tenant="", request_id=""), closed(request_id="")),
    (opened(request_id="a\0b", model="\0", tenant="\0", api_key_id="\0"), closed(request_id="ab")),
    (opened(request_id="z" * 10_000), closed(request_id="z" * 10_000)),
    (
        opened(price_id="?" * 99, gateway_id="g" * 999, service_tier="s" * 99, object_id="o" * 999),
        closed(outcome="?" * 99),
    ),
    (opened(tenant="t" * 999, api_key_id="k" * 99, endpoint="e" * 99, model="m" * 999), closed()),
    (
        opened(),
        closed(
            num_prompt_tokens=UINT32,
            num_output_tokens=UINT32,
            cached=CACHED,
            num_attempts=UINT32,
            num_proposed_tokens=UINT32,
            num_accepted_tokens=UINT32,
        ),
    ),
    (
        opened(),
        closed(
            ttft_ms=NAN,
            e2e_ms=INF,
            gateway_route_ms=NAN,
            stages=StageTimes(prefill_queue_ms=-INF, decode_generate_ms=NAN),
        ),
    ),
    (
        opened(),
        closed(
            finish_reasons=["x\0" * 100] * 100,
            safety_findings=["\0"],
            worker_ids=["\0"],
            prefix=PrefixMiss(
                kind="\0" + "k" * 99,
                place="p" * 999,
                text="\0",
                lost_micros=LEAST,
                num_lost_tokens=UINT32,
            ),
        ),
    ),
]


@pytest.mark.parametrize(("open_record", "close_record"), REQUESTS)
async def test_records_of_a_request(
    ledger: Ledger, open_record: UsageOpen, close_record: UsageClose
) -> None:
    await ledger.apply([UsageRecord(open=open_record), UsageRecord(close=close_record)])
    await ledger.apply(
        [UsageRecord(open=opened(request_id="n")), UsageRecord(close=closed(request_id="n"))]
    )

    receipts = Receipts(ledger, wait_seconds=0.0)
    name = close_record.request_id[:64]
    tenant = open_record.tenant.replace("\0", "")[:128]
    assert (await receipts.get("t", "n"))["status"] == "closed"
    json.dumps(await receipts.get(tenant, name), allow_nan=False)


RECORDS = [
    ended(compute_ns=UINT64, num_published_tokens=UINT32, first_index=UINT32, attempt=UINT32),
    ended(cached=CACHED, num_computed_prompt_tokens=UINT32, sequence_index=UINT32),
    *(ended(ended_unix_seconds=moment) for moment in (NAN, INF, -INF, 1e308, -1e308)),
    ended(role=0),
    ended(role=99),
    ended(record_id=""),
    ended(record_id="q" * 10_000, worker_id="w" * 999, finish_reason="f" * 99),
    ended(record_id="\0", worker_id="\0", finish_reason="\0"),
]


@pytest.mark.parametrize("record", RECORDS)
async def test_records_of_sequences(
    database: Database, ledger: Ledger, now: Now, record: SequenceUsage
) -> None:
    sequences = SequenceUsages(database)
    await ledger.apply(
        [UsageRecord(open=opened(gateway_id="dead", max_output_tokens=7)),
         UsageRecord(open=opened(request_id="n", gateway_id="dead"))]
    )  # fmt: skip
    await sequences.apply([record, ended(request_id="n", num_published_tokens=3)])
    await sequences.compute_seconds("r")
    reconciler = Reconciler(ledger, sequences, lambda _: False, clock=now, unix_clock=lambda: 99.0)
    await reconciler.run(30)
    now.seconds += 31
    assert (await reconciler.run(30)).num_reconciled == 2

    (row,) = await database.rows(sa.select(USAGE).where(USAGE.c.request_id == "r"))
    assert row["output_tokens"] <= 7
    cached = row["cached_device_tokens"] + row["cached_cpu_tokens"] + row["cached_nvme_tokens"]
    assert cached <= row["opened_prompt_tokens"]
