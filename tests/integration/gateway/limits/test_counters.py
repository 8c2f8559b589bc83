"""The script: all dimensions at once or nothing; what comes back, and when what is refused fits."""

import datetime
import random

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from support.clocks import Now
from support.limits import counters_on, hold_of, key_with
from support.seeds import seed_of_tests

from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limits.counters import LEASE_SECONDS, Counters, CountersError, Usage

pytestmark = pytest.mark.integration

ALL = {
    "requests_per_minute": 5, "tokens_per_minute": 100, "concurrent_requests": 3,
    "daily_budget_micros": 1000, "monthly_budget_micros": 2000,
}  # fmt: skip


@pytest_asyncio.fixture
async def counters(client: Redis, now: Now) -> Counters:
    counters = counters_on(client, now)
    await counters.open("acme", (await counters.generation()).name)
    for scope in ("key:key-1", "tenant:acme-prod", "organisation:acme"):
        await seed(counters, now, scope)
    return counters


async def seed(
    counters: Counters, now: Now, scope: str, day_spent: int = 0, month_spent: int = 0
) -> None:
    moment = datetime.datetime.fromtimestamp(now(), datetime.UTC)
    await counters.seed(
        "acme",
        scope,
        {
            "day": int(now() // 86_400),
            "day_spent": day_spent,
            "month": (moment.year - 1970) * 12 + moment.month - 1,
            "month_spent": month_spent,
            "items": [],
            "organisations": ["acme"],
        },
    )


async def usage_of(counters: Counters, key: ApiKey) -> Usage:
    (usage,) = await counters.usage(key.scopes)
    return usage


async def test_takes_everywhere_or_nowhere(counters: Counters) -> None:
    key = key_with(key=ALL, tenant=ALL, organisation={**ALL, "tokens_per_minute": 50})
    assert (await counters.reserve(hold_of("r1", key, 50))).kind == "taken"
    answer = await counters.reserve(hold_of("r2", key, 1))
    assert (answer.kind, [str(e.scope) for e in answer.excesses]) == (
        "refused",
        ["organisation 'acme'"],
    )
    for usage in await counters.usage(key.scopes):
        assert (usage.requests, usage.tokens, usage.running, usage.day_held) == (1, 50, 1, 150)


async def test_settled_gives_back_what_was_not_used(counters: Counters) -> None:
    key = key_with(tenant=ALL)
    hold = hold_of("r1", key, 80)
    await counters.reserve(hold)
    await counters.put("acme", [{"id": "r1", "status": "settled", "tokens": 30, "micros": 90}])
    usage = await usage_of(counters, key)
    assert (usage.requests, usage.tokens, usage.running) == (1, 30, 0)
    assert (usage.day_held, usage.day_spent, usage.month_spent) == (0, 90, 90)


async def test_said_twice_counts_once(counters: Counters) -> None:
    key = key_with(tenant=ALL)
    hold = hold_of("r1", key, 80)
    for _ in range(2):
        assert (await counters.reserve(hold)).kind == "taken"
    item = {"id": "r1", "status": "settled", "tokens": 30, "micros": 90}
    for _ in range(2):
        await counters.put("acme", [item])
    restored = item | {
        "id": "r0", "is_restored": True, "is_new": True, "scopes": ["tenant:acme-prod"],
        "budgets": ["tenant:acme-prod"],
    }  # fmt: skip
    for _ in range(2):
        await counters.put("acme", [restored])
    usage = await usage_of(counters, key)
    assert (usage.requests, usage.tokens, usage.running, usage.day_spent) == (2, 60, 0, 180)


async def test_who_gave_up_before_it_was_heard_takes_nothing(counters: Counters, now: Now) -> None:
    key = key_with(tenant=ALL)
    await counters.put("acme", [{"id": "r1", "status": "void", "tokens": 0, "micros": 0}])
    assert (await counters.reserve(hold_of("r1", key))).kind == "void"
    now.seconds += LEASE_SECONDS + 1
    assert (await counters.reserve(hold_of("r2", key))).kind == "taken"
    assert await counters.held_ids("acme") == {"r2"}


async def test_given_up_after_it_was_taken_leaves_nothing(counters: Counters) -> None:
    key = key_with(tenant=ALL)
    await counters.reserve(hold_of("r1", key))
    await counters.put("acme", [{"id": "r1", "status": "void", "tokens": 0, "micros": 0}])
    usage = await usage_of(counters, key)
    assert usage == Usage(0, 0, 0, 0, 0, 0, 0, 0, 0)


async def test_renewed_with_less_gives_the_rest_back(counters: Counters) -> None:
    key = key_with(tenant=ALL)
    hold = hold_of("r1", key, 80)
    await counters.reserve(hold)
    assert await counters.renew("acme", [hold_of("r1", key, 20)]) == []
    usage = await usage_of(counters, key)
    assert (usage.tokens, usage.day_held, usage.running) == (20, 60, 1)


async def test_lease_that_runs_out_frees_the_place_and_keeps_the_money(
    counters: Counters, now: Now
) -> None:
    key = key_with(tenant=ALL)
    for name in ("r1", "r2", "r3"):
        await counters.reserve(hold_of(name, key, 10))
    assert (await counters.reserve(hold_of("r4", key, 10))).kind == "refused"
    now.seconds += LEASE_SECONDS / 2
    assert await counters.renew("acme", [hold_of("r3", key, 10)]) == []
    now.seconds += LEASE_SECONDS / 2 + 0.01
    assert (await counters.reserve(hold_of("r4", key, 10))).kind == "taken"
    usage = await usage_of(counters, key)
    assert (usage.running, usage.day_held) == (2, 4 * 30)
    lost = await counters.lost()
    assert [(hold.organisation, hold.request_id, hold.tokens, hold.micros) for hold in lost] == [
        ("acme", "r1", 10, 30),
        ("acme", "r2", 10, 30),
    ]
    assert await counters.renew("acme", [hold_of("r1", key, 10)]) == ["r1"]


async def test_line_of_a_batch_that_comes_again_takes_its_lost_hold_over(
    counters: Counters, now: Now
) -> None:
    key = key_with(tenant=ALL)
    await counters.reserve(hold_of("line-0", key, 60))
    now.seconds += LEASE_SECONDS + 1
    assert await counters.lost()
    assert (await counters.reserve(hold_of("line-0", key, 60))).kind == "taken"
    assert not await counters.lost()
    usage = await usage_of(counters, key)
    assert (usage.tokens, usage.running, usage.day_held) == (60, 1, 180)


@pytest.mark.parametrize("dimension", ["requests", "tokens"])
async def test_refused_fits_when_it_was_told_and_not_before(
    counters: Counters, now: Now, dimension: str
) -> None:
    rng = random.Random(7)
    limits = {"requests_per_minute": 4} if dimension == "requests" else {"tokens_per_minute": 100}
    key = key_with(tenant=limits)
    taken: list[tuple[float, int]] = []
    for number in range(200):
        tokens = rng.randint(1, 100)
        hold = hold_of(f"r{number}", key, tokens, 0)
        answer = await counters.reserve(hold)
        if answer.kind == "refused":
            (excess,) = answer.excesses
            assert (excess.dimension, excess.wait_ms is None) == (dimension, False)
            now.seconds += (excess.wait_ms - 1) / 1000  # type: ignore[operator]
            assert (await counters.reserve(hold)).kind == "refused"
            now.seconds += 0.001
            assert (await counters.reserve(hold)).kind == "taken"
        taken.append((now(), tokens))
        now.seconds += rng.choice([0, 0.4, 3, 20])
        last = [used for at, used in taken if at > taken[-1][0] - 60]
        assert (len(last) if dimension == "requests" else sum(last)) <= (
            4 if dimension == "requests" else 100
        )


async def test_headers_reset_when_the_window_is_empty(counters: Counters, now: Now) -> None:
    key = key_with(tenant=ALL)
    answer = await counters.reserve(hold_of("r1", key, 10))
    reset_ms = answer.usages[0].requests_reset_ms
    now.seconds += (reset_ms - 1) / 1000
    assert (await usage_of(counters, key)).requests == 1
    now.seconds += 0.001
    assert (await usage_of(counters, key)).requests == 0


async def test_budget_that_is_held_may_come_back_and_one_that_is_spent_does_not(
    counters: Counters, now: Now
) -> None:
    key = key_with(tenant={"daily_budget_micros": 100})
    await counters.reserve(hold_of("r1", key, 1, 80))
    (excess,) = (await counters.reserve(hold_of("r2", key, 1, 30))).excesses
    assert (excess.used, excess.held, excess.wait_ms) == (0, 80, None)
    await counters.put("acme", [{"id": "r1", "status": "settled", "tokens": 1, "micros": 80}])
    (excess,) = (await counters.reserve(hold_of("r2", key, 1, 30))).excesses
    midnight = (now() // 86_400 + 1) * 86_400
    assert (excess.used, excess.held, excess.wait_ms) == (80, 0, int((midnight - now()) * 1000))
    now.seconds = midnight - 0.001
    assert (await counters.reserve(hold_of("r2", key, 1, 30))).kind == "refused"
    now.seconds = midnight
    assert (await counters.reserve(hold_of("r2", key, 1, 30))).kind == "taken"


async def test_months_are_those_of_the_calendar(counters: Counters, now: Now) -> None:
    key = key_with(tenant={"monthly_budget_micros": 10})
    rng = random.Random(seed_of_tests())
    starts = [
        datetime.datetime(rng.randint(2026, 2105), rng.randint(1, 12), 1, tzinfo=datetime.UTC)
        for _ in range(60)
    ]
    for number, start in enumerate(sorted(set(starts))):  # a month that is over does not return
        moment = start + datetime.timedelta(seconds=rng.randrange(28 * 86_400))
        following = start + datetime.timedelta(days=32)
        end = following.replace(day=1).timestamp()
        now.seconds = moment.timestamp()
        await counters.put(
            "acme",
            [{"id": f"s{number}", "status": "settled", "tokens": 0, "micros": 10,
              "is_restored": True, "is_new": True, "scopes": ["tenant:acme-prod"],
              "budgets": ["tenant:acme-prod"]}],
        )  # fmt: skip
        (excess,) = (await counters.reserve(hold_of("r", key, 1, 1))).excesses
        assert excess.wait_ms == int((end - now()) * 1000), moment


async def test_what_was_taken_yesterday_is_not_given_back_today(
    counters: Counters, now: Now
) -> None:
    key = key_with(tenant=ALL)
    now.seconds = (now() // 86_400 + 1) * 86_400 - 2
    await counters.reserve(hold_of("r1", key, 30))
    now.seconds += 4
    await counters.put("acme", [{"id": "r1", "status": "settled", "tokens": 10, "micros": 30}])
    usage = await usage_of(counters, key)
    assert (usage.day_spent, usage.day_held, usage.month_spent, usage.month_held) == (0, 0, 30, 0)


async def test_new_counters_ask_to_be_opened_and_seeded(client: Redis, now: Now) -> None:
    counters = counters_on(client, now)
    key = key_with(tenant=ALL, organisation=ALL)
    hold = hold_of("r1", key, 10)
    assert (await counters.reserve(hold)).kind == "new"
    await counters.open("acme", (await counters.generation()).name)
    answer = await counters.reserve(hold)
    assert (answer.kind, answer.scope) == ("seed", "tenant:acme-prod")
    await seed(counters, now, "tenant:acme-prod", 985, 985)
    assert (await counters.reserve(hold)).scope == "organisation:acme"
    await seed(counters, now, "organisation:acme")
    (excess,) = (await counters.reserve(hold)).excesses
    assert (excess.dimension, excess.used) == ("day", 985)
    await seed(counters, now, "tenant:acme-prod", 0, 0)  # somebody who was late
    assert (await counters.reserve(hold)).kind == "refused"


async def test_redis_that_evicts_anything_is_refused(client: Redis, now: Now) -> None:
    counters = counters_on(client, now)
    await counters.check_policy()
    await client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(CountersError, match="allkeys-lru"):
            await counters.check_policy()
    finally:
        await client.config_set("maxmemory-policy", "noeviction")


async def test_no_key_of_ours_can_be_evicted_beside_the_index(
    client: Redis, counters: Counters
) -> None:
    await counters.reserve(hold_of("r1", key_with(tenant=ALL)))
    await counters.generation()
    keys = [key async for key in client.scan_iter("*")]
    assert len(keys) >= 5
    assert {await client.ttl(key) for key in keys} == {-1}


async def test_script_that_redis_forgot_is_sent_again(client: Redis, counters: Counters) -> None:
    await client.script_flush()
    assert (await counters.reserve(hold_of("r1", key_with(tenant=ALL)))).kind == "taken"


async def test_redis_own_clock_counts_for_all_replicas(client: Redis) -> None:
    found = await counters_on(client).generation()
    seconds, _ = await client.time()
    assert abs(found.calendar_ms / 1000 - seconds) < 5


async def test_redis_without_memory_is_said_to_have_none(client: Redis, counters: Counters) -> None:
    await client.config_set("maxmemory", "1")
    try:
        with pytest.raises(CountersError, match=r"ResponseError: .*OOM command not allowed"):
            await counters.reserve(hold_of("r1", key_with(tenant=ALL)))
    finally:
        await client.config_set("maxmemory", "0")


async def test_counters_of_another_generation_are_not_opened(
    counters: Counters, client: Redis
) -> None:
    """Nobody knows how old they are, nor who has told them what he holds."""
    key = key_with(tenant=ALL)
    before = (await counters.generation()).name
    await client.flushall()
    await counters.open("acme", before)
    assert (await counters.reserve(hold_of("r1", key))).kind == "new"
    await counters.generation()
    await counters.open("acme", before)
    assert (await counters.reserve(hold_of("r1", key))).kind == "new"
    await counters.open("acme", (await counters.generation()).name)
    assert (await counters.reserve(hold_of("r1", key))).kind == "seed"
