"""The body's `priority` on its way to the worker's queue."""

from typing import Any

import pytest
from support.running_gateway import CHAT, Running

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
