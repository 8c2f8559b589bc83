"""A gateway whose own clock is wrong: what is kept and billed goes by the database's."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.admin_command import ADMIN_KEY, admin_gateway
from support.batch_files import batch_line, jsonl
from support.running_gateway import Running

from pagoda_gateway.accounts.database import Database
from pagoda_runtime.identity import new_ulid

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HOUR, DAY = 3600.0, 86_400.0
AHEAD = 400 * DAY  # of the database's is this gateway's


def now() -> float:
    return time.time() - AHEAD


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Database, "now", lambda _: now())
        async with admin_gateway(tmp_path_factory.mktemp("clocks")) as opened:
            yield opened


async def ask(running: Running, method: str, path: str, body: object = None) -> dict[str, object]:
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    answer = await running.http.request(method, f"/admin/{path}", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_keys_end_by_it_whatever_uses_them(running: Running) -> None:
    await ask(running, "POST", "tenants", {"id": "late"})
    ends = int(now() + HOUR)
    first = await ask(running, "POST", "keys", {"tenant": "late", "expires_at": ends})
    second = await ask(running, "POST", f"keys/{first['id']}/rotate", {"overlap_seconds": 60})
    found = await ask(running, "GET", f"keys/{first['id']}")
    assert (found["status"], second["status"]) == ("valid", "valid")
    assert abs(int(str(found["expires_at"])) - now() - 60) < 30
    running.http.headers["authorization"], default = (
        f"Bearer {second['key']}", running.http.headers["authorization"],
    )  # fmt: skip
    try:
        assert (await running.chat()).status_code == 200
        file = await running.http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": jsonl(batch_line("a"))}
        )
        batch = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions"}
        asked = {**batch, "completion_window": "24h"}
        found = (await running.http.post("/v1/batches", json=asked)).json()
        async with asyncio.timeout(60):
            while found["status"] != "completed":
                await asyncio.sleep(0.02)  # another's work: there is no event to wait on
                found = (await running.http.get(f"/v1/batches/{found['id']}")).json()
        assert found["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        assert abs(found["completed_at"] - now()) < HOUR
    finally:
        running.http.headers["authorization"] = default


async def test_receipts_and_prices_go_by_it(running: Running) -> None:
    rates = {"input_micros": 1_000_000, "output_micros": 1_000_000}
    price = await ask(running, "POST", "prices", {"model": "tiny", **rates})
    assert abs(float(str(price["valid_from"])) - now()) < HOUR
    receipt: dict[str, Any] = {"cost": {"price_id": None}}
    async with asyncio.timeout(60):
        while receipt["cost"]["price_id"] is None:  # until the gateway has heard of it
            answer = await running.chat()
            receipt = await running.receipt(answer)
    assert receipt["cost"]["price_id"] == price["id"]
    assert receipt["cost"]["micros"] > 0
    for moment in (receipt["opened"], receipt["closed"], answer.json()["created"]):
        assert abs(moment - now()) < HOUR
    assert receipt["closed"] - receipt["opened"] <= receipt["e2e_ms"] / 1000 + 1e-3
    assert receipt["closed"] >= receipt["opened"]
    assert new_ulid(now() - HOUR) < receipt["request_id"] < new_ulid(now() + HOUR)
    conversation = (await running.http.post("/v1/conversations", json={})).json()
    assert abs(conversation["created_at"] - now()) < HOUR
