"""What is old is forgotten, in bites; chains and sums survive it."""

import pytest
import sqlalchemy as sa
from support.clocks import Now
from support.prices import Rows, SetPrice
from support.usage_records import both, closed, opened
from ulid_transform import ulid_at_time

from pagoda.rpc.v1.status_pb2 import Role
from pagoda.rpc.v1.usage_pb2 import SequenceUsage
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.money import chains, retention
from pagoda_gateway.accounts.money.chains import Chains
from pagoda_gateway.accounts.money.retention import Retention
from pagoda_gateway.accounts.money.sealing import DAY_SECONDS
from pagoda_gateway.accounts.money.statements import Statements
from pagoda_gateway.accounts.tables import REQUEST_NAMES
from pagoda_gateway.accounts.usage.sequence_usages import SequenceUsages


@pytest.fixture
def keeper(database: Database, now: Now, monkeypatch: pytest.MonkeyPatch) -> Retention:
    monkeypatch.setattr(retention, "BITE", 3)
    return Retention(database, usage_days=10, name_days=30, clock=now)


async def apply_at(ledger: Ledger, name: str, tenant: str, day: float) -> None:
    at = day * DAY_SECONDS
    await ledger.apply(
        [opened(name, tenant, opened_unix_seconds=at), closed(name, closed_unix_seconds=at + 1)]
    )


async def test_receipts_go_from_the_beginning_of_each_chain(
    ledger: Ledger, keeper: Retention, set_price: SetPrice, rows: Rows, now: Now
) -> None:
    await set_price()
    for day in range(1, 21):
        for tenant in ("a", "b"):
            await apply_at(ledger, f"{tenant}{day:02}", tenant, day)
    statements = Statements(ledger.database)
    before = await statements.balances()
    now.seconds = 20.0 * DAY_SECONDS
    assert await keeper.forget_old() == 18
    assert sorted(await rows()) == [f"{t}{day}" for t in "ab" for day in range(10, 21)]
    assert await keeper.forget_old() == 0
    assert await statements.balances() == before
    found = Chains(ledger.database)
    for tenant in ("a", "b"):
        check = await found.check(tenant, limit=100)
        assert (check.break_, check.num_checked, check.last_number) == (None, 11, 20)


async def test_what_is_forgotten_while_a_chain_is_checked_is_not_missing(
    ledger: Ledger, keeper: Retention, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on PostgreSQL, where a chain and its receipts are read one after the other."""
    for day in range(1, 21):
        await apply_at(ledger, f"r{day:02}", "t", day)
    stale = await ledger.database.call(lambda c: chains._chain(c, "t"))
    now.seconds = 20.0 * DAY_SECONDS
    await keeper.forget_old()
    read, reads = chains._chain, iter([stale])
    monkeypatch.setattr(chains, "_chain", lambda c, tenant: next(reads, None) or read(c, tenant))
    check = await Chains(ledger.database).check("t", limit=100)
    assert (check.break_, check.num_checked, check.last_number) == (None, 11, 20)


async def test_what_is_cut_off_by_hand_is_found_beyond_the_anchor(
    ledger: Ledger, keeper: Retention, now: Now
) -> None:
    for day in range(1, 21):
        await apply_at(ledger, f"r{day:02}", "t", day)
    now.seconds = 20.0 * DAY_SECONDS
    await keeper.forget_old()
    await ledger.database.call(
        lambda c: c.execute(sa.text("DELETE FROM usage WHERE receipt_number = 10"))
    )
    check = await Chains(ledger.database).check("t", limit=100)
    assert (check.break_, check.num_checked) == ("receipt 10 is missing; the next one is 11", 0)


async def test_a_chain_that_is_forgotten_whole_goes_on_with_its_numbers(
    ledger: Ledger, keeper: Retention, rows: Rows, now: Now
) -> None:
    for day in range(1, 5):
        await apply_at(ledger, f"r{day}", "t", day)
    now.seconds = 100.0 * DAY_SECONDS
    await keeper.forget_old()
    assert await rows() == {}
    await apply_at(ledger, "new", "t", 99)
    assert (await rows())["new"]["receipt_number"] == 5
    check = await Chains(ledger.database).check("t", limit=100)
    assert (check.break_, check.num_checked) == (None, 1)


async def test_a_check_goes_on_where_receipts_were_forgotten_between_its_parts(
    ledger: Ledger, keeper: Retention, now: Now
) -> None:
    for day in range(1, 21):
        await apply_at(ledger, f"r{day:02}", "t", day)
    chains = Chains(ledger.database)
    first = await chains.check("t", limit=4)
    now.seconds = 20.0 * DAY_SECONDS
    await keeper.forget_old()
    rest = await chains.check("t", after=(first.last_number, first.last_hash), limit=100)
    assert (rest.break_, rest.num_checked, rest.last_number) == (None, 11, 20)


async def test_rows_that_never_became_receipts_go_too(
    ledger: Ledger, keeper: Retention, rows: Rows, now: Now
) -> None:
    now.seconds = 20.0 * DAY_SECONDS
    for name, day in (("old", 1), ("new", 19)):
        await ledger.apply([opened(name, opened_unix_seconds=day * DAY_SECONDS)])
        end = closed(f"{name}, unbegun")
        end.close.closed_unix_seconds = day * DAY_SECONDS
        await ledger.apply([end])
    assert await keeper.forget_old() == 2
    assert set(await rows()) == {"new", "new, unbegun"}


async def test_names_are_forgotten_by_the_time_in_their_request_ids(
    ledger: Ledger, keeper: Retention, now: Now
) -> None:
    now.seconds = 2_000_000_000.0
    for days in (0, 29, 31, 40, 50, 60):
        request_id = ulid_at_time(now.seconds - days * DAY_SECONDS)
        named = opened(
            request_id, client_request_id=f"{days} days ago", opened_unix_seconds=now.seconds
        )
        await ledger.apply([named])
    assert await keeper.forget_old() == 4
    left = await ledger.database.rows(sa.select(REQUEST_NAMES.c.client_request_id))
    assert {row["client_request_id"] for row in left} == {"0 days ago", "29 days ago"}


async def test_what_workers_did_without_an_account_is_forgotten_by_the_time_in_its_id(
    ledger: Ledger, keeper: Retention, now: Now
) -> None:
    now.seconds = 2_000_000_000.0
    usages = SequenceUsages(ledger.database)
    ids = [ulid_at_time(now.seconds - days * DAY_SECONDS) for days in (1, 11, 12, 13)]
    await ledger.apply([opened(ids[3], opened_unix_seconds=now.seconds - DAY_SECONDS)])
    await usages.apply(
        SequenceUsage(request_id=name, record_id=str(n), role=Role.ROLE_DECODE)
        for name in ids
        for n in range(2)
    )
    assert await keeper.forget_old() == 0  # they are no receipts
    left = await usages.of_requests(ids)
    assert {name: len(found) for name, found in left.items()} == {ids[0]: 2, ids[3]: 2}


async def test_by_default_nothing_is_forgotten(
    ledger: Ledger, database: Database, rows: Rows, now: Now
) -> None:
    await ledger.apply(both("r"))
    now.seconds = 1e9
    assert await Retention(database, usage_days=0, name_days=0, clock=now).forget_old() == 0
    assert list(await rows()) == ["r"]
