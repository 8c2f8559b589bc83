"""Responses that are made while nobody waits for them."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pagoda_gateway.sequences.generation import Generation
from pagoda_runtime.tasks.background_tasks import BackgroundTasks


class BackgroundResponses:
    """Generations that run, by their tenant and their response's id.

    Each holds a slot of the gateway, so there are no more than requests may be in flight.
    """

    def __init__(self) -> None:
        self._tasks = BackgroundTasks()
        self._running: dict[tuple[str, str], Generation] = {}

    def start(self, tenant: str, generation: Generation, answer: Coroutine[Any, Any, None]) -> None:
        """Run `answer`, which runs the generation, to its end."""
        name = tenant, generation.identity.object_id
        self._running[name] = generation
        task = self._tasks.start(answer, name=f"response {generation.identity.request_id}")
        task.add_done_callback(lambda _: self._running.pop(name, None))

    def is_running(self, tenant: str, response_id: str) -> bool:
        """Whether it runs here, and nobody has ended it."""
        return (tenant, response_id) in self._running

    def has_begun(self, tenant: str, response_id: str) -> bool:
        """Whether it runs and has a token."""
        generation = self._running.get((tenant, response_id))
        return generation is not None and bool(generation.sequences[0].token_ids)

    def stop(self, tenant: str, response_id: str) -> None:
        """End it now, if it runs; its worker hears of it as where a client goes away."""
        generation = self._running.pop((tenant, response_id), None)
        if generation is not None:
            generation.disconnect()

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
