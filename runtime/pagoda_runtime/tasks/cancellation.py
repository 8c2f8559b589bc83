"""Keeps a cancellation that a library swallowed.

Before Python 3.12 `asyncio.wait_for`, which the NATS client waits with, returns its result when a
cancellation arrives in the same moment as the answer, and the cancellation is lost: a request that
was aborted would go on for ever.
"""

import asyncio
import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def cancellation_kept() -> Iterator[None]:
    """Raise CancelledError on leaving if the task was cancelled inside, whatever came of it."""
    task = asyncio.current_task()
    num_before = task.cancelling() if task is not None else 0
    try:
        yield
    finally:
        if task is not None and task.cancelling() > num_before:
            raise asyncio.CancelledError
