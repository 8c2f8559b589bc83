"""Many requests at once at two gateways, by Redis' own clock."""

import asyncio
import random
from collections import Counter

import pytest
from redis.asyncio import Redis
from support.limits import MICROS_PER_TOKEN, counters_on, hold_of, key_with, limiter_on
from support.seeds import seed_of_tests

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.limits.hold import Amount
from pagoda_gateway.accounts.limits.limiter import Limiter

pytestmark = pytest.mark.integration

NUM_CALLS, NUM_FIT, TOKENS = 20, 4, 25
BUDGET = NUM_FIT * TOKENS * MICROS_PER_TOKEN


@pytest.mark.parametrize("round_number", range(5))
async def test_twenty_calls_at_a_budget_for_four(
    client: Redis, database: Database, round_number: int
) -> None:
    limiters = [limiter_on(client, database) for _ in range(2)]
    key = key_with(tenant={"daily_budget_micros": BUDGET + MICROS_PER_TOKEN - 1})
    holds = [hold_of(f"r{number}", key, TOKENS) for number in range(NUM_CALLS)]
    answers = await asyncio.gather(
        *(limiters[number % 2].take(hold) for number, hold in enumerate(holds))
    )
    assert Counter(answer.kind for answer in answers) == {"taken": NUM_FIT, "refused": 16}
    # They end having used a part: the rest is there again, and no more than it.
    used = [7, 0, 25, 3]
    taken = [
        (n, hold)
        for n, (hold, a) in enumerate(zip(holds, answers, strict=True))
        if a.kind == "taken"
    ]
    for tokens, (number, hold) in zip(used, taken, strict=True):
        limiters[number % 2].settle(hold, Amount(tokens, MICROS_PER_TOKEN * tokens))
    for limiter in limiters:
        await limiter.flush()
    left = NUM_FIT * TOKENS - sum(used)
    assert (await limiters[0].take(hold_of("larger", key, left + 1))).kind == "refused"
    assert (await limiters[0].take(hold_of("exact", key, left))).kind == "taken"
    assert (await limiters[1].take(hold_of("one", key, 1))).kind == "refused"


async def test_random_load_on_two_gateways_while_redis_loses_everything(
    client: Redis, database: Database
) -> None:
    rng = random.Random(seed_of_tests())
    limits = {"concurrent_requests": 7, "daily_budget_micros": 100_000}
    key = key_with(key={"concurrent_requests": 5}, tenant=limits, organisation=limits)
    limiters = [limiter_on(client, database, grace_seconds=0.3) for _ in range(2)]
    loops = [asyncio.create_task(keep(limiter)) for limiter in limiters]
    num_live, most_live, num_taken, spent = 0, 0, 0, 0

    async def request(number: int) -> None:
        nonlocal num_live, most_live, num_taken, spent
        limiter, tokens = limiters[number % 2], rng.randint(1, 400)
        hold = hold_of(f"r{number}", key, tokens)
        if (await limiter.take(hold)).kind != "taken":
            await asyncio.sleep(rng.random() / 50)
            return
        num_taken += 1
        num_live += 1
        most_live = max(most_live, num_live)
        await asyncio.sleep(rng.random() / 50)
        num_live -= 1
        tokens = rng.randint(0, tokens)
        spent += MICROS_PER_TOKEN * tokens
        limiter.settle(hold, Amount(tokens, MICROS_PER_TOKEN * tokens))

    async def requests(first: int) -> None:
        for number in range(first, first + 60):
            await request(number)

    try:
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for client_number in range(12):
                tasks.create_task(requests(1000 * client_number + client_number))
            for _ in range(3):
                await asyncio.sleep(rng.random() / 2)
                await client.flushall()
    finally:
        for loop in loops:
            loop.cancel()
    assert num_taken > 40
    assert most_live <= 5
    assert spent <= 100_000
    for limiter in limiters:
        await limiter.tick()
        await limiter.settle_lost()
    counters = counters_on(client)
    if await client.exists("pagoda:limits:2:open:acme"):
        for usage in await counters.usage(key.scopes):
            assert (usage.running, usage.day_held) == (0, 0)


async def keep(limiter: Limiter) -> None:
    """A gateway's background work, quicker than in earnest."""
    while True:
        await limiter.tick()
        await limiter.settle_lost()
        await asyncio.sleep(0.05)
