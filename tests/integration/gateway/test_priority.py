"""The body's `priority`, and a deadline of its own, on their way to the worker's queue."""

import time
from typing import Any

import pytest
from support.running_gateway import CHAT, Running, Start
from support.scripted_worker import ScriptedWorker

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": "hello", "max_tokens": 4, "n": 2},
    "/v1/responses": {"model": "tiny", "input": "hello", "max_output_tokens": 4},
    "/v1/embeddings": {"model": "tiny", "input": "hello"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_every_sequence_carries_it_to_the_worker(running: Running, path: str) -> None:
    for sent, expected in (({"priority": -7}, -7), ({"priority": None}, 0), ({}, 0)):
        running.worker.requests.clear()
        answer = await running.http.post(path, json={**BODIES[path], **sent})
        assert answer.status_code == 200, answer.text
        assert {request.priority for request in running.worker.requests} == {expected}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", [-1001, 1001, 0.5, "high"])
async def test_another_value_is_refused_by_name(running: Running, path: str, value: Any) -> None:
    answer = await running.http.post(path, json={**BODIES[path], "priority": value})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "priority"
    assert str(value) in error["message"]
    if isinstance(value, int):
        assert "1000" in error["message"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_deadline_of_its_own_is_carried_too(running: Running, path: str) -> None:
    most = running.gateway.settings.request_timeout_seconds
    for sent, seconds in ((None, most), ("2.5e1", 25.0), ("99999", most), ("inf", most)):
        running.worker.requests.clear()
        headers = {"x-pagoda-timeout": sent} if sent else {}
        began = time.monotonic()
        answer = await running.http.post(path, json=BODIES[path], headers=headers)
        assert answer.status_code == 200, answer.text
        took = time.monotonic() - began
        for request in running.worker.requests:
            assert seconds - took <= request.remaining_seconds <= seconds


@pytest.mark.parametrize("value", ["0", "-1", "nan", "soon", "5s"])
async def test_a_deadline_that_is_none_is_refused(running: Running, value: str) -> None:
    answer = await running.http.post(
        "/v1/chat/completions", json=CHAT, headers={"x-pagoda-timeout": value}
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "x-pagoda-timeout"
    assert repr(value) in error["message"]


async def test_who_is_not_done_by_its_own_deadline_is_ended(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, step_seconds=1000.0)
    async with start(worker) as running:
        while not worker.requests:  # a busy machine may not get so far in time
            answer = await running.http.post(
                "/v1/chat/completions", json=CHAT, headers={"x-pagoda-timeout": "0.5"}
            )
            assert answer.status_code == 504
        await worker.wait_until(lambda: "deadline" in {c.reason for c in worker.cancels})
