"""Sums by day are those of the receipts; receipts are listed page by page, each once."""

import random

import pytest
import sqlalchemy as sa
from support.prices import Rows, SetPrice
from support.usage_records import closed, opened

from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money.sealing import DAY_SECONDS
from pagoda_gateway.accounts.money.statements import Statements
from pagoda_gateway.accounts.tables import USAGE
from pagoda_gateway.errors import NotFoundError

TENANTS = ("a", "b", "c")


async def use(ledger: Ledger, seed: int) -> None:
    draws = random.Random(seed)
    for number in range(60):
        at = draws.uniform(0, 4 * DAY_SECONDS) + 10
        name = f"r{number:02}"
        await ledger.apply(
            [
                opened(
                    name,
                    draws.choice(TENANTS),
                    opened_unix_seconds=at,
                    api_key_id=draws.choice(["key-1", "key-2"]),
                    model=draws.choice(["m", "free"]),
                ),
                closed(name, draws.randint(0, 50), draws.choice(["finished", "failed"])),
            ]
        )


@pytest.mark.parametrize("seed", [1, 2])
async def test_sums_are_those_of_the_receipts(
    ledger: Ledger, set_price: SetPrice, rows: Rows, seed: int
) -> None:
    await set_price()
    await use(ledger, seed)
    statements, found = Statements(ledger.database), (await rows()).values()
    for since, until in ((None, None), (1, None), (1, 3), (None, 2), (3, 3)):
        first, last = (since or 0) * DAY_SECONDS, (until or 99) * DAY_SECONDS
        within = [row for row in found if first <= row["opened_unix_seconds"] < last]
        balances = await statements.balances(since_day=since, until_day=until)
        assert {b["tenant"]: (b["requests"], b["output_tokens"], b["cost_micros"])
                for b in balances} == {
            tenant: (
                len(theirs),
                sum(row["output_tokens"] for row in theirs),
                sum(row["cost_micros"] for row in theirs),
            )
            for tenant in TENANTS
            if (theirs := [row for row in within if row["tenant"] == tenant])
        }  # fmt: skip
        assert all(type(b["cost_micros"]) is int for b in balances)


async def test_balances_come_in_pages(ledger: Ledger, set_price: SetPrice) -> None:
    await set_price()
    await use(ledger, 3)
    statements = Statements(ledger.database)
    pages = [await statements.balances(after=after, limit=1) for after in ("", "a", "b", "c")]
    assert [[b["tenant"] for b in page] for page in pages] == [["a"], ["b"], ["c"], []]
    (one,) = await statements.balances(tenant="b")
    assert one["tenant"] == "b"


@pytest.mark.parametrize("name", ["request_id", "object_id"])
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_receipts_are_listed_in_the_order_in_which_they_were_opened(
    ledger: Ledger, rows: Rows, limit: int, name: str
) -> None:
    await use(ledger, 5)
    await ledger.apply([opened("open", "a", opened_unix_seconds=DAY_SECONDS)])
    statements, since, until = Statements(ledger.database), 0.5 * DAY_SECONDS, 3.5 * DAY_SECONDS
    names: list[str] = []
    while page := await statements.receipts(
        "a",
        since_unix_seconds=since,
        until_unix_seconds=until,
        after=names[-1] if names else "",
        limit=limit,
    ):
        assert len(page) <= limit
        names += [row[name] for row in page]
    expected = [
        row
        for row in (await rows()).values()
        if row["tenant"] == "a"
        and row["receipt_number"]
        and since <= row["opened_unix_seconds"] < until
    ]
    expected.sort(key=lambda row: row["opened_unix_seconds"])
    assert names == [row[name] for row in expected]
    assert names


async def test_a_list_does_not_go_on_from_a_receipt_that_was_cut_off(ledger: Ledger) -> None:
    """One that was opened before it and ended later is still there, and would come twice."""
    await ledger.apply([opened("long", opened_unix_seconds=1.0), opened("short")])
    await ledger.apply([closed("short"), closed("long")])
    is_short = USAGE.c.request_id == "short"
    await ledger.database.call(lambda c: c.execute(sa.delete(USAGE).where(is_short)))
    with pytest.raises(NotFoundError, match="no receipt of 'short' to go on"):
        await Statements(ledger.database).receipts(
            "t", since_unix_seconds=0, until_unix_seconds=1e9, after="short"
        )


async def test_requests_of_the_same_moment_are_listed_once_each(ledger: Ledger) -> None:
    names = [f"r{number}" for number in range(9)]
    for name in names:
        await ledger.apply([opened(name), closed(name)])
    found: list[str] = []
    while page := await Statements(ledger.database).receipts(
        "t",
        since_unix_seconds=0,
        until_unix_seconds=1e9,
        after=found[-1] if found else "",
        limit=2,
    ):
        found += [row["request_id"] for row in page]
    assert found == names
