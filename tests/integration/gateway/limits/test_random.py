"""Random requests at two gateways, against a plain model: no limit is exceeded, nothing stays held.

The ledger lags behind, Redis loses everything, gateways die, the tenant moves to another
organisation and back: at random moments.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from redis.asyncio import Redis
from support.clocks import Now
from support.limits import (
    MICROS_PER_TOKEN,
    apply_usage,
    counters_on,
    hold_of,
    key_with,
    limiter_on,
)
from support.seeds import seed_of_tests

from pagoda_gateway.accounts.database import Database
from pagoda_gateway.accounts.keys import ApiKey
from pagoda_gateway.accounts.limits.hold import Amount, Hold
from pagoda_gateway.accounts.limits.limiter import NO_END_SECONDS, Limiter
from pagoda_gateway.accounts.tenancy.tenancy import Tenancy
from pagoda_gateway.accounts.tenancy.tenants import Tenants

pytestmark = pytest.mark.integration

KEYS = ("key-1", "key-2", "key-3")
ORGANISATIONS = ("acme", "other")
ORGANISATION = {"tokens_per_minute": 900, "daily_budget_micros": 9000, "concurrent_requests": 9}
TENANT = {
    "requests_per_minute": 12, "tokens_per_minute": 600, "concurrent_requests": 6,
    "daily_budget_micros": 7000, "monthly_budget_micros": 20_000,
}  # fmt: skip
KEY = {"requests_per_minute": 6, "concurrent_requests": 3, "daily_budget_micros": 4000}


def key_named(name: str, organisation: str) -> ApiKey:
    made = key_with(key=KEY, tenant=TENANT, organisation=ORGANISATION)
    names = {"key": name, "tenant": made.tenant, "organisation": organisation}
    own = tuple(replace(scope, name=names[scope.kind]) for scope in made.scopes)
    return ApiKey(name, made.tenant, organisation=organisation, scopes=own)


def limits_of(scope: str) -> dict[str, int]:
    return ORGANISATION if scope in ORGANISATIONS else TENANT if scope == "tenant" else KEY


@dataclass
class Request:
    """A request that was let in, as the model knows it."""

    hold: Hold
    at: float
    tokens: int  # reserved, then used
    is_live: bool = True
    is_in_ledger: bool = False
    is_orphan: bool = False  # its gateway died
    is_forgotten: bool = False  # and then Redis lost its windows: the ledger has money alone

    def is_of(self, scope: str) -> bool:
        return scope in ("tenant", self.hold.organisation, self.hold.key.api_key_id)


@dataclass
class Model:
    """What a plain reading of the limits says."""

    requests: list[Request] = field(default_factory=list)

    def usage(self, scope: str, now: float) -> dict[str, int]:
        own = [r for r in self.requests if r.is_of(scope)]
        minute = [r for r in own if r.at > now - 60 and not r.is_forgotten]
        day = [r for r in own if r.at // 86_400 == now // 86_400]
        return {
            "requests_per_minute": len(minute),
            "tokens_per_minute": sum(r.tokens for r in minute),
            "concurrent_requests": sum(r.is_live for r in own),
            "daily_budget_micros": MICROS_PER_TOKEN * sum(r.tokens for r in day),
        }

    def check(self, now: float) -> None:
        for scope in (*ORGANISATIONS, "tenant", *KEYS):
            limits = limits_of(scope)
            for dimension, amount in self.usage(scope, now).items():
                if dimension in limits:
                    assert amount <= limits[dimension], (scope, dimension, amount)

    def fits_easily(self, key: ApiKey, tokens: int, now: float) -> bool:
        """Whether a request fits even if what left the window a second ago was in it still."""
        for scope in (key.organisation, "tenant", key.api_key_id):
            limits = limits_of(scope)
            used = self.usage(scope, now)
            need = {
                "requests_per_minute": 1, "tokens_per_minute": tokens, "concurrent_requests": 1,
                "daily_budget_micros": MICROS_PER_TOKEN * tokens,
            }  # fmt: skip
            for dimension, limit in limits.items():
                if dimension == "monthly_budget_micros":
                    continue
                amount = used[dimension]
                if dimension.endswith("per_minute"):
                    older = [
                        r for r in self.requests
                        if now - 61.001 < r.at <= now - 60 and r.is_of(scope)
                    ]  # fmt: skip
                    amount += (
                        len(older) if "requests" in dimension else sum(r.tokens for r in older)
                    )
                if amount + need[dimension] > limit:
                    return False
        return True


def names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"r{number}"


@pytest.fixture
async def tenants(database: Database, now: Now) -> Tenants:
    tenancy = Tenancy.of(database, clock=now)
    for organisation in ORGANISATIONS:
        await tenancy.organisations.create(organisation)
    await tenancy.tenants.create("acme-prod", organisation=ORGANISATIONS[0])
    return tenancy.tenants


@pytest.mark.parametrize("has_moves", [False, True], ids=["stays", "moves"])
@pytest.mark.parametrize("has_faults", [False, True], ids=["quiet", "faults"])
async def test_no_limit_is_exceeded_and_nothing_stays_held(
    client: Redis, database: Database, now: Now, tenants: Tenants, has_faults: bool, has_moves: bool
) -> None:
    rng = random.Random(seed_of_tests())
    limiters = [limiter_on(client, database, now) for _ in range(2)]
    organisation = ORGANISATIONS[0]
    model, name, num_taken, num_refused = Model(), names(), 0, 0
    owners: dict[str, Limiter] = {}
    for _ in range(400):
        action = rng.random()
        live = [r for r in model.requests if r.is_live]
        if action < 0.5:
            limiter, tokens = rng.choice(limiters), rng.randint(1, 250)
            key = key_named(rng.choice(KEYS), organisation)
            hold = hold_of(next(name), key, tokens)
            fits = model.fits_easily(key, tokens, now())
            answer = await limiter.take(hold)
            if answer.kind == "taken":
                num_taken += 1
                model.requests.append(Request(hold, now(), tokens))
                owners[hold.request_id] = limiter
            else:
                num_refused += 1
                assert has_faults or not fits, answer.excesses
        elif action < 0.75 and live:
            request = rng.choice(live)
            request.tokens = rng.randint(0, request.tokens)
            request.is_live = False
            used = Amount(request.tokens, MICROS_PER_TOKEN * request.tokens)
            owners[request.hold.request_id].settle(request.hold, used)
            await owners[request.hold.request_id].flush()
        elif action < 0.85:
            for request in model.requests:  # the ledger lags, by nothing or by a lot
                if not request.is_live and not request.is_in_ledger and rng.random() < 0.5:
                    await in_ledger(database, request)
        elif has_faults and action < 0.9:
            await client.flushall()
            for request in model.requests:
                request.is_forgotten = request.is_orphan
            for limiter in limiters:  # within their tick
                await limiter.tick()
        elif has_faults and action < 0.92:
            dead = limiters.pop(rng.randrange(2))
            limiters.append(limiter_on(client, database, now))
            for request in model.requests:
                if owners[request.hold.request_id] is dead:
                    # Records of what it began are in the ledger, and nobody ends them yet.
                    await in_ledger(database, request)
                    request.is_orphan = True
                    owners[request.hold.request_id] = limiters[-1]
                    if request.is_live:
                        # Its clients are gone; what they were billed is known later.
                        request.is_live = False
                        request.tokens = 0
                        request.is_in_ledger = True
        elif has_moves and action > 0.95:
            now.seconds += 0.001  # what comes in the very moment is the new one's
            (organisation,) = set(ORGANISATIONS) - {organisation}
            await tenants.update("acme-prod", {"organisation": organisation})
        now.seconds += rng.choice([0.0, 0.3, 2.0, 9.0])
        for limiter in limiters:
            await limiter.tick()
            await limiter.settle_lost()
        model.check(now())
    assert num_taken > 30
    assert num_refused > 10
    for request in model.requests:
        if request.is_live:
            owners[request.hold.request_id].settle(request.hold, Amount(request.tokens, 0))
    now.seconds += NO_END_SECONDS + 61
    for _ in range(3):
        for limiter in limiters:
            await limiter.tick()
            await limiter.settle_lost()
        now.seconds += 3601
    counters = counters_on(client, now)
    for name_of_key in KEYS:
        for usage in [
            *await counters.usage(key_named(name_of_key, ORGANISATIONS[0]).scopes),
            *await counters.usage(key_named(name_of_key, ORGANISATIONS[1]).scopes),
        ]:
            assert (usage.requests, usage.tokens, usage.running) == (0, 0, 0)
            assert (usage.day_held, usage.month_held) == (0, 0)


async def in_ledger(database: Database, request: Request) -> None:
    request.is_in_ledger = True
    await apply_usage(
        database,
        request.hold,
        opened=request.at,
        closed=None if request.is_live else request.at + 1,
        num_output_tokens=request.tokens,
        max_output_tokens=0 if request.is_live else request.tokens,
    )
