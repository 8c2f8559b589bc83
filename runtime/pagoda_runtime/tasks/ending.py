"""Ends tasks for sure: a library may swallow a cancellation, see `cancellation`."""

import asyncio
from collections.abc import Collection
from typing import Any

CANCEL_AGAIN_SECONDS = 0.5


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks, and again every half second, until all are done. Never raises their errors.

    So what one does at its end may take half a second.
    """
    running: Collection[asyncio.Task[Any]] = [task for task in tasks if not task.done()]
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=CANCEL_AGAIN_SECONDS)
