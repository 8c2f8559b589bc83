"""What the chaos harness makes of a server that misbehaves: each fault must show as what it is."""

import asyncio
import json
import random
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from chaos.load import Load
from chaos.streams import Outcome, Prompt, Stream, ask

TEXT = "a text of four tokens"
PROMPT = Prompt("p", 4)


def chunk(text: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], "usage": None}).encode() + b"\n\n"


def usage(num_tokens: int) -> bytes:
    body = {"choices": [], "usage": {"completion_tokens": num_tokens}}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


END = [chunk("", "length"), usage(4), b"data: [DONE]\n\n"]
GOOD = [chunk("a text "), chunk("of four tokens"), *END]
CASES = {
    "good": (GOOD, Outcome.OK),
    "other text": ([chunk("another text"), *END], Outcome.WRONG),
    "a token lost": ([chunk("a text four tokens"), *END], Outcome.WRONG),
    "two ends": ([chunk(TEXT, "length"), *END], Outcome.FAILED),
    "no end": ([chunk(TEXT), usage(4), b"data: [DONE]\n\n"], Outcome.FAILED),
    "two [DONE]": ([*GOOD, b"data: [DONE]\n\n"], Outcome.FAILED),
    "no usage": ([chunk(TEXT), chunk("", "length"), b"data: [DONE]\n\n"], Outcome.FAILED),
    "billed twice": ([chunk(TEXT), END[0], usage(4), *END[1:]], Outcome.FAILED),
    "an error": ([chunk("a text "), b'data: {"error": {"message": "x"}}\n\n'], Outcome.FAILED),
    "cut off": ([chunk("a text ")], Outcome.BROKEN),
    "cut off after a wrong beginning": ([chunk("b")], Outcome.WRONG),
}


@pytest.fixture
async def served() -> AsyncIterator[tuple[TestServer, dict[str, list[bytes] | int | None]]]:
    """A server that streams what the dict says: parts, then for None silence; or a status."""
    says: dict[str, list[bytes] | int | None] = {}

    async def answer(request: web.Request) -> web.StreamResponse:
        if "status" in says:
            status = says["status"]
            assert isinstance(status, int)
            return web.Response(status=status, headers={"Retry-After": "1"})
        response = web.StreamResponse()
        await response.prepare(request)
        parts = says["parts"]
        assert isinstance(parts, list)
        for part in parts:
            await response.write(part)
        if "is_silent" in says:
            await asyncio.Event().wait()
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", answer)
    server = TestServer(application)
    await server.start_server()
    yield server, says
    await server.close()


async def run_one(url: str) -> Stream:
    """One stream through the load, compared with its text."""
    async with aiohttp.ClientSession() as session:
        load = Load(
            session,
            url,
            "m",
            prompts=[PROMPT],
            expected={"p": TEXT},
            width=1,
            silence=5,
            rng=random.Random(1),
        )
        running = asyncio.create_task(load.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        load.stop()
        await running
    (stream,) = load.ended
    return stream


@pytest.mark.parametrize("name", CASES)
async def test_every_end_is_named(served, name: str) -> None:
    server, says = served
    parts, expected = CASES[name]
    says["parts"] = list(parts)
    stream = await run_one(str(server.make_url("")).rstrip("/"))
    assert (stream.outcome, stream.error) == (expected, stream.error)


async def test_silence_is_a_hung_stream(served) -> None:
    server, says = served
    says |= {"parts": [chunk("a text ")], "is_silent": None}
    stream = Stream(PROMPT)
    async with aiohttp.ClientSession() as session:
        await ask(session, str(server.make_url("")).rstrip("/"), "m", stream, silence=0.2)
    assert stream.outcome is Outcome.HUNG
    assert stream.longest_gap > 0.1
    assert stream.over.is_set()


@pytest.mark.parametrize(("status", "expected"), [(503, Outcome.REFUSED), (500, Outcome.FAILED)])
async def test_only_come_back_later_is_a_refusal(served, status: int, expected: Outcome) -> None:
    server, says = served
    says["status"] = status
    stream = Stream(PROMPT)
    async with aiohttp.ClientSession() as session:
        await ask(session, str(server.make_url("")).rstrip("/"), "m", stream, silence=5)
    assert stream.outcome is expected
