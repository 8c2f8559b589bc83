import asyncio

import pytest

from pagoda_runtime.tasks.cancellation import cancellation_kept


async def swallow(answer: asyncio.Future[str]) -> str:
    """Return the answer even when cancelled, as `asyncio.wait_for` did before Python 3.12."""
    try:
        return await answer
    except asyncio.CancelledError:
        return "swallowed"


async def test_a_swallowed_cancellation_is_raised_again() -> None:
    started = asyncio.Event()

    async def ask() -> str:
        with cancellation_kept():
            started.set()
            return await swallow(asyncio.get_running_loop().create_future())

    task = asyncio.create_task(ask())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cleaning_up_after_a_cancellation_is_not_disturbed() -> None:
    async def ask() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            with cancellation_kept():
                await asyncio.sleep(0)
            return "cleaned"
        return "not cancelled"

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    task.cancel()

    assert await task == "cleaned"
