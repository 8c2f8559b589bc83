"""Asks processes whether they are ready: GET /readyz on loopback."""

import asyncio
import json
from collections.abc import Mapping

ASK_SECONDS = 1.0


async def waiting_for(ports: Mapping[str, int]) -> list[str]:
    """Return what is not ready yet, as `name` or `name (detail)`; all are asked at once."""
    answers = await asyncio.gather(*(_ask(port) for port in ports.values()))
    return [
        f"{name} ({detail})" if detail else name
        for name, (is_ready, detail) in zip(ports, answers, strict=True)
        if not is_ready
    ]


async def _ask(port: int) -> tuple[bool, str]:
    try:
        async with asyncio.timeout(ASK_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                request = (
                    f"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n"
                )
                writer.write(request.encode())
                answer = await reader.read(1 << 16)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False, ""
    head, _, body = answer.partition(b"\r\n\r\n")
    return b" 200 " in head.split(b"\r\n")[0], _detail(body)


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
