"""The prefix index against a real Redis."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import uvloop
from integration.router.index_events import hashes
from redis.asyncio import BlockingConnectionPool, Connection, Redis
from support.servers import Server

from pagoda_router.errors import IndexUnavailableError
from pagoda_router.index.prefix_index import PrefixIndex, SetGroup
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.tasks.breaker import Breaker

pytestmark = pytest.mark.integration


def make_index(client: Redis, *, timeout_seconds: float = 5.0) -> PrefixIndex:
    breaker = Breaker(open_seconds=60.0)
    return PrefixIndex(client, timeout_seconds=timeout_seconds, breaker=breaker)


async def store(client: Redis, key: str, numbers: Sequence[int]) -> None:
    await client.sadd(key, *hashes(numbers))


async def test_runs_of_several_workers_and_their_kvstore(client: Redis) -> None:
    await store(client, "a", range(5))
    await store(client, "b", [0, 1, 3])
    await store(client, "cpu", [5, 6, 8])
    await store(client, "nvme", [7, 9, 11])
    groups = [
        SetGroup(("a",)),
        SetGroup(("b",)),
        SetGroup(("none",)),
        SetGroup(("cpu", "nvme"), start=0),
        SetGroup(("cpu", "nvme"), start=1),
    ]
    answer = await make_index(client).match(groups, hashes(range(20)))
    assert answer == (5, 2, 0, 10, 2)


@pytest.mark.parametrize("seed", range(5))
async def test_runs_equal_a_naive_search(client: Redis, seed: int) -> None:
    rng = random.Random(seed)
    num_hashes = rng.choice([1, 15, 16, 17, 80, 81, 1500, 5000])
    sets = {f"s{i}": set(range(rng.choice([0, 1, 16, 80, 400, 5000]))) for i in range(4)}
    for key, members in sets.items():
        members -= {rng.randrange(5000) for _ in range(rng.choice([0, 20]))}
        if members:
            await store(client, key, sorted(members))
    groups = [SetGroup(("s0",)), SetGroup(("s1",)), SetGroup(("s2", "s3"), start=0)]
    answer = await make_index(client).match(groups, hashes(range(num_hashes)))

    def run(start: int, *keys: str) -> int:
        position = start
        while position < num_hashes and any(position in sets[key] for key in keys):
            position += 1
        return position

    first = run(0, "s0")
    assert answer == (first, run(0, "s1"), run(first, "s2", "s3"))


class CountingConnection(Connection):
    """Counts the commands sent over it."""

    num_sent = 0

    async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        CountingConnection.num_sent += 1
        await super().send_packed_command(*args, **kwargs)


async def test_a_decision_takes_one_round_trip(common: CommonSettings, client: Redis) -> None:
    pool = BlockingConnectionPool.from_url(common.redis_url, connection_class=CountingConnection)
    counting = Redis.from_pool(pool)
    index = make_index(counting)
    groups = [SetGroup((f"w{i}",)) for i in range(16)]
    await index.match(groups, hashes(range(100)))  # connects and loads the script
    CountingConnection.num_sent = 0
    for _ in range(10):
        await index.match(groups, hashes(range(100)))
    assert CountingConnection.num_sent == 10
    await counting.aclose()


async def test_script_flushed_from_redis_is_loaded_again(client: Redis) -> None:
    index = make_index(client)
    await store(client, "a", [0])
    await index.match([SetGroup(("a",))], hashes([0]))
    await client.script_flush()
    assert (await index.match([SetGroup(("a",))], hashes([0]))) == (1,)


async def test_slow_redis_is_not_waited_for_and_then_not_asked(
    common: CommonSettings, client: Redis
) -> None:
    blocker = Redis.from_url(common.redis_url)
    await blocker.ping()
    index = make_index(client, timeout_seconds=0.05)
    await index.match([SetGroup(("a",))], hashes([0]))
    sleeping = asyncio.create_task(blocker.execute_command("DEBUG", "SLEEP", "2"))
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(IndexUnavailableError, match="did not answer"):
            await index.match([SetGroup(("a",))], hashes([0]))
    with pytest.raises(IndexUnavailableError, match="breaker"):
        await index.match([SetGroup(("a",))], hashes([0]))
    assert not sleeping.done()
    await sleeping
    index.breaker.record(has_succeeded=True)
    assert (await index.match([SetGroup(("a",))], hashes([0]))) == (0,)
    await blocker.aclose()


def test_a_connection_that_has_died_unnoticed_is_a_failure_of_redis(redis: Server) -> None:
    """Writing to it is a RuntimeError with uvloop, which services run on."""

    async def run() -> None:
        async with Redis.from_url(redis.url) as client:
            index = make_index(client)
            await index.match([SetGroup(("a",))], hashes([0]))
            (connection,) = client.connection_pool._available_connections
            connection._writer.transport.abort()
            for _ in range(3):
                await asyncio.sleep(0)
            with pytest.raises(IndexUnavailableError, match=r"RuntimeError.*closed"):
                await index.match([SetGroup(("a",))], hashes([0]))

    uvloop.run(run())
