"""What the ledger says was spent, on both databases."""

import asyncio
import datetime

import pytest
from support.clocks import Now
from support.limits import MICROS_PER_TOKEN, PRICES, apply_usage, hold_of, key_with

from pagoda_gateway.accounts.database import Database, open_database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.spending import Spending
from pagoda_gateway.accounts.money.retention import Retention
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy

KEY = key_with(tenant={"daily_budget_micros": 1})
TENANT = KEY.scopes[0]
NOON = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC).timestamp()
DAY = 86_400.0
NUM_OPEN = 30


async def used(
    database: Database, name: str, *, ago: float, tokens: int, is_open: bool = False,
    key: ApiKey = KEY, **values: str,
) -> None:  # fmt: skip
    hold = hold_of(name, key, tokens)
    opened = NOON - ago
    closed = None if is_open else opened + 1
    await apply_usage(
        database, hold, opened=opened, closed=closed, num_output_tokens=tokens,
        max_output_tokens=tokens, **values,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def spending(database: Database) -> Spending:
    return Spending(database, PRICES)


async def test_day_month_and_what_is_open(database: Database, spending: Spending) -> None:
    await used(database, "just-now", ago=5, tokens=1)
    await used(database, "held", ago=6, tokens=10_000)
    await used(database, "running", ago=7, tokens=20, is_open=True)
    await used(database, "this-morning", ago=DAY / 4, tokens=300)
    await used(database, "left-open", ago=DAY / 3, tokens=7, is_open=True)
    await used(database, "yesterday", ago=DAY, tokens=4000)
    await used(database, "last-month", ago=30 * DAY, tokens=50_000)
    spent = await spending.of(TENANT, KEY, at=NOON, without={"held"})
    # Rows without a price are summed up and rounded each by itself, upwards at most.
    assert spent.day == NOON // DAY
    assert spent.month == (2026 - 1970) * 12 + 10
    assert spent.day_spent == pytest.approx(301 * MICROS_PER_TOKEN, abs=2)
    assert spent.month_spent == pytest.approx(4301 * MICROS_PER_TOKEN, abs=3)
    assert sorted((name, cost) for name, cost, _ in spent.open) == [
        ("left-open", 7 * MICROS_PER_TOKEN),
        ("running", 20 * MICROS_PER_TOKEN),
    ]


async def test_what_is_forgotten_was_spent_all_the_same(
    database: Database, spending: Spending
) -> None:
    for hours in reversed(range(0, 24 * 21, 7)):
        await used(database, f"r{hours:03}", ago=3600 * hours + 5, tokens=1 + hours)
    await used(database, "held", ago=6, tokens=10_000)
    await used(database, "reconciled", ago=7, tokens=5, outcome="reconciled")  # has no receipt yet
    before = await spending.of(TENANT, KEY, at=NOON, without={"held"})
    keeper = Retention(database, usage_days=1, name_days=0, clock=lambda: NOON)
    assert await keeper.forget_old() == 68
    assert await spending.of(TENANT, KEY, at=NOON, without={"held"}) == before
    tokens = [1 + hours for hours in range(0, 24 * 21, 7)]
    assert before.month_spent == MICROS_PER_TOKEN * (sum(tokens) + 5)
    assert before.day_spent == MICROS_PER_TOKEN * (sum(tokens[:2]) + 5)


@pytest.mark.parametrize("ago", [5.0, DAY / 4])  # of late, and not
async def test_what_is_applied_meanwhile_counts_once(
    database: Database, url: str, spending: Spending, ago: float
) -> None:
    names = [f"r{number:02}" for number in range(NUM_OPEN)]
    for name in names:
        await used(database, name, ago=ago, tokens=1, is_open=True)
    num_open: list[int] = []

    async def close() -> None:
        async with open_database(url) as other:
            for name in names:
                await used(other, name, ago=ago, tokens=1)

    closing = asyncio.create_task(close())
    while not closing.done():
        spent = await spending.of(TENANT, KEY, at=NOON, without={"held"})
        assert spent.day_spent + MICROS_PER_TOKEN * len(spent.open) == NUM_OPEN * MICROS_PER_TOKEN
        assert spent.month_spent == spent.day_spent
        num_open.append(len(spent.open))
    await closing
    assert len(set(num_open)) > 5, "nothing was applied meanwhile"
    held = await spending.of(TENANT, KEY, at=NOON, without={"r00", "r01"})
    assert held.day_spent == MICROS_PER_TOKEN * (NUM_OPEN - 2 * (ago < DAY / 8))


async def test_lines_of_batches_count_when_they_are_finished(
    database: Database, spending: Spending
) -> None:
    for ago in (5, DAY / 4):
        await used(database, f"done-{ago}", ago=ago, tokens=100, service_tier="batch")
        await used(
            database, f"failed-{ago}", ago=ago, tokens=1000, service_tier="batch", outcome="failed"
        )
        await used(database, f"gone-{ago}", ago=ago, tokens=1, outcome="disconnected")
    spent = await spending.of(TENANT, KEY, at=NOON, without=())
    assert spent.day_spent == pytest.approx(2 * (50 + 1) * MICROS_PER_TOKEN, abs=4)


async def test_each_scope_has_its_own(database: Database, spending: Spending) -> None:
    tenancy = Tenancy.of(database)
    for organisation, tenant in (("acme", "acme-prod"), ("acme", "acme-test"), ("other", "o")):
        if tenant != "acme-test":
            await tenancy.organisations.create(organisation)
        await tenancy.tenants.create(tenant, organisation=organisation)
    amounts = {("acme-prod", "key-1"): 1, ("acme-prod", "key-2"): 10, ("acme-test", "key-3"): 100,
               ("o", "key-4"): 1000}  # fmt: skip
    for (tenant, name), tokens in amounts.items():
        await used(database, name, ago=5, tokens=tokens, key=ApiKey(name, tenant))
    for kind, name, tokens in (
        ("key", "key-1", 1), ("tenant", "acme-prod", 11), ("organisation", "acme", 111),
    ):  # fmt: skip
        scope = LimitScope(kind, name)  # type: ignore[arg-type]
        spent = await spending.of(scope, KEY, at=NOON, without=())
        assert spent.day_spent == tokens * MICROS_PER_TOKEN, kind


@pytest.fixture
async def moving(database: Database, now: Now) -> Tenancy:
    """`acme-prod` and `acme-test` of `acme`, and an organisation without tenants."""
    tenancy = Tenancy.of(database, clock=now)
    for organisation in ("acme", "other"):
        await tenancy.organisations.create(organisation)
    for tenant in ("acme-prod", "acme-test"):
        await tenancy.tenants.create(tenant, organisation="acme")
    return tenancy


async def organisations_spent(spending: Spending, *without: str) -> list[tuple[int, int]]:
    """(of today, of this month) of acme and of the other one, in tokens."""
    found = []
    for name in ("acme", "other"):
        scope = LimitScope("organisation", name)
        spent = await spending.of(scope, KEY, at=NOON, without=without)
        opened = [(cost, at) for _, cost, at in spent.open]
        day = spent.day_spent + sum(cost for cost, at in opened if at >= 1000 * (NOON - DAY / 2))
        month = spent.month_spent + sum(cost for cost, _ in opened)
        found.append((day // MICROS_PER_TOKEN, month // MICROS_PER_TOKEN))
    return found


async def test_what_was_spent_stays_with_the_organisation_of_its_time(
    database: Database, spending: Spending, moving: Tenancy, now: Now
) -> None:
    now.seconds = NOON - 3 * DAY
    await used(database, "of-old", ago=4 * DAY, tokens=1)
    await moving.tenants.update("acme-prod", {"organisation": "other"})
    await used(database, "same-day", ago=3 * DAY - 60, tokens=10)
    await used(database, "day-between", ago=2 * DAY, tokens=100)
    await used(database, "open", ago=DAY, tokens=1000, is_open=True)
    assert await organisations_spent(spending) == [(0, 1), (0, 1110)]
    now.seconds = NOON - 3600
    await used(database, "before", ago=3601, tokens=10_000)
    await moving.tenants.update("acme-prod", {"organisation": "acme"})
    await used(database, "at-once", ago=3600, tokens=100_000)  # in that very moment
    await used(database, "just-now", ago=5, tokens=1_000_000)
    await used(database, "of-a-sibling", ago=5, tokens=10_000_000, key=ApiKey("k", "acme-test"))
    assert await organisations_spent(spending) == [(11_100_000, 11_100_001), (10_000, 11_110)]
    assert await organisations_spent(spending, "just-now", "before") == [
        (10_100_000, 10_100_001),
        (10_000, 11_110),  # too long ago for anybody to hold it
    ]


async def test_a_move_at_midnight_divides_no_day(
    database: Database, spending: Spending, moving: Tenancy, now: Now
) -> None:
    now.seconds = NOON - DAY / 2
    await moving.tenants.update("acme-prod", {"organisation": "other"})
    await moving.tenants.update("acme-prod", {"label": "moved"})
    await used(database, "yesterday", ago=DAY / 2 + 1, tokens=1)
    await used(database, "today", ago=DAY / 2, tokens=10)
    assert await organisations_spent(spending) == [(0, 1), (10, 10)]


async def test_several_moves_in_a_day(
    database: Database, spending: Spending, moving: Tenancy, now: Now
) -> None:
    for number, organisation in enumerate(("other", "acme", "other", "acme")):
        now.seconds = NOON - 1000 + 100 * number
        await used(database, f"before-{number}", ago=1001 - 100 * number, tokens=10**number)
        await moving.tenants.update("acme-prod", {"organisation": organisation})
    await used(database, "last", ago=5, tokens=10_000)
    assert await organisations_spent(spending) == [(10_101, 10_101), (1010, 1010)]


async def test_what_is_forgotten_of_the_day_of_a_move_counts_for_both(
    database: Database, spending: Spending, moving: Tenancy, now: Now
) -> None:
    now.seconds = NOON - 3 * DAY
    await used(database, "here", ago=3 * DAY + 5, tokens=1)
    await moving.tenants.update("acme-prod", {"organisation": "other"})
    await used(database, "there", ago=3 * DAY - 5, tokens=10)
    assert await organisations_spent(spending) == [(0, 1), (0, 10)]
    keeper = Retention(database, usage_days=1, name_days=0, clock=lambda: NOON)
    assert await keeper.forget_old() == 2
    assert await organisations_spent(spending) == [(0, 11), (0, 11)]


async def test_a_key_that_was_rotated_spent_what_its_predecessors_did(
    database: Database, spending: Spending, moving: Tenancy
) -> None:
    keys = moving.api_keys
    tier = await moving.tiers.create("t", {"daily_budget_micros": 1, "on_limit": "reject"})
    row, _ = await keys.create("acme-prod", tier=tier["tier"])
    first = row["api_key_id"]
    for tokens in (1, 10, 100):
        name = row["api_key_id"]
        key = await keys.find_valid(name)
        assert key is not None
        assert [scope.name for scope in key.scopes] == [first]
        await used(database, f"of-{name}", ago=5, tokens=tokens, key=key)
        row, _ = await keys.rotate(name, overlap_seconds=60)
    await used(database, "of-another", ago=5, tokens=1000, key=ApiKey("another", "acme-prod"))
    scope = LimitScope("key", first)
    spent = await spending.of(scope, ApiKey(name, "acme-prod"), at=NOON, without=())
    assert spent.day_spent == 111 * MICROS_PER_TOKEN


async def test_requests_that_nobody_knows_are_left_out(
    database: Database, spending: Spending
) -> None:
    await used(database, "known", ago=5, tokens=3)
    rows = await spending.requests(["known", "unknown"])
    assert list(rows) == ["known"]
    assert spending.cost_of(rows["known"]) == 3 * MICROS_PER_TOKEN
