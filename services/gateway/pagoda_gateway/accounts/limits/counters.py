"""Counters of limits in Redis: one script, which takes all dimensions of a request or none.

Fails fast: one deadline for each call, and while Redis is known to be down none but probes.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.accounts.limits.hold import Hold, scope_name
from pagoda_runtime.tasks.background_tasks import BackgroundTasks
from pagoda_runtime.tasks.breaker import Breaker

logger = logging.getLogger(__name__)

PREFIX = "pagoda:limits:2:"  # the number is of what is kept: see the script
SCRIPT = "\n".join(
    Path(__file__).with_name(name).read_text() for name in ("clock.lua", "counters.lua")
)
LEASE_SECONDS = 10.0
FORGET_SECONDS = 600.0  # of what was settled and waits for counters to be seeded
MAX_REASON_CHARACTERS = 200
MAX_CONNECTIONS = 16  # one for each organisation that is asked for, and the background
RESERVE_AT_ONCE = 64

Dimension = Literal["requests", "tokens", "running", "day", "month"]
_LIMITS: dict[Dimension, str] = {
    "requests": "requests_per_minute",
    "tokens": "tokens_per_minute",
    "running": "concurrent_requests",
    "day": "daily_budget_micros",
    "month": "monthly_budget_micros",
}


class CountersError(Exception):
    """Redis does not answer, or cannot be trusted with counters."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Which counters these are.

    Attributes:
        name: another one after a loss.
        age_ms: of the counters.
        calendar_ms: since 1970; which day it is for budgets.
    """

    name: str
    age_ms: int
    calendar_ms: int


@dataclass(frozen=True, slots=True)
class HeardTime:
    """The counters' time, as a gateway heard it; the script needs it to see steps of a clock.

    Attributes:
        generation: whose time.
        now_ms: what they said.
        asked_seconds: when they were asked, on a clock that nobody sets.
        heard_seconds: when they had answered.
    """

    generation: str
    now_ms: int
    asked_seconds: float
    heard_seconds: float

    def as_witness(self, now: float) -> dict[str, Any]:
        """Return between which times it is now."""
        return {
            "generation": self.generation,
            "least": self.now_ms + int(1000 * (now - self.heard_seconds)),
            "most": self.now_ms + math.ceil(1000 * (now - self.asked_seconds)),
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What one scope uses now: amounts, and ms until the windows are empty."""

    requests: int
    requests_reset_ms: int
    tokens: int
    tokens_reset_ms: int
    running: int
    day_spent: int
    day_held: int
    month_spent: int
    month_held: int


@dataclass(frozen=True, slots=True)
class Excess:
    """A dimension in which a request does not fit.

    Attributes:
        scope: whose limit.
        dimension: which one.
        used: for good, or until it leaves the window.
        held: by requests in flight; some of it may come back.
        wait_ms: until it fits if nobody else comes; None: when others end.
    """

    scope: LimitScope
    dimension: Dimension
    used: int
    held: int
    wait_ms: int | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a try to take a hold.

    Attributes:
        kind: taken, refused; new: the organisation has to be opened first; seed: `scope` has to be
            seeded first; void: the request has been given up.
        day: whose budget pays, days since 1970.
        excesses: why it was refused.
        usages: of each scope, with this request if it was taken.
        scope: see `kind`.
    """

    kind: Literal["taken", "refused", "new", "seed", "void"]
    day: int = 0
    excesses: tuple[Excess, ...] = ()
    usages: tuple[Usage, ...] = ()
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """A hold whose gateway is gone; what it used is not known."""

    organisation: str
    request_id: str
    age_ms: int
    tokens: int
    micros: int


_Waiting = tuple[Hold, "asyncio.Future[Answer]"]


class Counters:
    """Talks to Redis. Every call raises CountersError where Redis does not do what it should."""

    def __init__(
        self,
        redis: Redis,
        *,
        timeout_seconds: float,
        clock: Callable[[], float] | None = None,
        monotonic: Callable[[], float] | None = None,
        breaker: Breaker | None = None,
    ) -> None:
        """Use a client.

        Args:
            redis: never asked before the first call.
            timeout_seconds: of each call.
            clock: Unix seconds; None: Redis' own, the same one for all replicas.
            monotonic: of this process; None: `clock`, if there is one.
            breaker: says whether Redis is down.
        """
        self._redis = redis
        self._script = redis.register_script(SCRIPT)
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._monotonic = monotonic or clock or time.monotonic
        self._heard: HeardTime | None = None
        # How long it stays open does not matter: nobody asks by himself, but the probes do.
        self._breaker = breaker or Breaker(open_seconds=0.0)
        self._deadlines: set[asyncio.Timeout] = set()  # of calls in flight
        self._waiting: dict[str, list[_Waiting]] = {}  # by organisation; each has a task
        self._tasks = BackgroundTasks()

    async def close(self) -> None:
        """Leave those who still wait without an answer."""
        await self._tasks.close()

    async def check_policy(self) -> None:
        """Raise CountersError if this Redis evicts keys that have no time to live."""
        info = await self._ask(self._redis.info("memory"))
        policy = info.get("maxmemory_policy", "noeviction")
        if policy.startswith("allkeys"):
            raise CountersError(
                f"Redis has maxmemory-policy {policy}: it would forget what tenants use; set "
                "noeviction or volatile-ttl, or name another Redis by "
                "PAGODA_GATEWAY_LIMITS_REDIS_URL"
            )

    async def generation(self, *, is_probe: bool = False) -> Generation:
        """Return which counters these are. A probe asks even if Redis is known to be down."""
        asked = self._monotonic()
        name, now_ms, calendar_ms = await self._call(
            "", "generation", is_probe=is_probe, name=secrets.token_hex(4)
        )
        self._heard = HeardTime(name.decode(), now_ms, asked, self._monotonic())
        return Generation(name.decode(), now_ms - int(name.partition(b"-")[0]), calendar_ms)

    async def reserve(self, hold: Hold) -> Answer:
        """Take all of a hold, or nothing. Repeatable.

        Those of an organisation that come while one is asked for go together.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        organisation = hold.organisation
        if organisation in self._waiting:
            self._waiting[organisation].append((hold, answer))
        else:
            self._waiting[organisation] = [(hold, answer)]
            self._tasks.start(self._reserve_all(organisation), name="limits")
        return await answer

    async def renew(self, organisation: str, holds: Sequence[Hold]) -> list[str]:
        """Prolong the leases of live holds, with what they hold now; return unknown ids."""
        items = [(hold.request_id, hold.amount.tokens, hold.amount.micros) for hold in holds]
        return [name.decode() for name in await self._call(organisation, "renew", items=items)]

    async def put(self, organisation: str, items: Sequence[dict[str, Any]]) -> None:
        """Bring holds to what they are now; see `Hold.as_item`. Repeatable."""
        await self._call(organisation, "put", items=items)

    async def open(self, organisation: str, generation: str) -> None:
        """Begin to count for an organisation, unless the counters are of another generation now."""
        await self._call(organisation, "open", generation=generation)

    async def held_ids(self, organisation: str) -> set[str]:
        """Return the requests that are held here, settled ones of late included."""
        return {name.decode() for name in await self._call(organisation, "held")}

    async def seed(self, organisation: str, scope: str, values: dict[str, Any]) -> None:
        """Say what a scope has spent, unless somebody else has said it; see the script.

        Requests that nobody holds are held for the organisation.
        """
        await self._call(organisation, "seed", scope=scope, **values)

    async def lost(self) -> list[Lost]:
        """Return some holds whose gateway is gone, others each time."""
        return [
            Lost(organisation.decode(), name.decode(), *numbers)
            for organisation, name, *numbers in await self._call("", "unsettled")
        ]

    async def usage(self, scopes: Sequence[LimitScope]) -> list[Usage]:
        """Return what scopes use now."""
        limits = [_limits_of(scope) for scope in scopes]
        return [Usage(*usage) for usage in await self._call("", "usage", scopes=limits)]

    async def _reserve_all(self, organisation: str) -> None:
        """Ask for those who wait, until nobody does."""
        waiting = self._waiting[organisation]
        some: list[_Waiting] = []
        try:
            while waiting:
                some = [one for one in waiting[:RESERVE_AT_ONCE] if not one[1].done()]
                del waiting[:RESERVE_AT_ONCE]
                if some:
                    await self._reserve(organisation, some)
        finally:
            del self._waiting[organisation]
            for _, answer in (*some, *waiting):  # this gateway is closing
                answer.cancel()

    async def _reserve(self, organisation: str, some: Sequence[_Waiting]) -> None:
        items = [
            {
                "id": hold.request_id,
                "tokens": hold.amount.tokens,
                "micros": hold.amount.micros,
                "scopes": [_limits_of(scope) for scope in hold.key.scopes],
            }
            for hold, _ in some
        ]
        try:
            replies = await self._call(organisation, "reserve", items=items)
            answers = [
                _answer(hold.key.scopes, reply)
                for (hold, _), reply in zip(some, replies, strict=True)
            ]
        except Exception as error:  # all who wait have to hear of it
            if not isinstance(error, CountersError):
                logger.exception("the counters' answer cannot be understood")
            for _, waiting in some:
                if not waiting.done():
                    waiting.set_exception(CountersError(str(error)))
            return
        for (_, waiting), answer in zip(some, answers, strict=True):
            if not waiting.done():  # who asked may have gone
                waiting.set_result(answer)

    async def _call(
        self, organisation: str, operation: str, *, is_probe: bool = False, **arguments: Any
    ) -> Any:
        arguments["lease_ms"] = int(1000 * LEASE_SECONDS)
        arguments["forget_ms"] = int(1000 * FORGET_SECONDS)
        if self._clock is not None:
            arguments["wall"] = int(1000 * self._clock())
        if self._heard is not None:
            arguments["witness"] = self._heard.as_witness(self._monotonic())
        arguments["organisation"] = organisation
        script = self._script(keys=[PREFIX], args=[operation, orjson.dumps(arguments)])
        return await self._ask(script, is_probe=is_probe)

    async def _ask(self, call: Any, *, is_probe: bool = False) -> Any:
        if self._breaker.is_open and not is_probe:
            call.close()
            raise CountersError("Redis did not answer a moment ago")
        try:
            async with asyncio.timeout(self._timeout_seconds) as deadline:
                self._deadlines.add(deadline)
                try:
                    answer = await call
                finally:
                    self._deadlines.discard(deadline)
        except (RedisError, OSError, TimeoutError, RuntimeError) as error:
            # A RuntimeError is uvloop's, of a connection that has died unnoticed.
            self._note_failure()
            raise CountersError(f"Redis does not answer: {_reason_of(error)}") from error
        self._breaker.record(has_succeeded=True)
        return answer

    def _note_failure(self) -> None:
        """Have nobody wait on for a Redis that is down."""
        self._breaker.record(has_succeeded=False)
        if self._breaker.is_open:
            for deadline in self._deadlines:
                if not deadline.expired():
                    deadline.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def connected_counters(url: str, *, timeout_seconds: float) -> AsyncIterator[Counters]:
    """Yield counters in the Redis at a URL; nothing is asked of it yet."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        socket_timeout=None,  # each call has its deadline
        retry=Retry(NoBackoff(), 0),
    )
    redis = Redis.from_pool(pool)
    counters = Counters(redis, timeout_seconds=timeout_seconds)
    try:
        yield counters
    finally:
        await counters.close()
        await redis.aclose()


def limit_of(scope: LimitScope, dimension: Dimension) -> int | None:
    """Return a scope's limit in one dimension."""
    limit: int | None = getattr(scope, _LIMITS[dimension])
    return limit


def _limits_of(scope: LimitScope) -> dict[str, Any]:
    limits = {dimension: limit_of(scope, dimension) for dimension in _LIMITS}
    given = {str(name): limit for name, limit in limits.items() if limit is not None}
    return {"name": scope_name(scope), **given}


def _answer(scopes: Sequence[LimitScope], reply: Sequence[Any]) -> Answer:
    kind = reply[0].decode()
    if kind == "seed":
        return Answer(kind, scope=reply[1].decode())
    if len(reply) == 1:
        return Answer(kind)
    return Answer(
        kind,
        day=reply[1],
        excesses=tuple(_excess(scopes, excess) for excess in reply[2]),
        usages=tuple(Usage(*usage) for usage in reply[3]),
    )


def _excess(scopes: Sequence[LimitScope], reply: Sequence[Any]) -> Excess:
    number, dimension, used, held, wait_ms = reply
    wait = None if wait_ms < 0 else wait_ms
    return Excess(scopes[number - 1], dimension.decode(), used, held, wait)


def _reason_of(error: Exception) -> str:
    """Return what went wrong: Redis' words, but those that it only repeats."""
    words = str(error).partition(", with args beginning with")[0]
    words = " ".join(words.split())[:MAX_REASON_CHARACTERS]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
