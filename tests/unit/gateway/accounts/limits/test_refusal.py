"""What somebody over a limit is told."""

import pytest

from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.counters import Excess, Usage
from pagoda_gateway.accounts.limits.hold import Amount
from pagoda_gateway.accounts.limits.refusal import (
    check_size,
    duration,
    rate_headers,
    refusal_of,
    worst_of,
)
from pagoda_gateway.errors import QuotaError, RateLimitError

TENANT = LimitScope(
    "tenant", "acme", requests_per_minute=10, tokens_per_minute=1000, concurrent_requests=2,
    daily_budget_micros=5_000_000,
)  # fmt: skip
KEY = LimitScope("key", "key-1", requests_per_minute=4)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"), (0.1204, "120ms"), (0.9996, "1s"), (8.64, "8.64s"), (60, "1m0s"),
        (360, "6m0s"), (59.9999, "1m0s"), (3605, "1h0m5s"), (90_000, "25h0m0s"),
    ],
)  # fmt: skip
def test_times_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_message_names_whose_what_how_much_and_when() -> None:
    error = refusal_of(Excess(TENANT, "tokens", 900, 0, 12_300), Amount(200, 0), is_batch=False)
    assert str(error) == (
        "Rate limit reached for the tenant 'acme' on tokens per minute: limit 1000, used 900, "
        "requested 200; try again in 12.3s, or ask for a higher limit"
    )
    assert error.body()["error"] | {"message": ""} == {
        "message": "", "type": "tokens", "param": None, "code": "rate_limit_exceeded",
    }  # fmt: skip
    assert error.headers() == {"retry-after": "13"}


def test_budget_that_is_used_up_is_a_quota() -> None:
    excess = Excess(TENANT, "day", 4_900_000, 50_000, 3_600_000)
    error = refusal_of(excess, Amount(1, 200_000), is_batch=False)
    assert isinstance(error, QuotaError)
    assert "limit 5, used 4.9, held for requests in flight 0.05, requested 0.2" in str(error)
    assert error.headers() == {"retry-after": "3600", "x-should-retry": "false"}
    assert refusal_of(excess, Amount(1, 1), is_batch=True).headers() == {"x-should-retry": "false"}


def test_budget_that_others_hold_is_worth_another_try() -> None:
    error = refusal_of(Excess(TENANT, "day", 0, 5_000_000, None), Amount(1, 9), is_batch=False)
    assert not isinstance(error, QuotaError)
    assert (error.code, error.kind) == ("rate_limit_exceeded", "requests")
    assert error.headers() == {"retry-after": "1"}


@pytest.mark.parametrize(
    ("amount", "kind", "words"),
    [
        (Amount(1001, 0), RateLimitError, "tokens per minute: limit 1000, requested 1001"),
        (Amount(1, 5_000_001), QuotaError, "limit 5, requested 5.000001"),
    ],
)
def test_what_never_fits_is_told_so(amount: Amount, kind: type[Exception], words: str) -> None:
    check_size([KEY, TENANT], Amount(1000, 5_000_000))
    with pytest.raises(kind, match="It can never run") as caught:
        check_size([KEY, TENANT], amount)
    assert words in str(caught.value)
    assert caught.value.headers() == {"x-should-retry": "false"}  # type: ignore[attr-defined]


def test_a_budget_of_nothing_asks_for_no_smaller_request() -> None:
    nothing = LimitScope("key", "key-1", daily_budget_micros=0)
    with pytest.raises(QuotaError) as caught:
        check_size([nothing], Amount(1, 1))
    assert "nothing that costs anything does; ask for a higher limit" in str(caught.value)
    assert "shorter" not in str(caught.value)
    check_size([nothing], Amount(1, 0))


def test_the_longest_wait_counts_and_an_empty_budget_most() -> None:
    soon, later = Excess(KEY, "requests", 4, 0, 500), Excess(TENANT, "tokens", 990, 0, 60_900)
    unknown = Excess(TENANT, "running", 2, 0, None)
    quota = Excess(TENANT, "day", 5, 0, 100)
    assert worst_of([unknown, soon, later]) is later
    assert worst_of([later, quota, soon]) is quota


def test_headers_say_the_least_room() -> None:
    key, tenant = Usage(3, 30_000, 0, 0, 0, 0, 0, 0, 0), Usage(5, 61_000, 400, 5, 0, 0, 0, 0, 0)
    assert rate_headers([KEY, TENANT], [key, tenant]) == {
        "x-ratelimit-limit-requests": "4",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "600",
        "x-ratelimit-reset-tokens": "5ms",
    }
    assert rate_headers([LimitScope("key", "k", concurrent_requests=1)], [key]) == {}
