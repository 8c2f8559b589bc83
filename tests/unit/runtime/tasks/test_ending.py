"""Tasks that are to end do, also where a library swallows a cancellation."""

import asyncio

from pagoda_runtime.tasks.ending import end


async def test_a_swallowed_cancellation_is_said_again() -> None:
    num_swallowed = 0

    async def stubborn() -> None:
        nonlocal num_swallowed
        while num_swallowed < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                num_swallowed += 1

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end(task)
    assert (task.done(), num_swallowed) == (True, 2)


async def test_what_a_task_does_at_its_end_is_awaited_and_its_error_is_not_ours() -> None:
    said: list[str] = []

    async def polite() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            said.append("goodbye")

    async def failing() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError

    async def nothing() -> None:
        return

    tasks = [asyncio.create_task(work) for work in (polite(), failing(), nothing())]
    await asyncio.sleep(0)
    await end(*tasks)
    assert said == ["goodbye"]
    assert isinstance(tasks[1].exception(), RuntimeError)
    assert tasks[2].result() is None
    await end()
