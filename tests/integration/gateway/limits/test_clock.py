"""Redis' clock is set back and forward: a minute stays one, a lease too, and a budget is a day's.

Two clocks here: `wall` is Redis' and may be set, `passed` is a gateway's own and may not.
"""

import random
from collections import deque

import pytest
from redis.asyncio import Redis
from support.clocks import Now
from support.limits import PRICES, hold_of, key_with
from support.seeds import seed_of_tests

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.limits.counters import LEASE_SECONDS, Counters
from pagoda_gateway.accounts.limits.limiter import Limiter
from pagoda_gateway.accounts.limits.spending import Spending

pytestmark = pytest.mark.integration

HOUR, DAY = 3600, 86_400
MIDNIGHT = 20_776 * DAY  # not a month's first
STEPS = pytest.mark.parametrize("step", [-2 * HOUR, -90, 90, 2 * HOUR])
ONE_A_MINUTE = key_with(tenant={"requests_per_minute": 1})
ONE_AT_ONCE = key_with(tenant={"concurrent_requests": 1})
BUDGET = key_with(tenant={"daily_budget_micros": 1000})


@pytest.fixture
def wall() -> Now:
    clock = Now()
    clock.seconds = MIDNIGHT + 12 * HOUR + 0.25
    return clock


@pytest.fixture
def passed() -> Now:
    return Now()


@pytest.fixture
async def counters(client: Redis, wall: Now, passed: Now) -> Counters:
    counters = counters_of(client, wall, passed)
    await counters.open("acme", (await counters.generation()).name)
    return counters


def counters_of(client: Redis, wall: Now, passed: Now) -> Counters:
    return Counters(client, timeout_seconds=5.0, clock=wall, monotonic=passed)


def run_on(seconds: float, *clocks: Now) -> None:
    for clock in clocks:
        clock.seconds += seconds


async def seed(counters: Counters, day_spent: int) -> None:
    day = (await counters.generation()).calendar_ms // 1000 // DAY
    values = {"day": day, "day_spent": day_spent, "month": 0, "month_spent": 0, "items": [],
              "organisations": ["acme"]}  # fmt: skip
    await counters.seed("acme", "tenant:acme-prod", values)


@STEPS
async def test_a_minute_stays_a_minute(
    counters: Counters, wall: Now, passed: Now, step: float
) -> None:
    await counters.reserve(hold_of("first", ONE_A_MINUTE))
    wall.seconds += step
    run_on(59.7, wall, passed)
    assert (await counters.reserve(hold_of("early", ONE_A_MINUTE))).kind == "refused"
    run_on(1.3, wall, passed)
    assert (await counters.reserve(hold_of("then", ONE_A_MINUTE))).kind == "taken"


@STEPS
async def test_who_is_refused_is_told_how_much_of_the_minute_is_left(
    counters: Counters, wall: Now, passed: Now, step: float
) -> None:
    await counters.reserve(hold_of("first", ONE_A_MINUTE))
    run_on(20, wall, passed)
    wall.seconds += step
    (excess,) = (await counters.reserve(hold_of("second", ONE_A_MINUTE))).excesses
    assert excess.wait_ms is not None
    assert 20_000 < excess.wait_ms <= 61_000


@STEPS
async def test_the_place_of_a_dead_gateway_is_free_after_a_lease(
    counters: Counters, wall: Now, passed: Now, step: float
) -> None:
    await counters.reserve(hold_of("dead", ONE_AT_ONCE))
    wall.seconds += step
    run_on(LEASE_SECONDS + 0.01, wall, passed)
    assert (await counters.reserve(hold_of("next", ONE_AT_ONCE))).kind == "taken"


@STEPS
async def test_a_lease_does_not_run_out_before(
    counters: Counters, wall: Now, passed: Now, step: float
) -> None:
    await counters.reserve(hold_of("live", ONE_AT_ONCE))
    wall.seconds += step
    run_on(LEASE_SECONDS - 1.5, wall, passed)
    assert (await counters.reserve(hold_of("next", ONE_AT_ONCE))).kind == "refused"
    assert await counters.renew("acme", [hold_of("live", ONE_AT_ONCE)]) == []


@STEPS
async def test_counters_are_as_old_as_they_are(
    counters: Counters, wall: Now, passed: Now, step: float
) -> None:
    wall.seconds += step
    run_on(3, wall, passed)
    assert (await counters.generation()).age_ms == pytest.approx(3000, abs=1)


async def test_what_was_late_on_its_way_is_no_step(
    counters: Counters, wall: Now, passed: Now
) -> None:
    await counters.reserve(hold_of("first", ONE_A_MINUTE))
    run_on(30, wall)  # asked at once, heard by Redis when it goes on
    await counters.reserve(hold_of("late", ONE_A_MINUTE))
    run_on(30, passed)
    run_on(31, wall, passed)
    assert (await counters.reserve(hold_of("then", ONE_A_MINUTE))).kind == "taken"


async def test_gateways_whose_clocks_differ_count_one_minute(
    client: Redis, counters: Counters, wall: Now, passed: Now
) -> None:
    other_wall, other_passed = Now(), Now()
    other_wall.seconds, other_passed.seconds = wall() - 3, passed() + 1234
    other = counters_of(client, other_wall, other_passed)
    clocks = (wall, passed, other_wall, other_passed)
    await counters.reserve(hold_of("first", ONE_A_MINUTE))
    for second in range(59):
        for one in (other, counters):
            await one.generation()
            assert (await one.reserve(hold_of(f"r{second}", ONE_A_MINUTE))).kind == "refused"
        run_on(1, *clocks)
    run_on(3, *clocks)
    assert (await other.reserve(hold_of("then", ONE_A_MINUTE))).kind == "taken"


async def test_a_gateway_that_slept_does_not_hold_the_time_up(
    client: Redis, counters: Counters, wall: Now, passed: Now
) -> None:
    slept = Now()
    asleep = counters_of(client, wall, slept)
    await asleep.generation()
    run_on(60, wall, passed)
    await counters.reserve(hold_of("first", ONE_A_MINUTE))
    for second in range(60):
        run_on(1, wall, slept)
        assert (await asleep.reserve(hold_of(f"r{second}", ONE_A_MINUTE))).kind == "refused"
    run_on(1, wall, slept)
    assert (await asleep.reserve(hold_of("then", ONE_A_MINUTE))).kind == "taken"


async def test_what_a_day_spent_stays_spent_while_it_seems_to_be_the_day_before(
    counters: Counters, wall: Now, passed: Now
) -> None:
    wall.seconds = MIDNIGHT + DAY + 60
    await seed(counters, 990)
    for step in (-120, 180):
        wall.seconds += step
        (excess,) = (await counters.reserve(hold_of("more", BUDGET, 1, 11))).excesses
        assert (excess.dimension, excess.used) == ("day", 990)
    assert (await counters.reserve(hold_of("rest", BUDGET, 1, 10))).kind == "taken"


async def test_a_budget_that_is_spent_is_told_when_the_day_really_ends(
    counters: Counters, wall: Now
) -> None:
    await seed(counters, 1000)
    wall.seconds -= 2 * HOUR
    (excess,) = (await counters.reserve(hold_of("more", BUDGET, 1, 1))).excesses
    assert excess.wait_ms == int(1000 * (MIDNIGHT + DAY - wall()))


async def test_a_clock_that_is_wrong_for_a_while_begins_no_day(
    counters: Counters, wall: Now, passed: Now
) -> None:
    run_on(11 * HOUR, wall, passed)
    await seed(counters, 1000)
    wall.seconds += 2 * HOUR
    run_on(600, wall, passed)
    assert (await counters.reserve(hold_of("r1", BUDGET, 1, 1))).kind == "refused"
    wall.seconds -= 2 * HOUR
    assert (await counters.reserve(hold_of("r2", BUDGET, 1, 1))).kind == "refused"
    run_on(50 * 60, wall, passed)
    assert (await counters.reserve(hold_of("r3", BUDGET, 1, 1))).kind == "taken"


async def test_a_clock_that_stays_set_forward_is_followed(
    counters: Counters, wall: Now, passed: Now
) -> None:
    wall.seconds += 2 * HOUR
    for _ in range(24):
        run_on(300, wall, passed)
        found = await counters.generation()
    assert found.calendar_ms == int(1000 * wall())


@pytest.mark.parametrize("days", [-400, -2, 2, 400])
async def test_on_another_day_the_ledger_is_asked_and_again_on_the_way_back(
    counters: Counters, wall: Now, days: int
) -> None:
    await seed(counters, 990)
    assert (await counters.reserve(hold_of("r1", BUDGET, 1, 10))).kind == "taken"
    for step in (days, -days):
        wall.seconds += step * DAY
        answer = await counters.reserve(hold_of("r2", BUDGET, 1, 1))
        assert (answer.kind, answer.scope) == ("seed", "tenant:acme-prod")
        await seed(counters, 990 if step == -days else 0)
    (excess,) = (await counters.reserve(hold_of("r2", BUDGET, 1, 1))).excesses
    assert (excess.used, excess.held) == (990, 10)


@STEPS
async def test_what_is_told_to_new_counters_is_as_old_as_it_is(
    client: Redis, database: Database, wall: Now, passed: Now, step: float
) -> None:
    limiter = Limiter(
        counters_of(client, wall, passed), Spending(database, PRICES), grace_seconds=0.0,
        clock=passed,
    )  # fmt: skip
    assert (await limiter.take(hold_of("first", ONE_A_MINUTE))).kind == "taken"
    run_on(20, wall, passed)
    wall.seconds += step
    await limiter.tick()
    await client.flushall()
    await limiter.tick()
    run_on(39, wall, passed)
    await limiter.tick()
    assert (await limiter.take(hold_of("early", ONE_A_MINUTE))).kind == "refused"
    run_on(2, wall, passed)
    assert (await limiter.take(hold_of("then", ONE_A_MINUTE))).kind == "taken"


async def test_random_steps_let_in_no_more_and_shut_nobody_out(
    client: Redis, wall: Now, passed: Now
) -> None:
    rng = random.Random(seed_of_tests())
    gateways = [counters_of(client, wall, passed) for _ in range(2)]
    await gateways[0].open("acme", (await gateways[0].generation()).name)
    key = key_with(tenant={"requests_per_minute": 5})
    taken: deque[float] = deque(maxlen=5)
    for number in range(600):
        if rng.random() < 0.1:
            wall.seconds += rng.choice([-1, 1]) * rng.choice([5, 70, HOUR, 8 * HOUR])
        run_on(rng.choice([0.1, 0.5, 1.0]), wall, passed)
        for gateway in gateways:
            await gateway.generation()
        answer = await rng.choice(gateways).reserve(hold_of(f"r{number}", key))
        if answer.kind == "taken":
            assert len(taken) < 5 or passed() - taken[0] > 59.9
            taken.append(passed())
        else:
            assert passed() - taken[0] < 64  # each step costs as long as nobody asked before it
