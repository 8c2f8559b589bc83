"""Clients that wait, go away or read slowly; and a server that stops."""

import asyncio
import socket
from typing import Any

import httpx
import orjson
import pytest
from prometheus_client import REGISTRY
from support.running_gateway import API_KEY, CHAT, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda_gateway.http.server import drain

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_keepalive_names_the_stage_and_keeps_the_data(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker, keepalive_seconds=0.02) as running:
        body = {**CHAT, "stream": True}
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) in (": keep-alive route", ": keep-alive prefill")
            worker.gate_index = 4
            worker._work.set()
            seen = [line async for line in _until(lines, ": keep-alive decode")]
            worker.open_gate()
            seen += [line async for line in lines]
        data = [orjson.loads(line[6:]) for line in seen if line.startswith("data: {")]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in data)
        assert len(text) == 8
        assert [line for line in seen if line][-1] == "data: [DONE]"


async def test_failure_after_a_keepalive_is_an_event(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker, keepalive_seconds=0.02) as running:
        body = {**CHAT, "stream": True}
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            worker.fail("broken")
            data = [line async for line in lines if line.startswith("data: ")]
        assert "broken" in orjson.loads(data[0][6:])["error"]["message"]
        assert data[1:] == ["data: [DONE]"]


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_cancels_and_bills_what_was_delivered(
    start: Start, bus: Any, stream: bool
) -> None:
    worker = ScriptedWorker(bus, gate_index=3)
    async with start(worker) as running:
        _, writer = await _raw_request(running, {**CHAT, "stream": stream})
        await worker.wait_until(lambda: bool(worker.requests))
        if stream:
            await running.tokens_arrived(3, delivered=True)
        writer.close()
        await worker.wait_until(lambda: bool(worker.cancels))
        assert worker.cancels[0].reason == "client_disconnect"
        request_id = worker.requests[0].request_id
        assert worker.cancels[0].request_id == request_id
        assert await running.gateway.admission.drain(60)
        assert REGISTRY.get_sample_value("pagoda_num_requests_in_flight") == 0
        receipt = (await running.http.get(f"/v1/receipts/{request_id}")).json()
        assert receipt["outcome"] == "disconnected"
        assert receipt["output_tokens"] == (3 if stream else 0)
        assert len(running.gateway.frames) == 0


async def test_two_hundred_clients_that_time_out(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker) as running:

        async def ask(stream: bool) -> None:
            with pytest.raises(httpx.TimeoutException):
                await running.http.post(
                    "/v1/chat/completions",
                    json={**CHAT, "stream": stream},
                    # asyncio leaks the socket of a connect that is cancelled: only reads time out
                    timeout=httpx.Timeout(30, read=0.5),
                )

        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(ask(stream=number % 2 == 0))
        assert await running.gateway.admission.drain(60)
        assert REGISTRY.get_sample_value("pagoda_num_requests_in_flight") == 0
        worker.open_gate()
        async with asyncio.timeout(60):
            assert (await running.chat()).status_code == 200
        assert worker.num_running == 0


async def test_reader_that_never_reads_is_cut(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    settings = {"max_undelivered_tokens": 100}
    async with start(worker, **settings) as running:
        body = {**CHAT, "stream": True, "max_tokens": 400, "logprobs": True, "top_logprobs": 20}
        _, writer = await _raw_request(running, {**body, "n": 16})
        worker.open_gate()
        await worker.wait_until(lambda: bool(worker.cancels))
        assert (await running.chat()).status_code == 200  # nobody else is slowed
        writer.transport.abort()
        assert await running.gateway.admission.drain(60)


async def test_drain_finishes_what_runs_and_refuses_what_is_new(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat())
        await worker.wait_until(lambda: bool(worker.requests))
        draining = tasks.create_task(drain(running.gateway))
        await asyncio.sleep(0)
        refused = await running.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        worker.open_gate()
        assert (await asking).status_code == 200
        await draining


async def test_drain_without_grace_aborts(start: Start, bus: Any) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker, drain_seconds=0) as running, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(running.chat())
        await worker.wait_until(lambda: bool(worker.requests))
        await drain(running.gateway)
        assert (await asking).status_code == 503
        await worker.wait_until(lambda: bool(worker.cancels))


async def _until(lines: Any, last: str) -> Any:
    async for line in lines:
        yield line
        if line == last:
            return


async def _raw_request(
    running: Running, body: dict[str, Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a socket of its own, with a small receive buffer."""
    host, port = running.url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    payload = orjson.dumps(body)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    writer.write(head.encode() + payload)
    await writer.drain()
    return reader, writer
