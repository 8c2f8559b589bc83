"""What callers hear while Redis does not do what it should; this one says what it is told to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError
from support.limits import hold_of, key_with

from pagoda_gateway.accounts.limits.counters import Counters, CountersError

KEY = key_with(tenant={"requests_per_minute": 5})
SOON_SECONDS = 5.0  # nothing here waits for it


class Redis:
    """Answers like one that has just been started, unless it is hung or broken."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.error: Exception | None = None

    def register_script(self, text: str) -> Callable[..., Any]:
        return self._run

    async def _run(self, keys: list[str], args: list[Any]) -> Any:
        self.num_asked += 1
        if self.error is not None:
            raise self.error
        await self.goes_on.wait()
        return [b"1000-a", 2000, 3000] if args[0] == "generation" else [[b"new"]]


@pytest.fixture
def redis() -> Redis:
    return Redis()


@pytest.fixture
async def counters(redis: Redis) -> AsyncIterator[Counters]:
    counters = Counters(redis, timeout_seconds=SOON_SECONDS)  # type: ignore[arg-type]
    yield counters
    await counters.close()


async def find_it_down(redis: Redis, counters: Counters) -> None:
    redis.error = ConnectionError("no route")
    for _ in range(2):
        with pytest.raises(CountersError):
            await counters.generation()
    redis.error = None


@contextlib.asynccontextmanager
async def hung(redis: Redis) -> AsyncIterator[None]:
    """Have it answer nobody until the block ends."""
    redis.goes_on.clear()
    yield
    redis.goes_on.set()


async def asked(redis: Redis, number: int) -> None:
    while redis.num_asked < number:  # noqa: ASYNC110
        await asyncio.sleep(0)  # lets the others run


async def test_nobody_but_a_probe_asks_a_redis_that_is_down(
    redis: Redis, counters: Counters
) -> None:
    await find_it_down(redis, counters)
    async with hung(redis):
        probe = asyncio.create_task(counters.generation(is_probe=True))
        await asked(redis, 3)
        with pytest.raises(CountersError, match="a moment ago"):
            await counters.reserve(hold_of("r1", KEY))
    await probe
    assert redis.num_asked == 3


async def test_a_request_never_probes_itself(redis: Redis, counters: Counters) -> None:
    await find_it_down(redis, counters)
    for number in range(3):
        with pytest.raises(CountersError, match="a moment ago"):
            await counters.reserve(hold_of(f"r{number}", KEY))
    assert redis.num_asked == 2


async def test_a_probe_that_is_answered_lets_all_ask(redis: Redis, counters: Counters) -> None:
    await find_it_down(redis, counters)
    await counters.generation(is_probe=True)
    assert (await counters.reserve(hold_of("r1", KEY))).kind == "new"


async def test_who_waits_when_it_is_found_to_be_down_waits_no_longer(
    redis: Redis, counters: Counters
) -> None:
    async with hung(redis):
        waiting = [
            asyncio.create_task(counters.reserve(hold_of(f"r{number}", KEY))) for number in range(2)
        ]
        await asked(redis, 1)
        await find_it_down(redis, counters)
        async with asyncio.timeout(SOON_SECONDS / 2):
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [CountersError] * 2


async def test_closed_while_redis_hangs_leaves_no_task(redis: Redis, counters: Counters) -> None:
    before = asyncio.all_tasks()
    async with hung(redis):
        waiting = asyncio.create_task(counters.reserve(hold_of("r1", KEY)))
        await asked(redis, 1)
        await counters.close()
        await asyncio.wait([waiting], timeout=SOON_SECONDS)
        assert waiting.cancelled()
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ResponseError("OOM command not allowed"), "ResponseError: OOM command not allowed"),
        (ConnectionError(), "ConnectionError"),
        (
            ResponseError("unknown command 'AUTH', with args beginning with: 'hunter2' "),
            "ResponseError: unknown command 'AUTH'",
        ),
        (ResponseError("first\nsecond" + 500 * "x"), "ResponseError: first second" + 188 * "x"),
    ],
)
async def test_what_redis_says_is_told_but_not_what_it_was_told(
    redis: Redis, counters: Counters, error: Exception, words: str
) -> None:
    redis.error = error
    with pytest.raises(CountersError) as caught:
        await counters.generation()
    assert str(caught.value) == f"Redis does not answer: {words}"
