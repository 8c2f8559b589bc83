"""Two gateways with one ledger and one Redis: what clients meet at their limits."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis
from support.batch_files import answers, numbered
from support.limits import MICROS_PER_TOKEN
from support.replicas import ADMIN_KEY, MAX_TOKENS, Client, Replicas, running_replicas, set_price
from support.running_gateway import CHAT, cancel_requests, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, redis_server, settings_for

from pagoda_gateway.accounts.limits import limiter
from pagoda_gateway.http.generation import response
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Replicas]:
    async with running_replicas(tmp_path_factory.mktemp("limits"), model_folder) as running:
        yield running


@contextlib.contextmanager
def gated(replicas: Replicas, index: int = 1) -> Any:
    """Have every sequence wait before an output index until the block ends."""
    for worker in replicas.workers:
        worker.gate_index = index
    try:
        yield
    finally:
        for worker in replicas.workers:
            worker.gate_index = None


def open_gates(replicas: Replicas) -> None:
    for worker in replicas.workers:
        worker.open_gate()


async def in_flight(replicas: Replicas, number: int) -> None:
    """Return once so many sequences have their first token and wait, or none is left."""
    async with asyncio.timeout(60):
        while sum(worker.num_running for worker in replicas.workers) != number:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # two workers: no event of both


async def prompt_tokens(client: Client) -> int:
    body = {"model": "tiny", "messages": CHAT["messages"]}
    answer = await client.replicas.first.http.post("/tokenize", json=body, headers=client.headers)
    return int(answer.json()["count"])


async def test_no_tier_no_headers_and_no_redis(replicas: Replicas) -> None:
    client = await replicas.client()
    before = await commands(replicas)
    answer = await client.ask()
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert await commands(replicas) - before == 0


async def commands(replicas: Replicas) -> int:
    """How often scripts ran on keys of an organisation."""
    async with Redis.from_url(replicas.redis.url) as redis:
        return len([key async for key in redis.scan_iter("pagoda:limits:2:scope:*")])


async def test_the_router_does_not_hear_of_what_a_limit_refuses(replicas: Replicas) -> None:
    client = await replicas.client(requests_per_minute=1)
    assert (await client.ask()).status_code == 200
    before = num_routed(replicas)
    assert (await client.ask()).status_code == 429
    assert (await (await replicas.client()).ask()).status_code == 200  # whose question comes later
    assert num_routed(replicas) == before + 1


def num_routed(replicas: Replicas) -> int:
    """How many questions the routers of both have heard."""
    return sum(len(running.router.requests) for running in (replicas.first, replicas.second))


@pytest.mark.parametrize("where", ["keys", "tenants", "organisations"])
async def test_requests_per_minute_on_both(replicas: Replicas, where: str) -> None:
    client = await replicas.client(where=where, requests_per_minute=3)
    for left, second in ((2, False), (1, True), (0, False)):
        answer = await client.ask(second=second)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        assert answer.headers["x-ratelimit-reset-requests"].startswith(("1m", "59.", "60", "58"))
    answer = await client.ask(second=True)
    assert answer.status_code == 429
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
    noun = {"keys": "API key", "tenants": "tenant", "organisations": "organisation"}[where]
    assert f"{noun} '" in error["message"]
    assert "requests per minute: limit 3, used 3, requested 1" in error["message"]
    assert 55 <= int(answer.headers["retry-after"]) <= 61
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {"prompt": "hello", "max_tokens": 4}),
        ("embeddings", {"input": "hello"}),
        ("responses", {"input": "hello", "max_output_tokens": 4}),
        ("messages", {"messages": CHAT["messages"], "max_tokens": 4}),
    ],
)
async def test_every_endpoint_is_limited(
    replicas: Replicas, path: str, body: dict[str, Any]
) -> None:
    client = await replicas.client(requests_per_minute=1)

    async def post() -> httpx.Response:
        http = replicas.first.http
        return await http.post(
            f"/v1/{path}", json={"model": "tiny", **body}, headers=client.headers
        )

    first, second = await post(), await post()
    assert (first.status_code, second.status_code) == (200, 429), first.text
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    assert "requests per minute: limit 1" in second.json()["error"]["message"]
    assert "retry-after" in second.headers


async def test_official_client_understands_it(replicas: Replicas) -> None:
    client = await replicas.client(requests_per_minute=1)
    async with openai.AsyncOpenAI(
        base_url=f"{replicas.first.url}/v1", api_key=client.key, max_retries=0
    ) as sdk:
        for stream in (False, True):
            call = sdk.chat.completions.create(
                model="tiny", messages=CHAT["messages"], max_tokens=2, stream=stream
            )
            if not stream:
                await call
                continue
            with pytest.raises(openai.RateLimitError) as refused:
                await call
            assert refused.value.code == "rate_limit_exceeded"


async def test_tokens_are_taken_and_the_unused_come_back(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=400)
    prompt = await prompt_tokens(client)
    with gated(replicas):
        async with client.stream(max_tokens=100, n=2) as answer:
            assert answer.headers["x-ratelimit-remaining-tokens"] == str(400 - prompt - 200)
            await in_flight(replicas, 2)
            again = await client.ask(second=True, max_tokens=300)
            assert again.status_code == 429
            assert again.json()["error"]["type"] == "tokens"
            open_gates(replicas)
            await answer.aread()
    used = 2 * prompt + int((await receipt_of(client, answer))["output_tokens"]) + 1
    last = await client.ask(max_tokens=1)
    assert last.headers["x-ratelimit-remaining-tokens"] == str(400 - used)


async def receipt_of(client: Client, answer: httpx.Response) -> dict[str, Any]:
    path = f"/v1/receipts/{answer.headers['x-request-id']}"
    found = await client.replicas.first.http.get(path, headers=client.headers)
    return dict(found.json())


async def test_what_never_fits_says_so_and_is_not_tried_again(replicas: Replicas) -> None:
    client = await replicas.client(tokens_per_minute=50, daily_budget_micros=1_000_000)
    answer = await client.ask(max_tokens=60)
    assert answer.status_code == 429
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert "limit 50" in answer.json()["error"]["message"]
    assert "can never run" in answer.json()["error"]["message"]


async def test_twenty_calls_at_a_budget_for_four(replicas: Replicas) -> None:
    probe = await replicas.client()
    tokens = await prompt_tokens(probe) + MAX_TOKENS
    budget = 4 * tokens * MICROS_PER_TOKEN
    client = await replicas.client(daily_budget_micros=budget)
    with gated(replicas):
        calls = [
            asyncio.create_task(client.ask(second=bool(number % 2), ignore_eos=True))
            for number in range(20)
        ]
        await in_flight(replicas, 4)
        async with asyncio.timeout(60):
            while sum(call.done() for call in calls) < 16:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        open_gates(replicas)
        found = await asyncio.gather(*calls)
    statuses = sorted(answer.status_code for answer in found)
    assert statuses == [200] * 4 + [429] * 16
    # All of the budget is spent, and no more: the next is out of quota, once the gateways have told
    # Redis that what the four held is spent.
    async with asyncio.timeout(60):
        while (error := (answer := await client.ask()).json()["error"])["type"] == "requests":
            pass
    assert (answer.status_code, error["code"], error["type"]) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert answer.headers["x-should-retry"] == "false"
    assert int(answer.headers["retry-after"]) == pytest.approx(86_400 - time.time() % 86_400, abs=5)


async def test_a_client_that_leaves_gives_all_back(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, tokens_per_minute=200)
    with gated(replicas):
        async with client.stream(max_tokens=100) as answer:
            assert answer.status_code == 200
            await in_flight(replicas, 1)
            refused = await client.ask(second=True)
            assert refused.json()["error"]["message"].count("concurrent requests: limit 1") == 1
    async with asyncio.timeout(60):
        while (await client.ask(second=True)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    await in_flight(replicas, 0)


async def test_an_account_that_is_put_off_holds_nothing_of_its_key(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response, "SETTLE_SECONDS", 600.0)
    client = await replicas.client(concurrent_requests=1, on_limit="queue")
    try:
        async with asyncio.timeout(60):
            for _ in range(3):
                assert (await client.ask()).status_code == 200
        assert replicas.first.gateway.admission.num_requests == 3  # none is settled
    finally:
        cancel_requests()
    assert await replicas.first.gateway.admission.drain(60)


async def test_queued_streams_hear_why_and_run_in_turn(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, on_limit="queue")
    with gated(replicas):
        async with client.stream() as held, client.stream() as waiting:
            assert held.status_code == waiting.status_code == 200
            lines = waiting.aiter_lines()
            assert await anext(lines) == ": keep-alive limits: running of the tenant"
            await in_flight(replicas, 1)
            third = asyncio.create_task(client.ask())
            async with asyncio.timeout(60):
                while replicas.first.gateway.limits.lines.num_waiting(client.tenant) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            full = await client.ask()
            assert full.status_code == 429
            assert "2 of your requests wait" in full.json()["error"]["message"]
            for worker in replicas.workers:
                worker.gate_index = None
            open_gates(replicas)
            text = "\n".join([line async for line in lines])
            assert text.rstrip().endswith("data: [DONE]")
            assert (await third).status_code == 200
    assert replicas.first.gateway.limits.lines.num_waiting(client.tenant) == 0


async def test_queued_client_that_leaves_frees_its_place(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, on_limit="queue")
    lines = replicas.first.gateway.limits.lines
    with gated(replicas):
        async with client.stream():
            await in_flight(replicas, 1)
            async with client.stream() as waiting:
                assert waiting.status_code == 200
                assert lines.num_waiting(client.tenant) == 1
            async with asyncio.timeout(60):
                while lines.num_waiting(client.tenant):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        open_gates(replicas)
    async with asyncio.timeout(60):
        while (await client.ask()).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_the_queue_cannot_wait_for_is_refused_at_once(replicas: Replicas) -> None:
    client = await replicas.client(requests_per_minute=1, on_limit="queue")
    assert (await client.ask()).status_code == 200
    answer = await client.ask()
    assert (answer.status_code, int(answer.headers["retry-after"]) > 5) == (429, True)


async def test_a_changed_tier_counts_at_once_on_both(replicas: Replicas) -> None:
    client = await replicas.client(requests_per_minute=1)
    assert (await client.ask()).status_code == 200
    assert (await client.ask(second=True)).status_code == 429
    await replicas.admin("PATCH", f"tiers/{client.tier}", {"requests_per_minute": 100})
    async with asyncio.timeout(60):
        while (await client.ask(second=True)).status_code != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await client.ask()).status_code == 200


async def test_redis_that_lost_everything_changes_no_budget(replicas: Replicas) -> None:
    probe = await replicas.client()
    tokens = await prompt_tokens(probe) + MAX_TOKENS
    client = await replicas.client(daily_budget_micros=3 * tokens * MICROS_PER_TOKEN)
    assert (await client.ask(ignore_eos=True)).status_code == 200
    with gated(replicas):
        async with client.stream(second=True, ignore_eos=True) as held:
            await in_flight(replicas, 1)
            async with Redis.from_url(replicas.redis.url) as redis:
                await redis.flushall()
            calls = [client.ask(second=bool(n % 2), ignore_eos=True) for n in range(8)]
            waiting = [asyncio.create_task(call) for call in calls]
            async with asyncio.timeout(60):
                while sum(call.done() for call in waiting) < 7:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            open_gates(replicas)
            await held.aread()
            found = await asyncio.gather(*waiting)
    assert sorted(answer.status_code for answer in found) == [200] + [429] * 7
    assert (await client.ask(max_tokens=1)).json()["error"]["code"] == "insufficient_quota"


async def test_batch_lines_wait_for_rates_and_end_with_a_budget(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=2, daily_budget_micros=10 * MICROS_PER_TOKEN)
    async with openai.AsyncOpenAI(
        base_url=f"{replicas.first.url}/v1", api_key=client.key, max_retries=0
    ) as sdk:
        file = await sdk.files.create(
            file=("in.jsonl", numbered(8, max_tokens=1, ignore_eos=True)), purpose="batch"
        )
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        async with asyncio.timeout(60):
            while batch.status not in ("completed", "failed"):
                await asyncio.sleep(0.05)
                batch = await sdk.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        done, failed = batch.request_counts.completed, batch.request_counts.failed
        assert done >= 1
        assert done + failed == 8
        assert batch.error_file_id is not None
        errors = answers((await sdk.files.content(batch.error_file_id)).content)
        assert {line["response"]["body"]["error"]["code"] for line in errors} == {
            "insufficient_quota"
        }


@pytest.mark.parametrize("outage", ["gone", "silent"])
@pytest.mark.parametrize("mode", ["closed", "open"])
async def test_without_redis(
    mode: str, outage: str, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "TICK_SECONDS", 0.1)
    with nats_server(tmp_path) as nats, redis_server(tmp_path) as redis:
        common = settings_for(nats, redis, home=tmp_path)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model_folder, worker := ScriptedWorker(bus),
                admin_key=ADMIN_KEY, limits_without_redis=mode,
            ) as running,
        ):  # fmt: skip
            await set_price(running)
            running.gateway.limits.limiter._grace_seconds = 0.2
            replicas = Replicas(running, running, [worker], redis)
            limited, free = await replicas.client(requests_per_minute=3), await replicas.client()
            assert (await limited.ask()).status_code == 200
            process = redis.process
            assert process is not None
            if outage == "gone":
                redis.stop(kill=True)
            else:
                running.gateway.limits.limiter._counters._timeout_seconds = 0.2
                process.send_signal(signal.SIGSTOP)
            answer = await limited.ask()
            assert answer.status_code == (503 if mode == "closed" else 200)
            assert (await free.ask()).status_code == 200
            ready = orjson.loads((await running.http.get("/readyz")).content)
            state = ready["components"]["limits"]
            assert state["ready"]
            assert ("get 503" if mode == "closed" else "run uncounted") in state["detail"]
            if outage == "gone":
                redis.start()
            else:
                process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(60):
                while running.gateway.health.report()["components"]["limits"]["detail"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            name = "x-ratelimit-remaining-requests"
            async with asyncio.timeout(60):
                while name not in (answer := await limited.ask()).headers:
                    assert answer.status_code == (503 if mode == "closed" else 200)  # away again
            assert answer.headers[name] == ("1" if mode == "closed" else "0")


async def test_a_wrong_password_is_said_before_anybody_is_limited(
    model_folder: Path, tmp_path: Path
) -> None:
    with nats_server(tmp_path) as nats, redis_server(tmp_path) as redis:
        wrong = f"redis://:wrong@127.0.0.1:{redis.port}/0"
        common = settings_for(nats, redis, home=tmp_path, redis_url=wrong)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(common, bus, model_folder, ScriptedWorker(bus)) as running,
            asyncio.timeout(60),
        ):
            health = running.gateway.health
            while not (state := health.report()["components"]["limits"])["detail"]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert state["ready"]
            assert "invalid username-password pair" in state["detail"]
            assert (await running.chat()).status_code == 200


async def test_a_deadline_in_the_queue_has_headers_of_what_was_counted(replicas: Replicas) -> None:
    client = await replicas.client(concurrent_requests=1, requests_per_minute=9, on_limit="queue")
    late = {**client.headers, "x-pagoda-timeout": "0.3"}
    with gated(replicas):
        async with client.stream():
            await in_flight(replicas, 1)
            answer = await replicas.first.http.post("/v1/chat/completions", json=CHAT, headers=late)
        open_gates(replicas)
    assert answer.status_code == 504, answer.text
    assert "concurrent requests: limit 1, used 1" in answer.json()["error"]["message"]
    assert answer.headers["x-ratelimit-remaining-requests"] == "8"


COUNTED = ("pagoda_requests_total", "pagoda_input_tokens_total", "pagoda_request_seconds_count")


async def test_what_a_limit_refuses_is_counted_as_that_and_as_no_input(replicas: Replicas) -> None:
    async def counted() -> dict[tuple[str, str], float]:
        text = (await replicas.first.http.get("/metrics")).text
        return {
            (sample.name, sample.labels.get("outcome", "")): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in COUNTED
            and sample.labels.get("endpoint", "chat.completions") == "chat.completions"
        }

    client = await replicas.client(requests_per_minute=1)
    assert (await client.ask()).status_code == 200
    assert await replicas.first.gateway.admission.drain(60)
    before = await counted()
    assert (await client.ask()).status_code == 429
    async with asyncio.timeout(60):
        while (after := await counted()) == before:
            pass
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert {name for name, value in grown.items() if value} == {
        ("pagoda_requests_total", "refused")
    }
