"""A tenant moves to another organisation: what it used goes with it, but not what that one used."""

from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from support.clocks import Now
from support.limits import MICROS_PER_TOKEN, apply_usage, hold_of, limiter_on

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.counters import LEASE_SECONDS
from pagoda_gateway.accounts.limits.hold import Amount
from pagoda_gateway.accounts.limits.limiter import Limiter
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy

pytestmark = pytest.mark.integration

TENANT = {"requests_per_minute": 5, "concurrent_requests": 2, "daily_budget_micros": 300}
BUDGET = {"daily_budget_micros": 300}  # of 100 tokens


@pytest_asyncio.fixture
async def tenancy(database: Database, now: Now) -> Tenancy:
    tenancy = Tenancy.of(database, clock=now)
    for organisation in ("acme", "other"):
        await tenancy.organisations.create(organisation)
    for tenant in ("t1", "t2"):
        await tenancy.tenants.create(tenant, organisation="acme")
    return tenancy


def key_of(name: str, at: str, **limits: dict[str, Any]) -> ApiKey:
    names = {"tenant": name, "organisation": at}
    scopes = [LimitScope(kind, names[kind], **given) for kind, given in limits.items()]  # type: ignore[arg-type]
    return ApiKey(f"key-of-{name}", name, organisation=at, scopes=tuple(scopes))


async def spend(limiter: Limiter, database: Database, now: Now, name: str, key: ApiKey,
                tokens: int) -> None:  # fmt: skip
    """Have a request run from its beginning to its receipt."""
    hold = hold_of(name, key, tokens)
    assert (await limiter.take(hold)).kind == "taken"
    limiter.settle(hold, Amount(tokens, MICROS_PER_TOKEN * tokens))
    await limiter.flush()
    await apply_usage(
        database, hold, opened=now(), closed=now() + 1, num_output_tokens=tokens,
        max_output_tokens=tokens,
    )  # fmt: skip


async def move(tenancy: Tenancy, now: Now, organisation: str) -> None:
    now.seconds += 1
    await tenancy.tenants.update("t1", {"organisation": organisation})


async def test_its_own_windows_and_places_go_with_it(
    client: Redis, database: Database, tenancy: Tenancy, now: Now
) -> None:
    limiter = limiter_on(client, database, now)
    here, there = (key_of("t1", at, tenant=TENANT) for at in ("acme", "other"))
    for number in range(3):
        await spend(limiter, database, now, f"r{number}", here, 1)
    running = hold_of("running", here, 1)
    assert (await limiter.take(running)).kind == "taken"
    await move(tenancy, now, "other")
    assert (await limiter.take(hold_of("last-of-minute", there, 1))).kind == "taken"
    excesses = (await limiter.take(hold_of("more", there, 1))).excesses
    assert {excess.dimension for excess in excesses} == {"requests", "running"}
    limiter.settle(running, Amount(1, MICROS_PER_TOKEN))
    await limiter.flush()
    excesses = (await limiter.take(hold_of("more", there, 1))).excesses
    assert {excess.dimension for excess in excesses} == {"requests"}


async def test_its_own_budget_counts_what_it_spent_elsewhere_and_back(
    client: Redis, database: Database, tenancy: Tenancy, now: Now
) -> None:
    limiter = limiter_on(client, database, now)
    here, there = (key_of("t1", at, tenant=BUDGET) for at in ("acme", "other"))
    await spend(limiter, database, now, "r1", here, 30)
    await move(tenancy, now, "other")
    await spend(limiter, database, now, "r2", there, 50)
    await move(tenancy, now, "acme")
    assert (await limiter.take(hold_of("more", here, 21))).kind == "refused"
    assert (await limiter.take(hold_of("rest", here, 20))).kind == "taken"


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "redis lost"])
async def test_an_organisation_spent_what_its_tenants_did_while_they_were_its_own(
    client: Redis, database: Database, tenancy: Tenancy, now: Now, is_lost: bool
) -> None:
    limiter = limiter_on(client, database, now)
    sibling = key_of("t2", "acme", organisation=BUDGET)
    here, there = (key_of("t1", at, organisation=BUDGET) for at in ("acme", "other"))
    await spend(limiter, database, now, "r1", here, 90)
    await move(tenancy, now, "other")
    if is_lost:
        await client.flushall()
        limiter = limiter_on(client, database, now)
    assert (await limiter.take(hold_of("more", sibling, 11))).kind == "refused"
    assert (await limiter.take(hold_of("rest", sibling, 10))).kind == "taken"
    assert (await limiter.take(hold_of("all-of-it", there, 100))).kind == "taken"


async def test_what_runs_where_it_was_is_counted_once_when_redis_forgets(
    client: Redis, database: Database, tenancy: Tenancy, now: Now
) -> None:
    limiters = [limiter_on(client, database, now) for _ in range(2)]
    here, there = (key_of("t1", at, tenant=BUDGET) for at in ("acme", "other"))
    hold = hold_of("running", here, 60)
    assert (await limiters[0].take(hold)).kind == "taken"
    await apply_usage(database, hold, opened=now())
    await move(tenancy, now, "other")
    await client.flushall()
    for limiter in limiters:
        await limiter.tick()
    assert (await limiters[1].take(hold_of("more", there, 41))).kind == "refused"
    limiters[0].settle(hold, Amount(10, 10 * MICROS_PER_TOKEN))
    await limiters[0].flush()
    assert (await limiters[1].take(hold_of("more", there, 91))).kind == "refused"
    assert (await limiters[1].take(hold_of("rest", there, 90))).kind == "taken"


async def test_what_a_dead_gateway_held_where_it_was_is_freed(
    client: Redis, database: Database, tenancy: Tenancy, now: Now
) -> None:
    here, there = (key_of("t1", at, tenant=TENANT) for at in ("acme", "other"))
    dead = limiter_on(client, database, now)
    for number in range(2):
        hold = hold_of(f"r{number}", here, 30)
        assert (await dead.take(hold)).kind == "taken"
        await apply_usage(database, hold, opened=now(), closed=now() + 1, num_output_tokens=1)
    await move(tenancy, now, "other")
    limiter = limiter_on(client, database, now)  # it has never heard of the old organisation
    assert (await limiter.take(hold_of("r2", there, 1))).kind == "refused"
    now.seconds += LEASE_SECONDS + 1
    await limiter.tick()
    await limiter.settle_lost()
    assert (await limiter.take(hold_of("r3", there, 99))).kind == "refused"
    assert (await limiter.take(hold_of("r3", there, 98))).kind == "taken"
