"""Responses that are made while nobody waits for them."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pagoda_gateway.responses.event_log import EventLog
from pagoda_gateway.responses.serializer import ResponseSerializer
from pagoda_runtime.tasks.background_tasks import BackgroundTasks


class BackgroundResponses:
    """Generations that run, by their tenant and their response's id.

    Each holds a slot of the gateway, so there are no more than requests may be in flight.
    """

    def __init__(self) -> None:
        self._tasks = BackgroundTasks()
        self._running: dict[tuple[str, str], ResponseSerializer] = {}

    def start(
        self, tenant: str, serializer: ResponseSerializer, answer: Coroutine[Any, Any, None]
    ) -> None:
        """Run `answer`, which writes with `serializer`, to its end."""
        generation = serializer.generation
        name = tenant, generation.identity.object_id
        self._running[name] = serializer
        task = self._tasks.start(answer, name=f"response {generation.identity.request_id}")
        task.add_done_callback(lambda _: self._running.pop(name, None))

    def is_running(self, tenant: str, response_id: str) -> bool:
        """Whether it runs here, and nobody has ended it."""
        return (tenant, response_id) in self._running

    def has_begun(self, tenant: str, response_id: str) -> bool:
        """Whether it runs and has a token."""
        running = self._running.get((tenant, response_id))
        return running is not None and bool(running.generation.sequences[0].token_ids)

    def log_of(self, tenant: str, response_id: str) -> EventLog | None:
        """Return the events of one that runs here; None: it does not, or has none."""
        running = self._running.get((tenant, response_id))
        return None if running is None else running.log

    def stop(self, tenant: str, response_id: str) -> None:
        """End it now, if it runs; its worker hears of it as where a client goes away."""
        stopped = self._running.pop((tenant, response_id), None)
        if stopped is not None:
            stopped.generation.disconnect()

    async def end_unwanted(self, wanted: Callable[[], Awaitable[set[tuple[str, str]]]]) -> None:
        """End those that were cancelled or deleted at another replica.

        Args:
            wanted: returns tenant and id of those that go on; nobody asks while nothing runs.
        """
        if here := set(self._running):
            for tenant, response_id in here - await wanted():
                self.stop(tenant, response_id)

    async def close(self) -> None:
        """End all of them."""
        await self._tasks.close()
