import asyncio
import random

import pytest

from pagoda_runtime.tasks.ticks import SOON_SECONDS, next_tick, seconds_to_tick


def test_loops_of_all_periods_wake_together() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(100):
        now = rng.uniform(0, 1e6)
        ticks = {now + seconds_to_tick(now, period) for period in (0.25, 0.5, 1.0)}
        assert all(tick > now for tick in ticks)
        assert all(abs(tick / 0.25 - round(tick / 0.25)) < 1e-6 for tick in ticks)


@pytest.mark.parametrize("early", [0.0, SOON_SECONDS / 2])
def test_who_wakes_at_a_tick_or_just_before_waits_for_the_one_after(early: float) -> None:
    assert seconds_to_tick(10.0 - early, 0.25) == pytest.approx(0.25 + early)


async def test_loops_that_began_at_any_time_go_on_together() -> None:
    loop, woken = asyncio.get_running_loop(), []

    async def look() -> None:
        await next_tick(0.05)
        woken.append(loop.time())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(look())
    assert len(woken) == 3
    assert woken[-1] - woken[0] < 0.04  # one tick: two would be 0.05 apart
