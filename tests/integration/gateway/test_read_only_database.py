"""A PostgreSQL that takes no writes, as a standby does: what goes on, and what says so."""

from typing import Any

import pytest
from pydantic import SecretStr
from support.postgres import Postgres
from support.running_gateway import Start

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ASKED: dict[str, Any] = {"model": "tiny", "input": "hello", "max_output_tokens": 4}


async def test_answers_come_and_are_not_kept(start: Start, postgres: Postgres) -> None:
    url = postgres.new_database()
    async with start(ledger_url=SecretStr(url)) as running, running.sdk() as client:
        kept = await client.responses.create(**ASKED)
        postgres.set_read_only(url, True)
        whole = await running.http.post("/v1/responses", json=ASKED)
        async with client.responses.stream(**ASKED) as stream:
            events = [event async for event in stream]
        found = await running.http.get(f"/v1/responses/{kept.id}")
        refused = [
            await running.http.post("/v1/responses", json={**ASKED, "background": True}),
            await running.http.post("/v1/conversations", json={}),
            await running.http.delete(f"/v1/responses/{kept.id}"),
            await running.http.post(
                "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}")}
            ),
        ]
    assert whole.status_code == 200, whole.text
    assert whole.json()["store"] is False
    assert events[-1].type == "response.incomplete"  # by its tokens
    assert events[-1].response.model_dump()["store"] is False
    assert found.status_code == 200
    for answer in refused:
        assert answer.status_code == 503, answer.text
    for answer in refused[1:]:
        assert "takes no writes" in answer.json()["error"]["message"]
