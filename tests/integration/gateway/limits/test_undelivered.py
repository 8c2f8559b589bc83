"""What workers computed counts in tokens per minute, whoever got it; bills count what arrived."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.limits import MICROS_PER_TOKEN
from support.replicas import Client, Replicas, running_replicas

from pagoda.rpc.v1 import generate_pb2 as pb
from pagoda_gateway.accounts.limit_scope import LimitScope
from pagoda_gateway.sequences.generation import Generation

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LIMIT = 2000
MAX_WHOLE_TOKENS = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    folder = tmp_path_factory.mktemp("undelivered")
    async with running_replicas(
        folder, model_folder, max_whole_tokens=MAX_WHOLE_TOKENS
    ) as replicas:
        yield replicas


@contextlib.contextmanager
def scripted(replicas: Replicas, **values: Any) -> Iterator[None]:
    """Have both workers do as `values` say until the block ends."""
    before = [{name: getattr(worker, name) for name in values} for worker in replicas.workers]
    for worker in replicas.workers:
        vars(worker).update(values)
    try:
        yield
    finally:
        for worker, was in zip(replicas.workers, before, strict=True):
            vars(worker).update(was)


async def post(client: Client, request_id: str = "", **body: Any) -> httpx.Response:
    return await client.replicas.first.http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": "hello", "max_tokens": 8, "ignore_eos": True, **body},
        headers={**client.headers, **({"x-request-id": request_id} if request_id else {})},
    )


async def running(replicas: Replicas, condition: Callable[[Generation], bool]) -> Generation:
    """Return a generation of the first gateway for which a condition holds, once one is there."""
    generations = replicas.first.gateway.admission._generations
    async with asyncio.timeout(60):
        while not (found := [one for one in generations if condition(one)]):  # noqa: ASYNC110
            await asyncio.sleep(0)
    return found[0]


async def arrived(replicas: Replicas, num_tokens: int) -> Generation:
    """Return the only generation once it has this many tokens, of all its sequences."""
    return await running(
        replicas, lambda one: sum(len(s.token_ids) for s in one.sequences) == num_tokens
    )


async def counted(client: Client) -> int:
    """Return the tokens that count for a client, once its only request holds nothing any more."""
    counters = client.replicas.first.gateway.limits.limiter._counters
    async with asyncio.timeout(60):
        while True:
            (usage,) = await counters.usage([LimitScope("tenant", client.tenant)])
            if usage.requests == 1 and not usage.running:
                return usage.tokens


async def receipt(client: Client, request_id: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with asyncio.timeout(60):
        while "cost" not in found:  # once it is sealed
            answer = await client.replicas.first.http.get(
                f"/v1/receipts/{request_id}", headers=client.headers
            )
            found = answer.json()
    return found


async def check(client: Client, request_id: str, outcome: str, num_computed: int) -> None:
    """Check that a request is billed its prompt alone, and counts with what was computed."""
    billed = await receipt(client, request_id)
    num_prompt_tokens = billed["prompt_tokens"]
    assert num_prompt_tokens > 0
    assert (billed["outcome"], billed["output_tokens"]) == (outcome, 0)
    assert billed["cost"]["micros"] == MICROS_PER_TOKEN * num_prompt_tokens
    assert await counted(client) == num_prompt_tokens + num_computed
    last = await post(client, max_tokens=1)
    left = LIMIT - 2 * num_prompt_tokens - num_computed - 1
    assert last.headers["x-ratelimit-remaining-tokens"] == str(left)


async def test_a_client_that_leaves(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT, daily_budget_micros=10_000)
    with scripted(replicas, gate_index=10):
        asking = asyncio.create_task(post(client, "left", n=4, max_tokens=100))
        await arrived(replicas, 4 * 10)
        asking.cancel()
        await counted(client)
    await check(client, "left", "disconnected", 4 * 10)


async def test_a_deadline(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT)
    with scripted(replicas, gate_index=10):
        asking = asyncio.create_task(post(client, "late", n=4, max_tokens=100))
        generation = await arrived(replicas, 4 * 10)
        generation._expire()  # as its timer has it: none of a second is long enough on any machine
        assert (await asking).status_code == 504
    await check(client, "late", "failed", 4 * 10)


async def test_an_answer_that_is_too_long(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT)
    with scripted(replicas, gate_index=MAX_WHOLE_TOKENS + 1):
        answer = await post(client, "long", max_tokens=200)
    assert answer.json()["error"]["code"] == "answer_too_long"
    await check(client, "long", "failed", MAX_WHOLE_TOKENS + 1)


async def test_a_response_that_is_cancelled(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT)
    http, headers = replicas.first.http, client.headers
    body = {"model": "tiny", "input": "hello", "max_output_tokens": 100, "background": True}
    with scripted(replicas, gate_index=10):
        response = (await http.post("/v1/responses", json=body, headers=headers)).json()
        generation = await arrived(replicas, 10)
        await http.post(f"/v1/responses/{response['id']}/cancel", headers=headers)
        assert await counted(client) == generation.num_prompt_tokens + 10


async def test_a_search_that_its_client_leaves_counts_all_that_it_may_have_come_to(
    replicas: Replicas,
) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT)
    with scripted(replicas, gate_index=0):
        asking = asyncio.create_task(post(client, "sought", n=3, use_beam_search=True))
        await running(replicas, lambda one: one.sequences[0].is_handed_over)
        asking.cancel()
        await counted(client)
    await check(client, "sought", "disconnected", 3 * 8)


async def test_what_a_worker_fails_over_counts_once(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT)
    with scripted(replicas, gate_index=3, finish_error="out of blocks"):
        answer = await post(client)
    assert answer.status_code == 500
    asked = [
        request
        for worker in replicas.workers
        for request in worker.requests
        if request.request_id == answer.headers["x-request-id"]
    ]
    assert len(asked) > 1
    assert await counted(client) == len(asked[0].prompt_token_ids) + 3


async def test_what_no_worker_takes_counts_nothing(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=LIMIT)
    with scripted(replicas, admit_status=pb.ADMIT_STATUS_DRAINING):
        assert (await post(client)).status_code == 503
    assert await counted(client) == 0
