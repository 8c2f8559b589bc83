"""Tasks that live as long as their owner.

Like a TaskGroup, none outlives its owner; unlike one, it may surround other people's code without
wrapping the errors of that code in an ExceptionGroup. The tasks started here handle their own
errors.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class BackgroundTasks:
    """Starts tasks, remembers them, and ends them with `close`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(
        self, work: Coroutine[Any, Any, Any], *, name: str | None = None
    ) -> asyncio.Task[Any]:
        """Run `work` until it ends or `close` cancels it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    async def close(self, *, grace_seconds: float = 0.0) -> None:
        """Give running tasks `grace_seconds`, then cancel and await them."""
        if self._tasks and grace_seconds > 0:
            await asyncio.wait(self._tasks, timeout=grace_seconds)
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %s failed", task.get_name(), exc_info=error)
