"""Asks processes whether they are ready: GET /readyz where they listen."""

import asyncio
import json
from collections.abc import Mapping

import aiohttp

ASK_SECONDS = 1.0


async def waiting_for(addresses: Mapping[str, str]) -> list[str]:
    """Return what is not ready yet, as `name` or `name (detail)`; all are asked at once.

    `addresses`: HOST:PORT by name.
    """
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        answers = await asyncio.gather(*(_ask(session, one) for one in addresses.values()))
    return [
        f"{name} ({detail})" if detail else name
        for name, (is_ready, detail) in zip(addresses, answers, strict=True)
        if not is_ready
    ]


async def _ask(session: aiohttp.ClientSession, address: str) -> tuple[bool, str]:
    try:
        async with session.get(f"http://{address}/readyz") as answer:
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
