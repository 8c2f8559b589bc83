"""`pagoda keys` and `pagoda tenants` against a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.running_gateway import CHAT, Running, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for
from support.tiny_tokenizer import write_model_folder
from typer.testing import CliRunner

from pagoda_cli.app import make_app
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("admin")
    model = write_model_folder(folder / "tiny")
    with nats_server(folder) as nats:
        common = settings_for(nats, home=folder)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model, ScriptedWorker(bus), admin_key=ADMIN_KEY
            ) as gateway,
        ):
            yield gateway


async def pagoda(running: Running, *arguments: str, key: str = ADMIN_KEY, code: int = 0) -> Any:
    """Run the command in a thread: the gateway's loop is this test's."""
    environ = {
        "PAGODA_HOME": "none",
        "OPENAI_BASE_URL": running.url,
        "PAGODA_GATEWAY_ADMIN_KEY": key,
    }
    result = await asyncio.to_thread(
        CliRunner().invoke, make_app(arguments), list(arguments), env=environ
    )
    assert result.exit_code == code, result.output
    return result


async def status(running: Running, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return (await running.http.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code


async def test_a_keys_life(running: Running) -> None:
    made = await pagoda(running, "tenants", "create", "acme", "--label", "Acme Ltd")
    assert made.stdout == "tenant acme of organisation default is created\n"
    first = await pagoda(
        running, "keys", "create", "--tenant", "acme", "--models", "tiny, large", "--days", "30"
    )
    key = first.stdout.strip()
    assert "shown only now" in first.stderr
    assert await status(running, key) == 200
    (listed,) = json.loads(
        (await pagoda(running, "keys", "list", "--tenant", "acme", "--json")).stdout
    )
    assert listed["models"] == ["tiny", "large"]
    table = (await pagoda(running, "keys", "list", "--tenant", "acme")).stdout
    assert listed["id"] in table
    assert f"{key[:14]}..." in table
    assert key not in table
    rotated = await pagoda(running, "keys", "rotate", listed["id"], "--overlap-hours", "1")
    for secret in (key, rotated.stdout.strip()):
        assert await status(running, secret) == 200
    revoked = await pagoda(running, "keys", "revoke", listed["id"])
    assert revoked.stdout == f"{listed['id']} of tenant acme is revoked\n"
    assert await status(running, key) == 401
    assert await status(running, rotated.stdout.strip()) == 200


async def test_tenants_are_listed_over_pages(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagoda_cli.admin.client.PAGE", 2)
    for number in range(5):
        await pagoda(running, "tenants", "create", f"page-{number}")
    table = (await pagoda(running, "tenants", "list", "--organisation", "default")).stdout
    assert all(f"page-{number}" in table for number in range(5))


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        (("keys", "create", "--tenant", "no"), ADMIN_KEY, "there is no tenant 'no'"),
        (("keys", "revoke", "a/../b?c"), ADMIN_KEY, "HTTP 404"),
        (("keys", "list"), "wrong-key-0123456789", "HTTP 401: Incorrect key"),
        (("keys", "list"), "", "set PAGODA_GATEWAY_ADMIN_KEY"),
        (("keys", "list", "--url", "http://127.0.0.1:9"), ADMIN_KEY, "http://127.0.0.1:9/admin"),
    ],
)
async def test_failure_is_one_line(
    running: Running, arguments: tuple[str, ...], key: str, message: str
) -> None:
    result = await pagoda(running, *arguments, key=key, code=1)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


async def test_a_ledger_without_dead_gateways_has_nothing_to_reconcile(running: Running) -> None:
    answer = await pagoda(running, "ledger", "reconcile")
    assert answer.stdout.startswith("0 requests closed from workers' records, 0 lost")
    found = json.loads((await pagoda(running, "ledger", "reconcile", "--json")).stdout)
    assert (found["reconciled"], found["lost"]) == (0, 0)
    refused = await pagoda(running, "ledger", "reconcile", "--gone-seconds", "1", code=2)
    assert "5" in refused.output
