import asyncio
import logging

import pytest

from pagoda_runtime.tasks.background_tasks import BackgroundTasks


async def test_close_cancels_and_awaits() -> None:
    tasks, ended = BackgroundTasks(), asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tasks.start(forever())
    await asyncio.sleep(0)
    await tasks.close()

    assert ended.is_set()
    assert len(tasks) == 0


async def test_close_lets_work_finish_within_the_grace() -> None:
    tasks, finished, go = BackgroundTasks(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await go.wait()
        finished.set()

    tasks.start(work())
    go.set()
    await tasks.close(grace_seconds=5)

    assert finished.is_set()


async def test_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    tasks = BackgroundTasks()

    async def fail() -> None:
        raise ValueError("boom")

    with caplog.at_level(logging.ERROR):
        await asyncio.wait([tasks.start(fail(), name="worker")])
        await tasks.close()

    assert "worker" in caplog.text
