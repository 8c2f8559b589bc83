"""Who waits for room in a limit, and in which order."""

import asyncio

import pytest

from pagoda_gateway.accounts.limits.waiting_line import WaitingLines


async def test_first_come_first_served_and_places_are_freed() -> None:
    lines, served = WaitingLines(3), list[int]()

    async def wait(number: int) -> None:
        async with lines.turn("t", 5):
            served.append(number)
            await asyncio.sleep(0)

    tasks = []
    async with lines.turn("t", 5):
        for number in range(4):
            tasks.append(asyncio.create_task(wait(number)))
            await asyncio.sleep(0)
        assert lines.is_full("t")
        assert not lines.is_full("other")
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
    await asyncio.wait(tasks)
    assert served == [0, 2, 3]
    assert lines.num_waiting("t") == 0


async def test_patience_ends() -> None:
    lines = WaitingLines(3)
    async with lines.turn("t", 5):
        with pytest.raises(TimeoutError):
            async with lines.turn("t", 0):
                raise AssertionError("somebody is before it")
        assert lines.num_waiting("t") == 1
    async with lines.turn("t", 0.01):
        pass
