"""Streams as bytes: slow readers, several requests on one connection, clients that leave."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from support.raw_http import RawConnection, events_of, post, raw_connection
from support.running_gateway import API_KEY, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda_gateway.http.middleware import PROBED_PATHS
from pagoda_gateway.openai.choices import CompletionSerializer
from pagoda_gateway.sequences.output.sequence import Delta, OutputSequence
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

COMPLETIONS = "/v1/completions"
LONG: dict[str, Any] = {
    "model": "tiny", "prompt": "hello", "max_tokens": 400, "ignore_eos": True, "seed": 7,
    "temperature": 1.0,
}  # fmt: skip


def completion(**values: Any) -> bytes:
    return post(COMPLETIONS, API_KEY, {**LONG, "stream": True, **values})


def texts_of(events: list[Any], n: int) -> list[str]:
    texts = [""] * n
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts


async def whole_texts(running: Running, **values: Any) -> list[str]:
    answer = await running.http.post(COMPLETIONS, json={**LONG, **values})
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


async def read_in_jerks(raw: RawConnection, draws: random.Random) -> bytes:
    """Read a chunked body, and stop for a moment now and then."""
    chunks = []
    while chunk := await raw.chunk():
        chunks.append(chunk)
        if draws.random() < 0.01:
            await asyncio.sleep(0.05)
    return b"".join(chunks)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_reader_in_jerks_gets_every_choice_whole(start: Start, seed: int) -> None:
    draws = random.Random(seed)
    async with start(keepalive_seconds=0.02) as running:
        expected = await whole_texts(running, n=4)
        async with raw_connection(running.url) as raw:
            for _ in range(2):
                raw.writer.write(completion(n=4, stream_options={"include_usage": True}))
                status, headers = await raw.head()
                assert status == 200
                events = events_of(await read_in_jerks(raw, draws))
                assert texts_of(events, 4) == expected
                assert events[-1]["usage"]["completion_tokens"] == 1600
                name = headers["x-request-id"]
                receipt = (await running.http.get(f"/v1/receipts/{name}")).json()
                assert receipt["output_tokens"] == 1600, receipt
                assert receipt["outcome"] == "finished"


async def test_pipelined_streams_come_one_after_the_other(running: Running) -> None:
    expected = [await whole_texts(running, n=2, seed=seed) for seed in range(3)]
    async with raw_connection(running.url) as raw:
        raw.writer.write(b"".join(completion(n=2, seed=seed) for seed in range(3)))
        for seed in range(3):
            _, headers = await raw.head()
            assert texts_of(events_of(await raw.body(headers)), 2) == expected[seed]


async def test_http_1_0_gets_no_chunks(running: Running) -> None:
    expected = await whole_texts(running)
    async with raw_connection(running.url) as raw:
        raw.writer.write(post(COMPLETIONS, API_KEY, {**LONG, "stream": True}, version="1.0"))
        _, headers = await raw.head()
        assert "transfer-encoding" not in headers
        assert texts_of(events_of(await raw.reader.read(-1)), 1) == expected


async def test_stream_ends_when_its_client_leaves_with_a_request_in_the_pipeline(
    bus: Bus, start: Start
) -> None:
    worker = ScriptedWorker(bus, gate_index=200)
    async with start(worker) as running:
        async with raw_connection(running.url) as raw:
            raw.writer.write(completion() + completion())
            await raw.head()
            await raw.chunk()
        worker.gate_index = None
        worker.step_seconds = 0.01
        worker.open_gate()
        await worker.wait_until(lambda: bool(worker.cancels))
        assert await running.gateway.admission.drain(60)
        assert len(worker.requests) == 1  # nobody reads the second answer


@pytest.mark.parametrize("num_tokens", [1, 100, 400])
async def test_stream_that_cannot_be_written_down_ends_with_an_error(
    running: Running, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    has_failed = False

    def failing_once(write: Callable[..., list[bytes]]) -> Callable[..., list[bytes]]:
        def fail_once(
            self: CompletionSerializer, sequence: OutputSequence, new: Delta | str
        ) -> list[bytes]:
            nonlocal has_failed
            if len(sequence.token_ids) >= num_tokens and not has_failed:
                has_failed = True
                raise ValueError("this text cannot be written")
            return write(self, sequence, new)

        return fail_once

    for name in ("events", "text_events"):
        write = getattr(CompletionSerializer, name)
        monkeypatch.setattr(CompletionSerializer, name, failing_once(write))
    async with raw_connection(running.url) as raw:
        raw.writer.write(completion())
        status, headers = await raw.head()
        body = await raw.body(headers)
    if num_tokens == 1 or status == 500:  # on a busy machine all tokens come before the first byte
        assert status == 500
        sent = 0
    else:
        *events, last = events_of(body)
        assert last["error"]["type"] == "server_error", last
        sent = len(texts_of(events, 1)[0])
    receipt = (await running.http.get(f"/v1/receipts/{headers['x-request-id']}")).json()
    assert (receipt["outcome"], receipt["output_tokens"]) == ("failed", sent)


async def test_end_that_cannot_be_written_down_is_an_error(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def end_events(_self: CompletionSerializer, _receipt: Any) -> list[bytes]:
        raise ValueError("this end cannot be written")

    monkeypatch.setattr(CompletionSerializer, "end_events", end_events)
    async with raw_connection(running.url) as raw:
        raw.writer.write(completion())
        status, headers = await raw.head()
        *events, last = events_of(await raw.body(headers))
    assert status == 200
    assert last["error"]["type"] == "server_error"
    assert len(texts_of(events, 1)[0]) > 0
    receipt = (await running.http.get(f"/v1/receipts/{headers['x-request-id']}")).json()
    assert (receipt["outcome"], receipt["output_tokens"]) == ("failed", 400)


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"hello\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nx: y\r\n\r\n", 400),  # no Host
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.0\r\nhost: a\r\nx: y\r\nhost: b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: a b\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: a/b\r\n\r\n", 400),
        (CHUNKED.replace(b"chunked", b"gzip, chunked"), 501),
        (CHUNKED.replace(b"transfer", b"transfer-encoding: gzip\r\ntransfer"), 501),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
        (CHUNKED + b"no size\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"".join(b"x%d: y\r\n" % i for i in range(101)) + b"\r\n", 431),
    ],
)
async def test_what_is_no_request_is_told_so_in_the_apis_form(
    running: Running, sent: bytes, status: int
) -> None:
    async with raw_connection(running.url) as raw:
        raw.writer.write(sent)
        found, headers = await raw.head()
        error = orjson.loads(await raw.body(headers))["error"]
        assert (found, headers["content-type"]) == (status, "application/json")
        assert (error["type"], error["param"]) == ("invalid_request_error", None)
        assert headers["x-request-id"] == headers["x-pagoda-request-id"] != ""
        assert await raw.reader.read() == b""


@pytest.mark.parametrize("host", [b"", b"x \t", b"a-b.example:8000", b"[::1]:80", b"x%41_y~"])
async def test_hosts_with_ports_and_of_any_kind_are_taken(running: Running, host: bytes) -> None:
    async with raw_connection(running.url) as raw:
        raw.writer.write(b"GET /healthz HTTP/1.1\r\nhost: " + host + b"\r\n\r\n")
        assert (await raw.head())[0] == 200


@pytest.mark.parametrize("said", [b"Connection: close", b"proxy-connection: close"])
async def test_a_trailer_that_ends_the_connection_is_heeded(running: Running, said: bytes) -> None:
    body = orjson.dumps({**LONG, "max_tokens": 2})
    chunks = b"%x\r\n%b\r\n0\r\n%b\r\n\r\n" % (len(body), body, said)
    head = CHUNKED.replace(b"host", b"authorization: Bearer %b\r\nhost" % API_KEY.encode())
    async with raw_connection(running.url) as raw:
        raw.writer.write(head + chunks + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        status, headers = await raw.head()
        assert (status, headers["connection"]) == (200, "close")
        await raw.body(headers)
        assert await raw.reader.read() == b""  # at once: nothing more is answered


@pytest.mark.parametrize("head", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nx: y\r\nHOST: x\r\n"])
async def test_only_http_1_1_needs_a_host(running: Running, head: bytes) -> None:
    async with raw_connection(running.url) as raw:
        raw.writer.write(b"GET /healthz " + head + b"\r\n")
        assert (await raw.head())[0] == 200


async def test_what_is_probed_answers_head_without_a_body(running: Running) -> None:
    async with raw_connection(running.url) as raw:
        for path in PROBED_PATHS:
            for method in ("HEAD", "GET"):  # whose head says that no byte came before it
                raw.writer.write(
                    f"{method} {path} HTTP/1.1\r\nhost: x\r\n"
                    f"authorization: Bearer {API_KEY}\r\n\r\n".encode()
                )
                status, headers = await raw.head()
                assert status == 200, (method, path)
                assert int(headers["content-length"]) > 0
            await raw.body(headers)
    for path in ("/v1/chat/completions", "/v1/responses/resp_x", "/v1/files/file-x/content"):
        assert (await running.http.head(path)).status_code == 405
    assert (await running.http.head("/nothing")).status_code == 404
    document = (await running.http.get("/openapi.json")).json()
    assert not [path for path, operations in document["paths"].items() if "head" in operations]
    counted = (await running.http.get("/metrics")).text
    assert 'route="/v1/models"' in counted


async def test_garbage_behind_a_stream_ends_it_and_is_not_answered_within_it(
    start: Start, bus: Bus
) -> None:
    worker = ScriptedWorker(bus, gate_index=2)
    async with start(worker) as running, raw_connection(running.url) as raw:
        raw.writer.write(completion())
        assert (await raw.head())[0] == 200
        await raw.chunk()
        raw.writer.write(b"hello\r\n\r\n")
        assert b"HTTP/1.1" not in await raw.reader.read()
        await worker.wait_until(lambda: not worker.num_running)
