"""`pagoda prices` and `pagoda ledger` against a real gateway."""

import asyncio
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import pytest_asyncio
import sqlalchemy as sa
from support.admin_command import admin_gateway, pagoda
from support.running_gateway import CHAT, Running

from pagoda_gateway.accounts.tables import USAGE

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_REQUESTS = 5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with admin_gateway(tmp_path_factory.mktemp("money")) as gateway:
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def receipts(running: Running) -> list[dict[str, Any]]:
    """Receipts of two tenants, for whom the model has a price."""
    await pagoda(running, "prices", "set", "tiny", "--input", "1.5", "--output", "12",
                 "--cached-device", "0.000001", "--batch-discount", "50")  # fmt: skip
    found = []
    for tenant in ("acme", "globex"):
        await pagoda(running, "tenants", "create", tenant)
        key = (await pagoda(running, "keys", "create", "--tenant", tenant)).stdout.strip()
        headers = {"authorization": f"Bearer {key}"}
        for _ in range(NUM_REQUESTS):
            answer = await running.http.post("/v1/chat/completions", json=CHAT, headers=headers)
            receipt = orjson.loads(answer.headers["x-pagoda-receipt"])
            path = f"/v1/receipts/{receipt['request_id']}"
            async with asyncio.timeout(60):
                while "hash" not in (await running.http.get(path, headers=headers)).json():
                    pass
            found.append(receipt | {"tenant": tenant})
    return found


async def test_a_prices_life(running: Running) -> None:
    made = await pagoda(running, "prices", "set", "large", "--input", "0.25", "--output", "1",
                        "--valid-from", "2096-10-02T07:06:40")  # fmt: skip
    price_id = made.stdout.split()[0]
    assert made.stdout == f"{price_id} of large is valid from 2096-10-02 07:06 UTC\n"
    (listed,) = json.loads(
        (await pagoda(running, "prices", "list", "--model", "large", "--json")).stdout
    )
    assert (listed["input_micros"], listed["valid_from"]) == (250_000, 4_000_000_000)
    assert "0.25" in (await pagoda(running, "prices", "list")).stdout
    withdrawn = await pagoda(running, "prices", "withdraw", price_id)
    assert withdrawn.stdout == f"{price_id} of large is withdrawn\n"


@pytest.mark.parametrize("text", ["0.0000001", "-1", "much", "nan", "1e99"])
async def test_a_rate_that_is_no_amount_is_refused(running: Running, text: str) -> None:
    wrong = ("prices", "set", "tiny", "--input", text, "--output", "1")
    assert "--input" in (await pagoda(running, *wrong, code=2)).output


async def test_balances_are_the_sums_of_receipts(
    running: Running, receipts: list[dict[str, Any]]
) -> None:
    balances = json.loads((await pagoda(running, "ledger", "balance", "--json")).stdout)
    for balance in balances:
        theirs = [r for r in receipts if r["tenant"] == balance["id"]]
        assert balance["requests"] == len(theirs) == NUM_REQUESTS
        assert balance["output_tokens"] == sum(r["output_tokens"] for r in theirs)
        assert balance["cost_micros"] == sum(r["cost"]["micros"] for r in theirs) > 0
    table = (await pagoda(running, "ledger", "balance", "--tenant", "acme")).stdout
    assert "acme" in table
    assert "globex" not in table
    before = ("ledger", "balance", "--until", "2020-01-01", "--json")
    assert json.loads((await pagoda(running, *before)).stdout) == []


@pytest.mark.parametrize("command", ["balance", "export"])
async def test_nobody_and_no_day_are_refused(running: Running, command: str) -> None:
    unknown = await pagoda(running, "ledger", command, "--tenant", "nobody", code=1)
    assert unknown.stderr == "pagoda: HTTP 404: there is no tenant 'nobody'\n"
    await pagoda(running, "ledger", command, "--tenant", "default")  # has used nothing
    days = ("--since", "2026-11-02", "--until", "2026-11-02")
    refused = await pagoda(running, "ledger", command, *days, code=2)
    assert "--until: 2026-11-02" in refused.stderr


@pytest.mark.parametrize("page", [2, 1000])
async def test_export_has_every_receipt_once(
    running: Running,
    receipts: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    page: int,
) -> None:
    monkeypatch.setattr("pagoda_cli.admin.client.PAGE", page)
    table = (await pagoda(running, "ledger", "export", "--csv")).stdout
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {row["request_id"]: int(row["cost_micros"]) for row in rows} == {
        receipt["request_id"]: receipt["cost"]["micros"] for receipt in receipts
    }
    assert len(rows) == len(receipts)
    for tenant in ("acme", "globex"):
        numbers = [int(row["number"]) for row in rows if row["tenant"] == tenant]
        assert numbers == list(range(1, NUM_REQUESTS + 1))
    lines = (await pagoda(running, "ledger", "export", "--tenant", "acme")).stdout.splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == [
        receipt["request_id"] for receipt in receipts if receipt["tenant"] == "acme"
    ]
    none = await pagoda(running, "ledger", "export", "--csv", "--since", "2090-01-01")
    assert len(none.stdout.splitlines()) == 1


async def test_verify_finds_a_receipt_that_was_changed(
    running: Running, receipts: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pagoda_cli.admin.ledger.PAGE", 2)
    whole = await pagoda(running, "ledger", "verify")
    assert f"tenant acme: {NUM_REQUESTS} receipts up to number {NUM_REQUESTS} are" in whole.stdout
    third = USAGE.c.request_id == receipts[2]["request_id"]

    async def change(num_output: int) -> None:
        statement = sa.update(USAGE).where(third).values(output_tokens=num_output)
        await running.gateway.ledger.database.call(lambda c: c.execute(statement))

    await change(1)
    broken = await pagoda(running, "ledger", "verify", code=1)
    assert "tenant acme: 2 receipts are whole, then: receipt 3" in broken.stdout
    assert "was changed" in broken.stdout
    assert f"tenant globex: {NUM_REQUESTS} receipts up to" in broken.stdout
    await pagoda(running, "ledger", "verify", "--tenant", "globex")
    await change(receipts[2]["output_tokens"])
    await pagoda(running, "ledger", "verify", "--tenant", "acme")
    unknown = await pagoda(running, "ledger", "verify", "--tenant", "nobody", code=1)
    assert "'nobody' has no receipts" in unknown.stderr
