"""`pagoda keys` and `pagoda tenants` against a real gateway."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.admin_command import ADMIN_KEY, admin_gateway, pagoda
from support.running_gateway import CHAT, Running

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with admin_gateway(tmp_path_factory.mktemp("admin")) as gateway:
        yield gateway


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


async def test_a_tiers_life(running: Running) -> None:
    limits = ("--requests-per-minute", "60", "--daily-budget", "2.5", "--on-limit", "queue")
    limits += ("--weight", "2.5")
    await pagoda(running, "tiers", "create", "gold", *limits)
    await pagoda(running, "organisations", "create", "big", "--tier", "gold")
    await pagoda(running, "tenants", "create", "big-prod", "--organisation", "big")
    await pagoda(running, "keys", "create", "--tenant", "big-prod", "--tier", "gold")
    (key,) = json.loads(
        (await pagoda(running, "keys", "list", "--tenant", "big-prod", "--json")).stdout
    )
    assert key["tier"] == "gold"
    await pagoda(running, "tenants", "update", "big-prod", "--tier", "gold")
    changed = await pagoda(
        running, "tiers", "update", "gold", "--requests-per-minute", "0", "--json"
    )
    tier = json.loads(changed.stdout)
    assert (tier["requests_per_minute"], tier["daily_budget_micros"]) == (None, 2_500_000)
    assert tier["weight"] == 2.5
    (row,) = [
        line.split()
        for line in (await pagoda(running, "tiers", "list")).stdout.splitlines()
        if line.startswith("gold")
    ]
    assert (row[4], row[-1]) == ("2.5", "2.5")  # budget of a day, weight
    lighter = await pagoda(running, "tiers", "update", "gold", "--weight", "0.5", "--json")
    assert json.loads(lighter.stdout) == {**tier, "weight": 0.5}
    kept = await pagoda(running, "tiers", "delete", "gold", code=1)
    assert "organisations have the tier 'gold', such as 'big'" in kept.stderr
    for noun, name in (("tenants", "big-prod"), ("organisations", "big"), ("keys", key["id"])):
        await pagoda(running, noun, "update", name, "--tier", "none")
    assert "gold" not in (await pagoda(running, "organisations", "list")).stdout
    await pagoda(running, "tiers", "delete", "gold")


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
        (("keys", "revoke", "b?c"), ADMIN_KEY, "HTTP 404: there is no API key 'b?c'"),
        (("keys", "revoke", ""), ADMIN_KEY, "there is no key ''"),
        (("keys", "revoke", "../tenants/default"), ADMIN_KEY, "no key '../tenants/default'"),
        (("keys", "rotate", "a/b"), ADMIN_KEY, "there is no key 'a/b'"),
        (("tiers", "delete", "..\udcff"), ADMIN_KEY, r"there is no tier '..\udcff'"),
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


async def test_missed_prefixes(running: Running) -> None:
    assert "no prompt missed" in (await pagoda(running, "prefixes", "--tenant", "none")).stdout
    rules = "Answer briefly, never guess, and name your sources."
    for moment in ("13:07", "13:08\x1b[2J"):  # a terminal must not obey it
        await running.http.post("/v1/completions", json={
            "model": "tiny", "prompt": f"It is {moment}. {rules}", "max_tokens": 1,
        })  # fmt: skip
    shown = ""
    async with asyncio.timeout(60):
        while "timestamp" not in shown:  # the ledger applies it: there is no event to wait on
            shown = (await pagoda(running, "prefixes")).stdout
    assert "13:07 -> 13:08" in shown
    assert "\x1b" not in shown
    assert "timestamp: A date or time changes early in the prompt" in shown
    listed = json.loads((await pagoda(running, "prefixes", "--json")).stdout)
    (miss,) = [miss for miss in listed if miss["class"] == "timestamp"]
    assert (miss["place"], miss["requests"]) == ("prompt", 1)
    await pagoda(running, "prefixes", "--hours", "1000", code=2)


async def test_a_ledger_without_dead_gateways_has_nothing_to_reconcile(running: Running) -> None:
    answer = await pagoda(running, "ledger", "reconcile")
    assert answer.stdout.startswith("0 requests closed from workers' records, 0 lost")
    found = json.loads((await pagoda(running, "ledger", "reconcile", "--json")).stdout)
    assert (found["reconciled"], found["lost"]) == (0, 0)
    refused = await pagoda(running, "ledger", "reconcile", "--gone-seconds", "1", code=2)
    assert "5" in refused.output
