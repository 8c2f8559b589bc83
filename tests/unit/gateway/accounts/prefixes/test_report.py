"""Misses summed from the ledger, on both databases; receipts that name them."""

from pagoda.rpc.v1.usage_pb2 import PrefixMiss, UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.receipts import Receipts
from pagoda_gateway.accounts.prefixes.kinds import ADVICE
from pagoda_gateway.accounts.prefixes.report import PrefixReport

NOW = 100_000.0


async def store(
    ledger: Ledger, request_id: str, miss: PrefixMiss | None, tenant: str = "t", ago: float = 60
) -> None:
    opened = UsageOpen(request_id=request_id, tenant=tenant, model="m", opened_unix_seconds=1)
    closed = UsageClose(
        request_id=request_id, outcome="finished", closed_unix_seconds=NOW - ago, prefix=miss
    )
    await ledger.apply([UsageRecord(open=opened), UsageRecord(close=closed)])


def stamp(lost: int, text: str = "13:07", **fields: object) -> PrefixMiss:
    return PrefixMiss(
        kind="timestamp", num_lost_tokens=lost, place="messages[0]", role="system", text=text,
        earlier_text="13:06", first_token=4, **fields,
    )  # fmt: skip


async def test_reasons_are_summed_the_costliest_first(ledger: Ledger) -> None:
    await store(ledger, "r1", stamp(100, lost_micros=15))
    await store(ledger, "r2", stamp(200, text="13:08", lost_micros=30))
    await store(ledger, "r3", PrefixMiss(kind="evicted", num_lost_tokens=700, place="tools"))
    await store(ledger, "r4", PrefixMiss(kind="never_seen"))
    await store(ledger, "r5", None)
    await store(ledger, "r6", stamp(999), ago=7201)
    await store(ledger, "r7", stamp(5000), tenant="other")
    report = PrefixReport(ledger.database, clock=lambda: NOW)
    evicted, stamps = await report.misses(tenant="t", hours=2)
    assert (evicted["class"], evicted["requests"], evicted["lost_micros"]) == ("evicted", 1, None)
    assert stamps == {
        "object": "prefix_miss",
        "tenant": "t",
        "model": "m",
        "class": "timestamp",
        "place": "messages[0]",
        "role": "system",
        "requests": 2,
        "lost_tokens": 300,
        "lost_tokens_per_hour": 150.0,
        "lost_micros": 45,
        "example": {
            "request_id": "r2", "first_token": 4, "text": "13:08", "earlier_text": "13:06",
        },
        "advice": ADVICE["timestamp"],
    }  # fmt: skip
    everybody = await report.misses(hours=3, limit=2)
    assert [(m["tenant"], m["lost_tokens"]) for m in everybody] == [("other", 5000), ("t", 1299)]
    assert await report.misses(tenant="no\0body") == []


async def test_a_record_that_comes_again_counts_once(ledger: Ledger) -> None:
    for _ in range(3):
        await store(ledger, "r1", stamp(100))
    (found,) = await PrefixReport(ledger.database, clock=lambda: NOW).misses()
    assert (found["requests"], found["lost_tokens"]) == (1, 100)


async def test_receipts_name_the_miss(ledger: Ledger) -> None:
    await store(ledger, "r1", stamp(100))
    await store(ledger, "r2", None)
    receipts = Receipts(ledger, wait_seconds=0)
    prefix = (await receipts.get("t", "r1"))["prefix"]
    assert (prefix["class"], prefix["lost_tokens"], prefix["text"]) == ("timestamp", 100, "13:07")
    assert (await receipts.get("t", "r2"))["prefix"] is None
