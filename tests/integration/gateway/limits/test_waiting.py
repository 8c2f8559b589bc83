"""Who waits for room in his limits, and what he may is changed meanwhile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from support.replicas import Client, Replicas, running_replicas

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    folder = tmp_path_factory.mktemp("waiting")
    async with running_replicas(folder, model_folder, limit_queue_seconds=60.0) as running:
        yield running


@contextlib.asynccontextmanager
async def waiting(client: Client) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """Have the client's only place taken, and yield a request that waits for it."""
    replicas = client.replicas
    lines = replicas.first.gateway.limits.lines
    for worker in replicas.workers:
        worker.gate_index = 1
    async with client.stream() as held:
        assert held.status_code == 200
        await running(replicas, 1)
        asking = asyncio.create_task(client.ask())
        async with asyncio.timeout(60):
            while not lines.num_waiting(client.tenant):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        try:
            yield asking
        finally:
            for worker in replicas.workers:
                worker.open_gate()


async def running(replicas: Replicas, number: int) -> None:
    """Return once so many sequences run."""
    async with asyncio.timeout(60):
        while sum(worker.num_running for worker in replicas.workers) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # two workers: no event of both


async def test_a_deleted_tenant_waits_no_longer(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, on_limit="queue")
    async with waiting(client) as asking:
        await replicas.admin("DELETE", f"tenants/{client.tenant}")
        async with asyncio.timeout(60):
            answer = await asking
    assert answer.status_code == 401


async def test_a_tier_that_gives_more_lets_in(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, on_limit="queue")
    async with waiting(client) as asking:
        await replicas.admin("PATCH", f"tiers/{client.tier}", {"concurrent_requests": 5})
        await running(replicas, 2)
    assert (await asking).status_code == 200


async def test_a_tier_that_gives_less_refuses(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, on_limit="queue")
    async with waiting(client) as asking:
        await replicas.admin("PATCH", f"tiers/{client.tier}", {"tokens_per_minute": 1})
        async with asyncio.timeout(60):
            answer = await asking
    assert answer.status_code == 429
    assert "It can never run" in answer.json()["error"]["message"]
