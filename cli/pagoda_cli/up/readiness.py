"""Asks processes whether they are ready: GET /readyz on loopback."""

import asyncio
import json
from collections.abc import Mapping

import aiohttp

ASK_SECONDS = 1.0


async def waiting_for(ports: Mapping[str, int]) -> list[str]:
    """Return what is not ready yet, as `name` or `name (detail)`; all are asked at once."""
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        answers = await asyncio.gather(*(_ask(session, port) for port in ports.values()))
    return [
        f"{name} ({detail})" if detail else name
        for name, (is_ready, detail) in zip(ports, answers, strict=True)
        if not is_ready
    ]


async def _ask(session: aiohttp.ClientSession, port: int) -> tuple[bool, str]:
    try:
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            return answer.status == 200, _detail(await answer.read())
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False, ""


def _detail(body: bytes) -> str:
    try:
        components = json.loads(body)["components"]
        missing = [
            f"{name}: {state['detail']}" if state["detail"] else name
            for name, state in components.items()
            if not state["ready"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return ""
    return ", ".join(missing)
