"""Nobody can stall or fill a gateway: limits on connections, heads, bodies, slots and routes."""

import asyncio
import threading
from typing import Any

import httpx
import orjson
import pytest
from support.running_gateway import API_KEY, CHAT, Running, Start

from pagoda_gateway.http import body, connection
from pagoda_gateway.http.app import make_app
from pagoda_gateway.http.middleware import OPEN_PATHS
from pagoda_gateway.large_bodies import INLINE_BYTES
from pagoda_gateway.text.templates.chat_template import ChatTemplate
from pagoda_runtime.telemetry.metrics import REGISTRY

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

OPEN = {
    "/healthz", "/readyz", "/health", "/ping", "/version", "/metrics", "/openapi.json",
}  # fmt: skip


async def connect(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = httpx.URL(running.url).port
    return await asyncio.open_connection("127.0.0.1", port)


def head(size: int, *, more: str = "") -> bytes:
    return (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {size}\r\n{more}\r\n"
    ).encode()


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the gateway closes."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_every_route_needs_a_key_but_those_named(running: Running) -> None:
    paths = set(make_app(running.gateway).openapi()["paths"])
    assert OPEN_PATHS == OPEN
    assert len(paths) > 8
    async with httpx.AsyncClient(base_url=running.url) as stranger:
        for path in [*(paths - OPEN), "/somebody/adds/this", "/", "/healthz/", "//healthz"]:
            assert (await stranger.get(path)).status_code == 401, path
        for path in OPEN:
            assert (await stranger.get(path)).status_code == 200, path


@pytest.mark.parametrize("start_of_head", [b"", b"GET /healthz HTTP/1.1\r\nx: y"])
async def test_head_that_never_ends_is_cut(
    running: Running, monkeypatch: pytest.MonkeyPatch, start_of_head: bytes
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    reader, writer = await connect(running)
    writer.write(start_of_head)
    assert await answer_of(reader) == b""
    writer.close()


async def test_head_after_an_answer_has_its_time_too(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.05)
    reader, writer = await connect(running)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"200" in await reader.readline()
    writer.write(b"GET /healthz HTTP/1.1\r\nx: y")
    assert await answer_of(reader)
    writer.close()


@pytest.mark.parametrize(
    "long", [b"x: " + b"a" * 1_000_000, b"".join(b"x%d: y\r\n" % i for i in range(200))]
)
async def test_head_that_is_too_large_is_refused(running: Running, long: bytes) -> None:
    reader, writer = await connect(running)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + long + b"\r\n\r\n")
    assert (await answer_of(reader))[:12] == b"HTTP/1.1 431"  # though it was still sending
    writer.close()
    assert (await running.http.get("/healthz")).status_code == 200


async def test_bodies_that_trickle_take_no_slot_and_are_cut(start: Start) -> None:
    async with start(max_requests_in_flight=1, body_timeout_seconds=0.3) as running:
        reader, writer = await connect(running)
        writer.write(head(1000) + b"{")
        assert (await running.chat()).status_code == 200
        assert b" 408 " in (await reader.readline())
        writer.close()


async def test_client_that_leaves_while_it_sends_is_no_error(start: Start) -> None:
    def count(status: str) -> float:
        labels = {"route": "/v1/chat/completions", "status": status}
        return REGISTRY.get_sample_value("pagoda_http_responses_total", labels) or 0.0

    async with start() as running:
        before = count("499"), count("500")
        _, writer = await connect(running)
        writer.write(head(1000) + b"{")
        await writer.drain()
        async with asyncio.timeout(60):
            while not running.gateway.bodies.num_held_bytes:  # noqa: ASYNC110
                await asyncio.sleep(0)
            writer.transport.abort()
            while count("499") == before[0]:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert count("500") == before[1]
        assert running.gateway.bodies.num_held_bytes == 0


async def test_body_over_the_limit_gets_its_answer_even_if_it_is_sent_whole(start: Start) -> None:
    async with start(max_body_bytes=2000) as running:
        reader, writer = await connect(running)
        writer.write(head(5_000_000, more="connection: close\r\n") + b" " * 5_000_000)
        assert b" 413 " in (await answer_of(reader))[:20]
        writer.close()


async def test_more_messages_than_the_context_has_tokens_are_not_rendered(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = running.gateway.catalog.get("tiny").max_model_len
    monkeypatch.setattr(ChatTemplate, "render", None)
    message = {"role": "user", "content": ""}
    for path, fields in (
        ("/v1/chat/completions", {"messages": [message] * (limit + 1)}),
        ("/tokenize", {"messages": [message] * (limit + 1)}),
        ("/v1/responses", {"input": [message] * (limit + 1)}),
        ("/v1/messages", {"messages": [message] * (limit + 1), "max_tokens": 1}),
    ):
        answer = await running.http.post(path, json={"model": "tiny", **fields})
        assert answer.status_code == 400, answer.text
        assert f"{limit} tokens" in answer.json()["error"]["message"], path


async def test_of_too_many_messages_the_last_that_fit_are_taken(running: Running) -> None:
    limit = running.gateway.catalog.get("tiny").max_model_len
    items = [{"role": "user", "content": chr(97 + i % 26)} for i in range(4 * limit)]
    fields = {"model": "tiny", "input": items, "max_output_tokens": 4, "truncation": "auto"}
    answer = (await running.http.post("/v1/responses", json=fields)).json()
    num_tokens = answer["usage"]["input_tokens"]
    assert limit - 8 < num_tokens <= limit - 4
    last = "".join(f"<|user|>{item['content']}<|end|>" for item in items[-100:])
    assert f"{last}<|assistant|>" in await running.prompt_text()


async def test_large_bodies_are_read_in_another_thread(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(value: Any, *_: Any) -> None:
        threads.append(threading.current_thread())

    monkeypatch.setattr(body, "check_members", noted)
    for num_chars in (10, INLINE_BYTES):
        await running.chat(messages=[{"role": "user", "content": "x" * num_chars}])
    here, other = threads
    assert here is threading.main_thread()
    assert other is not here


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [1] * 1_000_000},
        {"bad_words": [1] * 1_000_000},
        {"tools": [{}] * 2000},
        {"tools": [{"a": orjson.Fragment(b"[" * 990 + b"]" * 990)}]},
        {"response_format": {"type": orjson.Fragment(b"[" * 90 + b"]" * 90)}},
    ],
)
async def test_hostile_structure_is_a_400(running: Running, fields: dict[str, Any]) -> None:
    answer = await running.http.post(
        "/v1/chat/completions",
        content=orjson.dumps({**CHAT, **fields}),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert len(answer.content) < 2000


async def test_reader_that_stops_is_cut_and_its_slot_freed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_SECONDS", 0.1)
    async with start() as running:
        reader, writer = await connect(running)
        body = {**CHAT, "stream": True, "max_tokens": 400, "logprobs": True, "top_logprobs": 20}
        raw = orjson.dumps({**body, "n": 16})
        writer.write(head(len(raw)) + raw)
        assert b" 200 " in await reader.readline()
        assert await running.gateway.admission.drain(60)
        writer.transport.abort()


async def test_whole_answers_have_a_bound_too(start: Start) -> None:
    async with start(max_whole_tokens=20) as running:
        assert (await running.chat(max_tokens=10)).status_code == 200
        answer = await running.chat(max_tokens=400)
        assert (answer.status_code, "more than 20 tokens: one" in answer.text) == (400, True)


async def test_alternatives_of_tokens_count_in_whole_answers(start: Start) -> None:
    async with start(max_whole_tokens=30) as running:
        answer = await running.chat(max_tokens=25, logprobs=True, top_logprobs=5)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "answer_too_long")
    assert error["message"] == (
        "the answer has more than 5 tokens with 5 alternatives each: one that is no stream may "
        "have 30 tokens, alternatives included, over all choices; ask for a stream, or for fewer "
        "tokens, choices or log probabilities"
    )


async def test_one_tenant_does_not_take_every_slot(start: Start, bus: Any) -> None:
    async with start(max_requests_in_flight=10) as running:
        held = [running.gateway.admission.slot("default") for _ in range(8)]
        for slot in held:
            slot.__enter__()
        assert (await running.chat()).status_code == 429
        _, secret = await running.gateway.tenancy.api_keys.ensure("other", "test")
        headers = {"authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=running.url, headers=headers) as other:
            assert (await other.post("/v1/chat/completions", json=CHAT)).status_code == 200
        for slot in held:
            slot.__exit__(None, None, None)
