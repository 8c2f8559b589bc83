"""Web pages may call if a setting says so: browsers ask first, without a key."""

import httpx
import pytest
from support.running_gateway import CHAT, Running, Start

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PAGE = "https://chat.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type",
}


async def test_listed_origins_may_call(start: Start) -> None:
    async with start(cors_origins=[PAGE]) as running:
        async with httpx.AsyncClient(base_url=running.url) as browser:
            asked = await browser.options("/v1/chat/completions", headers=PREFLIGHT)
            assert asked.status_code == 200
            assert asked.headers["access-control-allow-origin"] == PAGE
            assert "authorization" in asked.headers["access-control-allow-headers"]
            refused = await browser.options(
                "/v1/chat/completions", headers={**PREFLIGHT, "origin": "https://other.example"}
            )
            assert "access-control-allow-origin" not in refused.headers
            no_key = await browser.post("/v1/chat/completions", json=CHAT, headers={"origin": PAGE})
            assert no_key.status_code == 401
            assert no_key.headers["access-control-allow-origin"] == PAGE
            assert no_key.headers["www-authenticate"] == "Bearer"
        for stream in (False, True):
            answer = await running.http.post(
                "/v1/chat/completions", json={**CHAT, "stream": stream}, headers={"origin": PAGE}
            )
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == PAGE
            exposed = answer.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "request-id", "x-should-retry"} <= set(exposed)


async def test_no_page_may_call_by_default(running: Running) -> None:
    asked = await running.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert asked.status_code == 405
    answer = await running.http.get("/v1/models", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers
