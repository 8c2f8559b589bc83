"""What a limiter asks of its counters, which here are told what to say."""

import asyncio
from typing import Any

import pytest
from support.clocks import Now
from support.limits import hold_of, key_with

from pagoda_gateway.accounts.limits import limiter as module
from pagoda_gateway.accounts.limits.counters import Answer, CountersError, Generation
from pagoda_gateway.accounts.limits.limiter import GRACE_SECONDS, POLICY_SECONDS, Limiter


class Told:
    """Counters of an age, which may be down for all but probes."""

    def __init__(self) -> None:
        self.age_ms = 0
        self.is_down = False
        self.is_open = False
        self.evicts = False
        self.num_policy_checks = 0

    async def generation(self, *, is_probe: bool = False) -> Generation:
        if self.is_down and not is_probe:
            raise CountersError("down")
        self.is_down = False
        return Generation("1-a", self.age_ms, 0)

    async def check_policy(self) -> None:
        self.num_policy_checks += 1
        if self.evicts:
            raise CountersError("it evicts")

    async def open(self, organisation: str, generation: str) -> None:
        self.is_open = True

    async def reserve(self, hold: Any) -> Answer:
        return Answer("taken" if self.is_open else "new")

    async def lost(self) -> list[Any]:
        return []


def limiter_of(told: Told) -> Limiter:
    counters: Any = told
    spending: Any = None
    return Limiter(counters, spending, clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("age_ms", "slept"), [(-7_200_000, GRACE_SECONDS), (0, GRACE_SECONDS), (7_200_000, 0.0)]
)
async def test_new_counters_are_waited_for_as_long_as_gateways_need_and_no_longer(
    monkeypatch: pytest.MonkeyPatch, age_ms: int, slept: float
) -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    told = Told()
    told.age_ms = age_ms
    monkeypatch.setattr(module, "asyncio", _with(sleep))
    answer = await limiter_of(told).take(hold_of("r1", key_with(tenant={"requests_per_minute": 1})))
    assert (answer.kind, naps) == ("taken", [slept])


async def test_the_tick_probes_counters_that_are_down() -> None:
    told = Told()
    told.is_down = told.is_open = True
    limiter = limiter_of(told)
    hold = hold_of("r1", key_with(tenant={"requests_per_minute": 1}))
    with pytest.raises(CountersError):
        await limiter.take(hold)
    await limiter.tick()
    assert (await limiter.take(hold)).kind == "taken"


async def test_a_ledger_that_hangs_keeps_no_lease_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLE_LOST_SECONDS", 0.0)
    told, has_ticked = Told(), asyncio.Event()
    counters: Any = told
    spending: Any = None
    limiter = Limiter(counters, spending)

    async def hang() -> None:
        monkeypatch.setattr(limiter, "tick", tick)
        await asyncio.Event().wait()

    async def tick() -> None:
        has_ticked.set()

    monkeypatch.setattr(limiter, "settle_lost", hang)
    running = asyncio.create_task(limiter.run(is_needed=True))
    async with asyncio.timeout(60):
        await has_ticked.wait()
    running.cancel()


async def test_a_redis_that_cannot_be_used_is_said_before_anybody_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    told, said = Told(), asyncio.Queue[str]()
    told.evicts = True
    counters: Any = told
    spending: Any = None
    limiter = Limiter(counters, spending, on_state=said.put_nowait)
    running = asyncio.create_task(limiter.run(is_needed=False))
    async with asyncio.timeout(60):
        assert await said.get() == "it evicts"
        told.evicts = False
        assert await said.get() == ""
    running.cancel()


async def test_a_policy_that_changes_is_found_within_a_minute() -> None:
    told, now = Told(), Now()
    told.is_open = True
    counters: Any = told
    spending: Any = None
    limiter = Limiter(counters, spending, clock=now)
    hold = hold_of("r1", key_with(tenant={"requests_per_minute": 1}))
    await limiter.tick()
    told.evicts = True
    await limiter.tick()
    assert told.num_policy_checks == 1
    now.seconds += POLICY_SECONDS
    with pytest.raises(CountersError):
        await limiter.tick()
    with pytest.raises(CountersError, match="it evicts"):
        await limiter.take(hold)
    told.evicts = False
    assert (await limiter.take(hold)).kind == "taken"


def _with(sleep: Any) -> Any:
    """Return asyncio with another sleep."""

    class Patched:
        def __getattr__(self, name: str) -> Any:
            return sleep if name == "sleep" else getattr(asyncio, name)

    return Patched()
