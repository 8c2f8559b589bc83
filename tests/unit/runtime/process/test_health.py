import asyncio
import json

import httpx
import pytest

from pagoda_runtime.errors import StartError
from pagoda_runtime.process import health_server as health_server_module
from pagoda_runtime.process.health import Health
from pagoda_runtime.process.health_server import health_server


async def get(port: int, path: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{port}{path}", timeout=60)


def test_nothing_known_is_not_ready() -> None:
    assert not Health().is_ready


def test_ready_needs_every_component() -> None:
    health = Health()
    health.set_ready("bus", True)
    health.set_ready("model", False, "loading")
    assert not health.is_ready

    health.set_ready("model", True)
    assert health.is_ready


def test_stopping_is_not_ready() -> None:
    health = Health()
    health.set_ready("bus", True)
    health.set_stopping()

    assert not health.is_ready


def test_a_check_is_asked_each_time() -> None:
    health, why = Health(), ["no connection for 2 s"]
    health.add_check("nats", lambda: why[-1])
    health.set_ready("model", True)

    assert not health.is_ready
    assert health.report()["components"]["nats"] == {"ready": False, "detail": why[0]}
    why.append("")
    assert health.is_ready
    assert health.report()["components"]["nats"]["ready"]


def test_a_report_agrees_with_itself() -> None:
    health, answers = Health(), iter(["", "no connection for 5 s"])
    health.add_check("nats", lambda: next(answers))
    health.set_ready("model", True)

    report = health.report()

    assert report["ready"]
    assert report["components"]["nats"]["ready"]


def test_a_check_alone_makes_nobody_ready() -> None:
    health = Health()
    health.add_check("nats", lambda: "")

    assert not health.is_ready


async def test_the_server_answers() -> None:
    health = Health()
    health.set_ready("bus", False, "no NATS")
    async with health_server(health, host="127.0.0.1", port=0) as port:
        assert (await get(port, "/healthz")).status_code == 200
        not_ready = await get(port, "/readyz")
        assert not_ready.status_code == 503
        assert not_ready.json()["components"]["bus"] == {"ready": False, "detail": "no NATS"}
        health.set_ready("bus", True)
        assert (await get(port, "/readyz?verbose")).status_code == 200
        assert "pagoda_bus_reconnects_total" in (await get(port, "/metrics")).text
        assert (await get(port, "/other")).status_code == 404


async def test_nonsense_does_not_stop_the_server() -> None:
    async with health_server(Health(), host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 10_000)
        await reader.read()
        writer.close()

        assert json.loads((await get(port, "/healthz")).content) == {"alive": True}


async def test_a_silent_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_server_module, "CONNECTION_SECONDS", 0.05)
    async with health_server(Health(), host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


async def test_each_answer_ends_its_connection() -> None:
    async with health_server(Health(), host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()

        assert answer.startswith(b"HTTP/1.1 503 ")
        assert answer.endswith(b"\r\n\r\n")


async def test_an_open_connection_does_not_hold_up_the_end() -> None:
    async with asyncio.timeout(60):
        async with health_server(Health(), host="127.0.0.1", port=0) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_an_address_that_cannot_be_listened_on_names_both_settings() -> None:
    remedy = r"\.\.\._HEALTH_PORT to a free port.* \.\.\._HEALTH_HOST to an address of this machine"
    with pytest.raises(StartError, match=remedy):
        async with health_server(Health(), host="no such host", port=0):
            pass
