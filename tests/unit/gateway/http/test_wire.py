"""Answers in parts: what goes over the wire, and who runs meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pagoda_gateway.http import wire


async def sent(*parts: bytes) -> tuple[dict[bytes, bytes], list[Any], list[int]]:
    """Return the head, the bodies, and how often another task had run before each of them."""
    messages: list[Any] = []
    turns: list[int] = []
    num_turns = 0

    async def others() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    async def send(message: Any) -> None:
        messages.append(message)

    async def produced() -> AsyncIterator[bytes]:
        for part in parts:
            turns.append(num_turns)
            yield part

    other = asyncio.create_task(others())
    await wire.send_json_parts(send, produced())
    other.cancel()
    assert messages[0]["type"] == "http.response.start"
    return dict(messages[0]["headers"]), messages[1:], turns


async def test_one_part_says_its_length() -> None:
    headers, bodies, _ = await sent(b'{"a":1}')
    assert headers[b"content-length"] == b"7"
    assert bodies == [{"type": "http.response.body", "body": b'{"a":1}'}]


async def test_others_run_between_parts() -> None:
    headers, bodies, turns = await sent(b"[", b"1,", b"2", b"]")
    assert b"content-length" not in headers
    assert b"".join(message["body"] for message in bodies) == b"[1,2]"
    assert [message.get("more_body", False) for message in bodies] == [True, True, True, False]
    assert turns[1:] == sorted(set(turns[1:]))  # all different: somebody ran before each
