"""What a request hears that waits for room; its limiter here says what it is told to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from support.limits import MICROS_PER_TOKEN, PRICES, key_with

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limits.counters import Answer, Excess, Usage
from pagoda_gateway.accounts.limits.hold import Amount
from pagoda_gateway.accounts.limits.reservation import LimitedRequest, Limits, Reservation
from pagoda_gateway.accounts.limits.waiting_line import WaitingLines
from pagoda_gateway.errors import AuthenticationError, RateLimitError

KEY = key_with(key={"concurrent_requests": 1, "is_queueing": True, "tokens_per_minute": 50})
USED = Usage(1, 0, 1, 0, running=1, day_spent=0, day_held=0, month_spent=0, month_held=0)


class Full:
    """A limiter that has no room."""

    def __init__(self, excess: Excess) -> None:
        self.excess = excess

    async def take(self, hold: Any) -> Answer:
        return Answer("refused", excesses=(self.excess,), usages=(USED,))

    async def released(self, organisation: str, timeout_seconds: float) -> None:
        await asyncio.sleep(timeout_seconds)

    def give_up(self, hold: Any) -> None:
        pass


class Roomy:
    """A limiter that has room, and remembers how holds end."""

    def __init__(self) -> None:
        self.ends: list[Amount | None] = []  # None: all was given back

    async def take(self, hold: Any) -> Answer:
        return Answer("taken", usages=(USED,))

    def settle(self, hold: Any, used: Amount) -> None:
        self.ends.append(used)

    def give_up(self, hold: Any) -> None:
        self.ends.append(None)


OPENED = UsageOpen(model="tiny", price_id="by-token")


@pytest.mark.parametrize(
    ("opened", "num_tokens", "end"),
    [
        (OPENED, 40, Amount(40, 7 * MICROS_PER_TOKEN)),
        (None, 40, Amount(40, 0)),  # its account could not be stored while workers were at it
        (None, 0, None),
    ],
)
async def test_rates_count_what_was_computed_and_budgets_what_is_billed(
    opened: UsageOpen | None, num_tokens: int, end: Amount | None
) -> None:
    limiter: Any = Roomy()
    limits = Limits(limiter, PRICES, WaitingLines(5), queue_seconds=30.0, is_open=False)
    key = key_with(key={"tokens_per_minute": 50})
    request = LimitedRequest("r", "tiny", 5, lambda: 40, "default", 0.0, still(key))
    reservation = limits.reservation(key, request, headers)
    await reservation.enter()
    reservation.settle(opened, UsageClose(num_prompt_tokens=5, num_output_tokens=2), num_tokens)
    assert limiter.ends == [end]


def reservations(
    number: int,
    key: ApiKey = KEY,
    num_tokens: int = 1,
    tier: str = "default",
    excess: Excess | None = None,
    ask_again: Callable[[], Awaitable[ApiKey]] | None = None,
) -> Sequence[Reservation]:
    again = ask_again or still(key)
    full: Any = Full(excess or Excess(key.scopes[0], "running", used=1, held=0, wait_ms=None))
    limits = Limits(full, PRICES, WaitingLines(5), queue_seconds=30.0, is_open=False)
    return [
        limits.reservation(
            key, LimitedRequest(f"r{n}", "tiny", num_tokens, lambda: 1, tier, 0.0, again), headers
        )
        for n in range(number)
    ]


def headers(given: dict[str, str]) -> None:
    pass


def still(key: ApiKey) -> Callable[[], Awaitable[ApiKey]]:
    async def ask_again() -> ApiKey:
        return key

    return ask_again


@asynccontextmanager
async def waiting(reservation: Reservation) -> AsyncIterator[None]:
    task = asyncio.create_task(reservation.enter())
    await asyncio.sleep(0.01)
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_a_deadline_in_the_queue_says_what_was_waited_for() -> None:
    first, second = reservations(2)
    async with waiting(first), waiting(second):
        message = str(first.expired())
        assert "the limit of the API key 'key-1' on concurrent requests: limit 1, used 1" in message
        assert "give it more time, send fewer requests at once, or ask for a higher" in message
        assert "behind others" in str(second.expired())


async def test_a_key_that_took_anothers_place_is_called_by_its_own_id() -> None:
    rotated = replace(KEY, api_key_id="key-2")
    (one,) = reservations(1, rotated)
    async with waiting(one):
        assert "the API key 'key-2'" in str(one.expired())
    (large,) = reservations(1, rotated, num_tokens=100)
    with pytest.raises(RateLimitError, match="Request too large for the API key 'key-2'"):
        await large.enter()


async def test_who_waits_is_refused_when_his_key_is() -> None:
    async def revoked() -> ApiKey:
        raise AuthenticationError("Incorrect API key provided.")

    (one,) = reservations(1, ask_again=revoked)
    with pytest.raises(AuthenticationError):
        await one.enter()


async def test_who_waits_goes_by_the_limits_that_there_are_by_now() -> None:
    lower = key_with(key={"concurrent_requests": 1, "is_queueing": True, "tokens_per_minute": 9})
    (one,) = reservations(1, num_tokens=20, ask_again=still(lower))
    with pytest.raises(RateLimitError, match="limit 9, requested 21"):
        await one.enter()


def num_refused(dimension: str) -> float:
    labels = {"scope": "key", "dimension": dimension}
    return REGISTRY.get_sample_value("pagoda_limited_requests_total", labels) or 0.0


async def test_a_line_of_a_batch_that_waits_is_not_counted_as_refused() -> None:
    (line,) = reservations(1, tier="batch")
    before = num_refused("running")
    with pytest.raises(RateLimitError):
        await line.enter()
    assert num_refused("running") == before


async def test_a_line_of_a_batch_whose_budget_is_spent_is_refused() -> None:
    key = key_with(key={"daily_budget_micros": 100})
    spent = Excess(key.scopes[0], "day", used=100, held=0, wait_ms=1000)
    (line,) = reservations(1, key, tier="batch", excess=spent)
    before = num_refused("day")
    with pytest.raises(RateLimitError):
        await line.enter()
    assert num_refused("day") == before + 1
