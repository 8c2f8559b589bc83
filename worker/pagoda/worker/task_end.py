"""Ends tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any

RETRY_SECONDS = 0.25


async def cancel_and_wait(tasks: "Iterable[asyncio.Task[Any]]") -> None:
    """Cancel tasks until they have ended.

    Once is not enough: before Python 3.12 `asyncio.wait_for`, which the NATS client uses, swallows
    a cancellation that comes at the moment its future is done.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=RETRY_SECONDS)
