"""What a gateway notes of what its clients have, in case it is killed; and what it does not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.running_gateway import CHAT, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway.accounts.usage.deliveries import NotedTokens, left_in
from pagoda_gateway.accounts.usage.usage_log import UsageLog

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


def noted(running: Running) -> list[NotedTokens]:
    return sorted(left_in(running.gateway.usage_log._outbox.folder))


@pytest.fixture
def at_close(monkeypatch: pytest.MonkeyPatch) -> list[list[NotedTokens]]:
    """What is noted at the moment in which each account is closed: a kill would leave it."""
    seen: list[list[NotedTokens]] = []
    close = UsageLog.close

    async def watched(self: UsageLog, record: UsageClose) -> None:
        seen.append([n for n in left_in(self._outbox.folder) if n.request_id == record.request_id])
        await close(self, record)

    monkeypatch.setattr(UsageLog, "close", watched)
    return seen


async def test_a_stream_is_noted_as_it_is_written(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.events(max_tokens=5, n=2))
        await worker.wait_until(lambda: len(worker.requests) == 2)
        (request_id,) = {request.request_id for request in worker.requests}
        async with asyncio.timeout(60):
            while noted(running) != [(request_id, 0, 3), (request_id, 1, 3)]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        worker.open_gate()
        await asking


async def test_all_slots_are_given_back(
    start: Start, bus: Any, at_close: list[list[NotedTokens]]
) -> None:
    async with start() as running:
        await running.chat(n=3, max_tokens=2)
        await running.events(n=2, max_tokens=2)
        await running.completion(use_beam_search=True, n=2, best_of=3)
        await running.completion(best_of=3)
        await running.completion(prompt=["a", "b"], n=2)
        await running.completion(prompt="a", echo=True, max_tokens=0)
        for path, body in (
            ("/v1/embeddings", {"input": ["hello", "b"]}),
            ("/v1/responses", {"input": "x", "background": True}),
            ("/v1/messages", {**CHAT, "max_tokens": 3}),
        ):
            assert (await running.http.post(path, json={**body, "model": "tiny"})).is_success
        await running.chat(model="none")
        await running.router.stop()
        short = {"x-pagoda-timeout": "0.2"}
        await running.http.post("/v1/chat/completions", json=CHAT, headers=short)
        assert await running.gateway.admission.drain(60)
        assert noted(running) == []
    assert len(at_close) == 10
    assert [tokens for *_, tokens in at_close[0]] == [2, 2, 2]


async def test_what_has_no_output_is_not_noted(
    start: Start, at_close: list[list[NotedTokens]]
) -> None:
    """That nothing was delivered would say that the prompt is not due."""
    async with start() as running:
        await running.http.post("/v1/embeddings", json={"model": "tiny", "input": "hello"})
        await running.completion(prompt="a", echo=True, max_tokens=0)
        assert await running.gateway.admission.drain(60)
    assert at_close == [[], []]


async def test_an_answer_that_was_kept_is_not_noted(
    start: Start, tmp_path: Path, at_close: list[list[NotedTokens]]
) -> None:
    """It costs nothing, which nobody would know."""
    file = tmp_path / "safety.yaml"
    file.write_text("""
policies:
  - name: house
    tenants: [default]
    response_cache: {ttl_seconds: 60}
""")
    async with start(safety_file=file) as running:
        for _ in range(2):
            answer = await running.chat(temperature=0, max_tokens=4, stream=True)
        assert await running.gateway.admission.drain(60)
    assert answer.headers["x-pagoda-cache"] == "hit"
    assert [len(notes) for notes in at_close] == [1, 0]
