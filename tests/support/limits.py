"""Limits for tests: keys with scopes, prices by the token, limiters on one Redis and one ledger."""

from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord
from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.ledger import Ledger
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.counters import Counters
from pagoda_gateway.accounts.limits.hold import Amount, Hold
from pagoda_gateway.accounts.limits.limiter import Limiter
from pagoda_gateway.accounts.limits.spending import Spending
from pagoda_gateway.accounts.money.price import Price
from pagoda_gateway.accounts.money.price_book import PriceBook
from pagoda_gateway.accounts.money.prices import Prices
from pagoda_runtime.tasks.breaker import Breaker

MICROS_PER_TOKEN = 3


# Every token costs the same, half of it in a batch.
_RATE = 1_000_000 * MICROS_PER_TOKEN
RATES = {
    "input_micros": _RATE, "cached_device_micros": _RATE, "cached_cpu_micros": _RATE,
    "cached_nvme_micros": _RATE, "output_micros": _RATE, "batch_discount_percent": 50,
}  # fmt: skip
PRICES = PriceBook([Price(price_id="by-token", model="tiny", valid_from_unix_seconds=0.0, **RATES)])


def key_with(**limits: Any) -> ApiKey:
    """A key of acme-prod of acme; `tenant={...}` gives that scope limits."""
    names = {"key": "key-1", "tenant": "acme-prod", "organisation": "acme"}
    scopes = [LimitScope(kind, names[kind], **given) for kind, given in limits.items()]  # type: ignore[arg-type]
    return ApiKey("key-1", "acme-prod", organisation="acme", scopes=tuple(scopes))


def hold_of(request_id: str, key: ApiKey, tokens: int = 10, micros: int | None = None) -> Hold:
    amount = Amount(tokens, MICROS_PER_TOKEN * tokens if micros is None else micros)
    return Hold(request_id, key, amount, lambda: amount)


def counters_on(redis: Redis, clock: Callable[[], float] | None = None) -> Counters:
    """Counters that ask again at once after a failure."""
    return Counters(redis, timeout_seconds=5.0, clock=clock, breaker=Breaker(open_seconds=0.0))


def limiter_on(
    redis: Redis, database: Database, clock: Callable[[], float] | None = None, **options: Any
) -> Limiter:
    """A gateway's limiter; new counters let in at once unless told otherwise."""
    options = {"grace_seconds": 0.0, **({"clock": clock} if clock else {}), **options}
    return Limiter(counters_on(redis, clock), Spending(database, PRICES), **options)


async def apply_usage(
    database: Database,
    hold: Hold,
    *,
    opened: float,
    closed: float | None = None,
    num_output_tokens: int = 0,
    num_prompt_tokens: int = 0,
    max_output_tokens: int | None = None,
    service_tier: str = "default",
    outcome: str = "finished",
) -> None:
    """Bring a request's records into the ledger."""
    most = hold.amount.tokens - num_prompt_tokens
    records = [
        UsageRecord(
            open=UsageOpen(
                request_id=hold.request_id,
                tenant=hold.key.tenant,
                api_key_id=hold.key.api_key_id,
                model="tiny",
                num_prompt_tokens=num_prompt_tokens,
                max_output_tokens=most if max_output_tokens is None else max_output_tokens,
                opened_unix_seconds=opened,
                service_tier=service_tier,
            )
        )
    ]
    if closed is not None:
        close = UsageClose(
            request_id=hold.request_id,
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            closed_unix_seconds=closed,
            outcome=outcome,
        )
        records.append(UsageRecord(close=close))
    prices = Prices(database, _tell_nobody, clock=lambda: 0.0)
    if not await prices.all():
        await prices.create("tiny", RATES)
    await Ledger(database).apply(records)


async def _tell_nobody(change: AccountChange) -> None:
    pass
