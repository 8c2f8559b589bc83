"""Workers are told whose a sequence is, by a tag that is no name."""

import pytest
from support.running_gateway import CHAT, Running

from pagoda_gateway.sequences.request import tenant_tag

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_every_sequence_carries_its_tenants_tag(running: Running) -> None:
    bodies = {
        "/v1/chat/completions": {**CHAT, "n": 2},
        "/v1/completions": {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 4},
        "/v1/embeddings": {"model": "tiny", "input": "hello"},
    }
    for path, body in bodies.items():
        running.worker.requests.clear()
        answer = await running.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        tags = {request.tenant for request in running.worker.requests}
        assert tags == {tenant_tag("default")}
        assert {request.weight for request in running.worker.requests} == {1.0}


async def test_tags_are_short_apart_and_hide_the_name() -> None:
    tags = {name: tenant_tag(name) for name in ("acme", "acme2", "")}
    assert len(set(tags.values())) == 3
    assert {len(tag) for tag in tags.values()} == {8}
    assert b"acme" not in tags["acme"]
