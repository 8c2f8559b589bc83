"""What a gateway counts of requests, beside what clients and accounts have of the same ones."""

import time
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY
from support.running_gateway import Running

from pagoda_gateway.http import middleware

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def settled(running: Running) -> None:
    assert await running.gateway.admission.drain(60)


async def test_a_request_took_as_long_as_its_receipt_says(running: Running) -> None:
    """What is done once the client has its answer is not the request's."""
    await settled(running)
    before = counted("pagoda_request_seconds_sum")
    answer = await running.chat()
    await settled(running)
    seconds = counted("pagoda_request_seconds_sum") - before
    receipt = await running.receipt(answer)
    assert seconds == pytest.approx(receipt["e2e_ms"] / 1000, abs=1e-6)


async def test_a_clock_that_is_set_meanwhile_makes_no_request_longer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came an hour ago, by the clock that it is looked at by."""
    an_hour_ago = time.time() - 3600.0
    clocks = SimpleNamespace(time=lambda: an_hour_ago, monotonic=time.monotonic)
    monkeypatch.setattr(middleware, "time", clocks)
    receipt = await running.receipt(await running.chat())
    assert 0 < receipt["ttft_ms"] <= receipt["e2e_ms"] < 3_000_000


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/v1/files/file-1/content", "/v1/files/{file_id}/content"),
        ("/v1/nothing-1", "unknown"),
    ],
)
async def test_who_has_no_key_is_counted_where_they_knocked(
    running: Running, path: str, route: str
) -> None:
    before = counted("pagoda_http_responses_total", route=route, status="401")
    answer = await running.http.post(path, headers={"authorization": "Bearer sk-nobody-knows"})
    assert answer.status_code == 401
    assert counted("pagoda_http_responses_total", route=route, status="401") == before + 1
