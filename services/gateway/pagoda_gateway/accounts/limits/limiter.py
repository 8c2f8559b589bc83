"""Holds of this gateway's requests: taken from the counters, kept alive, given back.

The counters may vanish at any time. What this gateway holds, and what it settled of late, it says
again to new ones; the rest is in the ledger. New counters let nobody in until every gateway has had
the time to say so.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sqlalchemy.exc import SQLAlchemyError

from pagoda.rpc.v1.account_pb2 import AccountChange
from pagoda_gateway import metrics
from pagoda_gateway.accounts.limits.accounted import UnaccountedError
from pagoda_gateway.accounts.limits.counters import Answer, Counters, CountersError, Lost
from pagoda_gateway.accounts.limits.hold import Amount, Hold, scope_name
from pagoda_gateway.accounts.limits.spending import Spending
from pagoda_runtime.tasks.ticks import seconds_to_tick

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0  # leases are ten times as long
GRACE_SECONDS = 3.0  # a tick of every gateway, and its call
TAKE_SECONDS = 10.0  # to open and seed counters included
MAX_STEPS = 16  # opening, then one seed for each scope; others may be at it
REMEMBER_SECONDS = 600.0  # what was settled; then it is looked for on its way to the ledger
MAX_REMEMBERED = 50_000
PUT_AT_ONCE = 200
SETTLE_LOST_SECONDS = 5.0
# A lost request that the ledger has not heard of by then never began, if the ledger has all that
# was written; one that it has no end of is charged the most it can cost.
NO_END_SECONDS = 3600.0
LOOK_SECONDS = 10.0  # for a Redis that nobody needs yet
POLICY_SECONDS = 60.0  # anybody may change it while Redis runs
CLOSE_SECONDS = 2.0

T = TypeVar("T")


async def _at_once(_generation: str) -> None:
    pass


class Limiter:
    """One gateway's side of all counters."""

    def __init__(
        self,
        counters: Counters,
        spending: Spending,
        *,
        wait_accounted: Callable[[str], Awaitable[None]] = _at_once,
        grace_seconds: float = GRACE_SECONDS,
        on_state: Callable[[str], None] = lambda why_not: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask for nothing yet.

        Args:
            counters: in Redis.
            spending: seeds of budgets.
            wait_accounted: returns once the ledger has what was used before the counters of a
                generation; raises UnaccountedError if that takes long.
            grace_seconds: how old new counters are before they let somebody in.
            on_state: hears why counters cannot be used, and "" when they can.
            clock: of this process.
        """
        self._counters = counters
        self._spending = spending
        self._wait_accounted = wait_accounted
        self._grace_seconds = grace_seconds
        self._on_state = on_state
        self._clock = clock
        self._generation: str | None = None
        self._policy_seconds = -math.inf  # when Redis last had one that counters can live with
        self._holds: dict[str, Hold] = {}  # live
        self._settled: OrderedDict[str, Hold] = OrderedDict()  # of late, the oldest first
        self._unsaid: dict[str, Hold] = {}  # what the counters have not heard
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._releases: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._wake = asyncio.Event()
        self._needed = asyncio.Event()
        self._problem = ""

    def hear(self, change: AccountChange) -> None:
        """Be ready when somebody is given limits: new counters let nobody in at once."""
        if change.tier:
            self._needed.set()

    @property
    def num_live(self) -> int:
        """Requests that hold something."""
        return len(self._holds)

    async def take(self, hold: Hold) -> Answer:
        """Take all of a hold or nothing; the answer is `taken` or `refused`.

        Whoever gets an exception gives the hold up or admits it uncounted: it may be taken.

        Raises:
            CountersError: Redis, or the ledger that seeds it, does not answer.
            UnaccountedError: that ledger does not have all that was used yet.
        """
        self._needed.set()
        try:
            async with asyncio.timeout(TAKE_SECONDS):
                answer = await self._take(hold)
        except TimeoutError as error:
            raise self._noted(CountersError("opening the counters takes too long")) from error
        except UnaccountedError:
            raise  # nothing is wrong with the counters
        except CountersError as error:
            raise self._noted(error) from error.__cause__
        self._note("")
        return answer

    def admit_uncounted(self, hold: Hold) -> None:
        """Let a request run that could not be counted; the counters hear of it later."""
        self._holds[hold.request_id] = hold
        self._say(hold)

    def settle(self, hold: Hold, used: Amount) -> None:
        """Give back what a request did not use."""
        self._end(hold, "settled", used)

    def give_up(self, hold: Hold) -> None:
        """Give all back, if anything was taken: the request never was."""
        self._end(hold, "void", Amount(0, 0))

    async def released(self, organisation: str, timeout_seconds: float) -> None:
        """Return when something was given back here, or after the time."""
        event = self._releases.setdefault(organisation, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await event.wait()

    async def run(self, *, is_needed: bool) -> None:
        """Say what happened, at once, and keep leases, until cancelled.

        `is_needed`: there are limits; else it begins when it hears of some.
        """
        if not is_needed:
            await self._wait_needed()
        async with asyncio.TaskGroup() as tasks:
            # Beside the rest: the ledger may take long, and leases are kept each second.
            tasks.create_task(self._settle_lost_forever(), name="settle lost holds")
            await self._say_forever()

    async def _wait_needed(self) -> None:
        """Wait for the first limit; say meanwhile whether it could be counted."""
        is_usable = False
        while not self._needed.is_set():
            if not is_usable:
                is_usable = await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_usable else LOOK_SECONDS):
                    await self._needed.wait()

    async def _look(self) -> bool:
        try:
            await self._check_generation(is_probe=True)
            self._note("")
            return True
        except CountersError as error:
            self._noted(error)
        except Exception:
            logger.exception("the limits' Redis could not be looked at")
        return False

    async def _settle_lost_forever(self) -> None:
        while True:
            await asyncio.sleep(SETTLE_LOST_SECONDS)
            try:
                await self.settle_lost()
            except CountersError:
                pass  # the tick says so
            except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
                logger.warning("lost requests cannot be looked up in the ledger: %r", error)
            except Exception:
                logger.exception("lost requests could not be settled")

    async def _say_forever(self) -> None:
        next_tick = self._clock()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_tick - self._clock())):
                    await self._wake.wait()
            self._wake.clear()
            is_tick = self._clock() >= next_tick
            try:
                await (self.tick() if is_tick else self.flush())
                self._note("")
            except CountersError as error:
                self._noted(error)
            except Exception:
                logger.exception("the limits' background work failed")
            if is_tick:
                now = self._clock()
                next_tick = now + seconds_to_tick(now, TICK_SECONDS)

    async def close(self) -> None:
        """Say what was not said yet."""
        with contextlib.suppress(TimeoutError, CountersError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.flush()

    async def tick(self) -> None:
        """Look whether the counters are new, keep leases, say what they have not heard.

        Raises:
            CountersError: Redis does not answer.
        """
        await self._check_generation(is_probe=True)
        for organisation, holds in _by_organisation(self._holds.values()):
            for some in _chunks(holds):
                for hold in some:
                    hold.amount = hold.most()
                for request_id in await self._counters.renew(organisation, some):
                    if (known := self._holds.get(request_id)) is not None:
                        known.generation = ""  # somebody thought that this gateway was gone
                        self._say(known)
        await self.flush()
        oldest = self._clock() - REMEMBER_SECONDS
        while self._settled and next(iter(self._settled.values())).ended_seconds < oldest:
            self._settled.popitem(last=False)

    async def flush(self) -> None:
        """Say what the counters have not heard.

        Raises:
            CountersError: Redis does not answer; it is said later.
        """
        if not self._unsaid:
            return
        if self._generation is None:
            await self._check_generation()
        generation = self._generation
        assert generation is not None, "found above"
        unsaid, self._unsaid = self._unsaid, {}
        try:
            for organisation, holds in _by_organisation(unsaid.values()):
                for some in _chunks(holds):
                    now = self._clock()
                    items = [hold.as_item(generation, now) for hold in some]
                    await self._counters.put(organisation, items)
                    for hold in some:
                        hold.generation = generation
                        del unsaid[hold.request_id]
                if (event := self._releases.pop(organisation, None)) is not None:
                    event.set()
        finally:
            self._unsaid = unsaid | self._unsaid

    async def _take(self, hold: Hold) -> Answer:
        if self._generation is None:
            await self._check_generation()
        for _ in range(MAX_STEPS):
            generation = self._generation
            answer = await self._counters.reserve(hold)
            if answer.kind == "new":
                await self._open(hold.organisation)
            elif answer.kind == "seed":
                # Before it is this request's turn: those behind it would wait as long once more.
                await self._wait_accounted((await self._counters.generation()).name)
                await self._seed(hold, answer.scope)
            elif answer.kind == "void":
                raise CountersError("the request has been given up")
            else:
                if answer.kind == "taken":
                    hold.taken_seconds, hold.day = self._clock(), answer.day
                    hold.generation = generation
                    self._holds[hold.request_id] = hold
                return answer
        raise CountersError("the counters are lost again and again")

    async def _check_generation(self, *, is_probe: bool = False) -> int:
        """Learn which counters these are, tell new ones what is held; return their age (ms)."""
        found = await self._counters.generation(is_probe=is_probe)
        name = found.name
        if name != self._generation or self._clock() - self._policy_seconds >= POLICY_SECONDS:
            await self._check_policy()
        if name != self._generation:  # nobody else has found it out meanwhile
            if self._generation is not None:
                logger.warning("Redis has lost the counters of limits: they are made anew")
            self._generation = name
            for hold in (*self._settled.values(), *self._holds.values()):
                self._unsaid.setdefault(hold.request_id, hold)
        return found.age_ms

    async def _check_policy(self) -> None:
        try:
            await self._counters.check_policy()
        except CountersError:
            self._generation = None  # nobody is let in before it is found to be well again
            raise
        self._policy_seconds = self._clock()

    async def _open(self, organisation: str) -> None:
        async with self._alone(organisation) as is_first:
            if not is_first:
                return
            age_ms = await self._check_generation()
            await self.flush()
            # Other gateways say what they hold meanwhile.
            left = self._grace_seconds - age_ms / 1000
            await asyncio.sleep(max(0.0, min(left, self._grace_seconds)))
            if self._generation is None:
                raise CountersError("Redis has become unfit for counters")
            await self._counters.open(organisation, self._generation)

    async def _seed(self, hold: Hold, name: str) -> None:
        scope = next(scope for scope in hold.key.scopes if scope_name(scope) == name)
        async with self._alone(hold.organisation) as is_first:
            if not is_first:
                return
            found = await self._counters.generation()
            at, held = found.calendar_ms / 1000, set[str]()
            try:
                organisations = await self._spending.organisations_of(hold.key, at=at)
                for organisation in organisations:
                    held |= await self._counters.held_ids(organisation)
                spent = await self._spending.of(scope, hold.key, at=at, without=held)
            except (OSError, SQLAlchemyError) as error:  # TimeoutError is an OSError
                raise CountersError(f"the ledger does not say what was spent: {error!r}") from error
            await self._counters.seed(
                hold.organisation,
                name,
                {
                    "day": spent.day,
                    "day_spent": spent.day_spent,
                    "month": spent.month,
                    "month_spent": spent.month_spent,
                    "items": spent.open,
                    "organisations": organisations,
                },
            )

    async def settle_lost(self) -> None:
        """Settle holds of gateways that are gone, as far as the ledger knows what they came to.

        Raises:
            CountersError, TimeoutError, SQLAlchemyError: Redis or the ledger does not answer.
        """
        lost = await self._counters.lost()
        # Else nobody knows whether what the ledger has not heard of ever began.
        is_accounted = any(_is_old(hold) for hold in lost) and await self._is_accounted()
        rows = await self._spending.requests(hold.request_id for hold in lost) if lost else {}
        items: dict[str, list[dict[str, Any]]] = {}
        for hold in lost:
            item = self._item_of_lost(hold, rows.get(hold.request_id), is_accounted=is_accounted)
            if item is not None:
                items.setdefault(hold.organisation, []).append(item)
        for organisation, some in items.items():
            await self._counters.put(organisation, some)

    async def _is_accounted(self) -> bool:
        try:
            await self._wait_accounted(self._generation or "")
        except UnaccountedError:
            return False
        return True

    def _item_of_lost(self, lost: Lost, row: Any, *, is_accounted: bool) -> dict[str, Any] | None:
        """Return what the counters should have in its place; None: nobody knows yet."""
        item = {"id": lost.request_id, "status": "settled", "tokens": lost.tokens}
        if row is None:
            if not (_is_old(lost) and is_accounted):
                return None
            return item | {"status": "void", "tokens": 0, "micros": 0}
        if row["closed_unix_seconds"] is not None:
            return item | {"micros": self._spending.cost_of(row)}
        return item | {"micros": lost.micros} if _is_old(lost) else None

    def _end(self, hold: Hold, status: Any, used: Amount) -> None:
        self._holds.pop(hold.request_id, None)
        hold.status, hold.amount, hold.ended_seconds = status, used, self._clock()
        hold.most = lambda: used  # it is remembered for a while: not with all of its request
        if status == "settled":
            self._settled[hold.request_id] = hold
            if len(self._settled) > MAX_REMEMBERED:
                self._settled.popitem(last=False)
        self._say(hold)

    def _say(self, hold: Hold) -> None:
        self._unsaid[hold.request_id] = hold
        if len(self._unsaid) > MAX_REMEMBERED + len(self._holds):
            self._unsaid.pop(next(iter(self._unsaid)))
            metrics.LIMITS_FORGOTTEN.inc()
        self._needed.set()
        self._wake.set()

    @contextlib.asynccontextmanager
    async def _alone(self, organisation: str) -> AsyncIterator[bool]:
        """Hold an organisation's lock; False: somebody else was at work on it, so look again."""
        lock = self._locks.setdefault(organisation, asyncio.Lock())
        is_first = not lock.locked()
        async with lock:
            yield is_first

    def _noted(self, error: CountersError) -> CountersError:
        self._note(str(error))
        return error

    def _note(self, problem: str) -> None:
        """Tell of a change for the worse or the better; the words of one outage may differ."""
        if bool(problem) == bool(self._problem):
            return
        self._problem = problem
        if problem:
            logger.warning("limits cannot be counted: %s", problem)
        else:
            logger.info("limits are counted again")
        self._on_state(problem)


def _is_old(lost: Lost) -> bool:
    return lost.age_ms >= 1000 * NO_END_SECONDS


def _by_organisation(holds: Iterable[Hold]) -> list[tuple[str, list[Hold]]]:
    found: dict[str, list[Hold]] = {}
    for hold in holds:
        found.setdefault(hold.organisation, []).append(hold)
    return list(found.items())


def _chunks(items: list[T]) -> Iterator[list[T]]:
    for start in range(0, len(items), PUT_AT_ONCE):
        yield items[start : start + PUT_AT_ONCE]
