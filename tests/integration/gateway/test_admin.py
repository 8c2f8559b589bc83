"""The administration over HTTP: organisations, tenants, tiers and keys, on both databases."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.documented import check, content, document
from support.postgres import Postgres
from support.running_gateway import CHAT, Running, Start, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for

from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"
ADMIN = {"authorization": f"Bearer {ADMIN_KEY}"}
DAY = 86_400


class Admin:
    """Speaks to /admin of a gateway."""

    def __init__(self, running: Running) -> None:
        self.running = running

    async def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.running.http.request(method, f"/admin/{path}", json=body, headers=ADMIN)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def use(self, key: str, **body: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}"}
        return await self.running.http.post(
            "/v1/chat/completions", json={**CHAT, **body}, headers=headers
        )


@contextlib.asynccontextmanager
async def administered(
    url: str, model_folder: Path, folder: Path, **settings: Any
) -> AsyncIterator[Admin]:
    with nats_server(folder) as nats:
        common = settings_for(nats, home=folder)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common, bus, model_folder, ScriptedWorker(bus),
                admin_key=ADMIN_KEY, ledger_url=url, **settings,
            ) as running,
        ):  # fmt: skip
            yield Admin(running)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["sqlite", "postgresql"])
async def admin(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    model_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Admin]:
    url = "" if request.param == "sqlite" else postgres.new_database()
    folder = tmp_path_factory.mktemp("admin")
    async with administered(url, model_folder, folder) as opened:
        yield opened


async def test_from_an_organisation_to_a_key_that_works(admin: Admin) -> None:
    await admin.ask("POST", "organisations", {"id": "acme", "label": "Acme Ltd"})
    await admin.ask("POST", "tiers", {"id": "gold"})
    tenant = await admin.ask(
        "POST", "tenants", {"id": "acme-prod", "organisation": "acme", "tier": "gold"}
    )
    assert (tenant["organisation"], tenant["tier"]) == ("acme", "gold")
    key = await admin.ask("POST", "keys", {"tenant": "acme-prod", "label": "laptop"})
    answer = await admin.use(key["key"])
    assert answer.status_code == 200
    own = {"authorization": f"Bearer {key['key']}"}
    receipt = await admin.running.http.get(
        f"/v1/receipts/{answer.headers['x-request-id']}", headers=own
    )
    assert receipt.json()["status"] == "closed"
    listed = await admin.ask("GET", "keys?tenant=acme-prod")
    assert [found["id"] for found in listed["data"]] == [key["id"]]
    assert key["key"] not in str(listed)
    assert listed["data"][0]["prefix"] == key["key"][:14]


async def test_a_key_for_some_models_is_refused_others(admin: Admin) -> None:
    await admin.ask("POST", "tenants", {"id": "some-models"})
    key = await admin.ask("POST", "keys", {"tenant": "some-models", "models": ["large", "huge"]})
    own = {"authorization": f"Bearer {key['key']}"}
    http, messages = admin.running.http, {"model": "tiny", "messages": CHAT["messages"]}
    refused = [
        await admin.use(key["key"]),
        await http.post("/v1/embeddings", json={"model": "tiny", "input": "a"}, headers=own),
        await http.post("/tokenize", json={"prompt": "a"}, headers=own),
        await http.get("/v1/models/tiny", headers=own),
    ]
    for answer in refused:
        assert answer.status_code == 403
        error = answer.json()["error"]
        assert (error["type"], error["code"], error["param"]) == (
            "permission_error", "forbidden", "model",
        )  # fmt: skip
        assert "may not use the model 'tiny'; it may use 'large', 'huge'" in error["message"]
    anthropic = await http.post("/v1/messages/count_tokens", json=messages, headers=own)
    assert (anthropic.status_code, anthropic.json()["error"]["type"]) == (403, "permission_error")
    assert (await http.get("/v1/models", headers=own)).json()["data"] == []
    await admin.ask("PATCH", f"keys/{key['id']}", {"models": ["tiny"]})
    assert (await admin.use(key["key"])).status_code == 200
    assert len((await http.get("/v1/models", headers=own)).json()["data"]) == 1


async def test_rotation_and_revocation(admin: Admin) -> None:
    await admin.ask("POST", "tenants", {"id": "rotating"})
    old = await admin.ask("POST", "keys", {"tenant": "rotating", "label": "ci"})
    new = await admin.ask("POST", f"keys/{old['id']}/rotate", {"overlap_seconds": DAY})
    assert (new["label"], new["tenant"]) == ("ci", "rotating")
    for key in (old, new):
        assert (await admin.use(key["key"])).status_code == 200
    kept = await admin.ask("GET", f"keys/{old['id']}")
    assert kept["rotated_to"] == new["id"]
    assert kept["expires_at"] - new["created_at"] in (DAY - 1, DAY, DAY + 1)
    await admin.ask("DELETE", f"keys/{old['id']}")
    assert (await admin.use(old["key"])).status_code == 401
    assert (await admin.use(new["key"])).status_code == 200
    statuses = {k["id"]: k["status"] for k in (await admin.ask("GET", "keys"))["data"]}
    assert (statuses[old["id"]], statuses[new["id"]]) == ("revoked", "valid")
    refused = await admin.ask("PATCH", f"keys/{old['id']}", {"label": "x"}, status=409)
    assert "is revoked" in refused["error"]["message"]


async def test_deleting_a_tenant_ends_its_keys(admin: Admin) -> None:
    await admin.ask("POST", "tenants", {"id": "leaving"})
    key = await admin.ask("POST", "keys", {"tenant": "leaving"})
    assert (await admin.use(key["key"])).status_code == 200
    await admin.ask("DELETE", "tenants/leaving")
    assert (await admin.use(key["key"])).status_code == 401
    await admin.ask("GET", "tenants/leaving", status=404)


async def test_lists_come_in_pages(admin: Admin) -> None:
    for number in range(5):
        await admin.ask("POST", "tiers", {"id": f"page-{number}"})
    first = await admin.ask("GET", "tiers?limit=2&after=page")
    assert [tier["id"] for tier in first["data"]] == ["page-0", "page-1"]
    assert first["has_more"] is True
    rest = await admin.ask("GET", "tiers?limit=3&after=page-1")
    assert [tier["id"] for tier in rest["data"]] == ["page-2", "page-3", "page-4"]


async def test_workers_hear_what_a_tenants_tier_weighs(admin: Admin) -> None:
    assert (await admin.ask("POST", "tiers", {"id": "plain"}))["weight"] == 1.0
    await admin.ask("POST", "tiers", {"id": "heavy", "weight": 4})
    await admin.ask("POST", "organisations", {"id": "weighty", "tier": "heavy"})
    await admin.ask("POST", "tenants", {"id": "weighed", "organisation": "weighty"})
    key = (await admin.ask("POST", "keys", {"tenant": "weighed", "tier": "plain"}))["key"]

    async def weight() -> float:
        worker = admin.running.worker
        worker.requests.clear()
        assert (await admin.use(key)).status_code == 200
        (request,) = worker.requests
        return round(request.weight, 6)

    assert await weight() == 4.0
    await admin.ask("PATCH", "tiers/heavy", {"weight": 0.01})
    assert await weight() == 0.01
    await admin.ask("PATCH", "tenants/weighed", {"tier": "plain"})
    assert await weight() == 1.0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "tenants", {"id": "t", "organisation": "no"}, 400, "no organisation 'no'"),
        ("POST", "tenants", {"id": "a b"}, 400, "'id'"),
        ("POST", "tenants", {"id": "t", "teir": "gold"}, 400, "'teir'"),
        ("POST", "tenants", {}, 400, "'id': this field is required"),
        ("POST", "organisations", {"id": "default"}, 409, "'default' exists already"),
        ("DELETE", "organisations/default", None, 409, "has tenants"),
        ("PATCH", "organisations/no", {"label": ""}, 404, "no organisation 'no'"),
        ("POST", "keys", {"tenant": "default", "expires_at": 1}, 400, "'expires_at': 1 is past"),
        ("POST", "keys", {"tenant": "default", "models": []}, 400, "'models'"),
        ("POST", "keys/key-0/rotate", {"overlap_seconds": -1}, 400, "'overlap_seconds'"),
        ("GET", "keys/a%00b", None, 404, "no API key"),
        ("GET", "keys?limit=0", None, 400, "limit"),
        ("POST", "tiers", {"id": "t", "on_limit": "beg"}, 400, "'on_limit'"),
        ("POST", "tiers", {"id": "t", "requests_per_minute": 0}, 400, "'requests_per_minute'"),
        ("POST", "tiers", {"id": "t", "weight": 0}, 400, "'weight'"),
        ("POST", "tiers", {"id": "t", "weight": 101}, 400, "'weight'"),
        ("POST", "tiers", {"id": "t", "weight": None}, 400, "'weight'"),
        ("GET", "nothing", None, 404, "Not Found"),
    ],
)
async def test_what_is_wrong_is_said(
    admin: Admin, method: str, path: str, body: Any, status: int, message: str
) -> None:
    refused = await admin.ask(method, path, body, status=status)
    assert message in refused["error"]["message"]


async def test_only_the_key_of_the_administration_opens_it(admin: Admin) -> None:
    http = admin.running.http
    for headers in ({}, {"authorization": "Bearer wrong-key-0123456789"}):
        refused = await http.get("/admin/keys", headers=headers)
        assert refused.status_code == 401  # also with an API key, which `http` sends by itself
    with_key = {"x-api-key": ADMIN_KEY, "authorization": ""}
    assert (await http.get("/admin/keys", headers=with_key)).status_code == 200
    assert (await http.get("/v1/models", headers=ADMIN)).status_code == 401


async def test_without_a_key_there_is_no_administration(start: Start) -> None:
    async with start() as running:
        assert (await running.http.get("/admin/keys")).status_code == 404
        assert (await running.http.get("/admin/keys", headers=ADMIN)).status_code == 401
        assert not [path for path in (await document(running))["paths"] if "admin" in path]


async def test_answers_fit_the_document(admin: Admin) -> None:
    found = await document(admin.running)
    await admin.ask("POST", "organisations", {"id": "doc"})
    await admin.ask("POST", "tenants", {"id": "doc"})
    key = await admin.ask("POST", "keys", {"tenant": "doc"})
    price = {"model": "m", "input_micros": 2, "output_micros": 3, "valid_from": 4_000_000_000}
    price_id = (await admin.ask("POST", "prices", price))["id"]
    receipt = await admin.running.receipt(await admin.running.chat())
    assert receipt["cost"]["note"] == "no price"
    asked = [
        ("post", "/admin/organisations", {"id": "doc-2"}),
        ("get", "/admin/organisations", None),
        ("get", "/admin/organisations/doc", None),
        ("patch", "/admin/organisations/doc", {"label": "x"}),
        ("delete", "/admin/organisations/doc", None),
        ("post", "/admin/tiers", {"id": "doc", "daily_budget_micros": 5, "on_limit": "queue"}),
        ("get", "/admin/tiers", None),
        ("get", "/admin/tiers/doc", None),
        ("patch", "/admin/tiers/doc", {"tokens_per_minute": 5}),
        ("delete", "/admin/tiers/doc", None),
        ("post", "/admin/keys", {"tenant": "doc", "expires_at": 2_000_000_000}),
        ("get", "/admin/keys", None),
        ("get", f"/admin/keys/{key['id']}", None),
        ("patch", f"/admin/keys/{key['id']}", {"label": "x"}),
        ("post", f"/admin/keys/{key['id']}/rotate", {}),
        ("delete", f"/admin/keys/{key['id']}", None),
        ("post", "/admin/tenants", {"id": "doc-2"}),
        ("get", "/admin/tenants", None),
        ("get", "/admin/tenants/doc", None),
        ("patch", "/admin/tenants/doc", {"tier": None}),
        ("delete", "/admin/tenants/doc", None),
        ("get", "/admin/prefixes", None),
        ("post", "/admin/prices", price | {"model": "n"}),
        ("get", "/admin/prices", None),
        ("get", f"/admin/prices/{price_id}", None),
        ("delete", f"/admin/prices/{price_id}", None),
        ("get", "/admin/receipts?tenant=default", None),
        ("get", f"/admin/receipts/{receipt['request_id']}", None),
        ("get", "/admin/balances", None),
        ("get", "/admin/chains", None),
        ("get", "/admin/chains/default", None),
        ("post", "/admin/ledger/reconcile", {"gone_seconds": 60}),
    ]
    documented = {
        (method, path)
        for path, operations in found["paths"].items()
        for method in operations
        if path.startswith("/admin")
    }
    seen = set()
    for method, path, body in asked:
        answer = await admin.ask(method.upper(), path.removeprefix("/admin/"), body)
        path = path.partition("?")[0]
        template = next(
            known
            for known in found["paths"]
            if len(known.split("/")) == len(path.split("/"))
            and all(
                a == b or a.startswith("{")
                for a, b in zip(known.split("/"), path.split("/"), strict=True)
            )
        )
        operation = found["paths"][template][method]
        assert operation["security"] == [{"admin_key": []}]
        check(found, content(operation)["application/json"]["schema"], answer)
        if body is not None:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            check(found, schema, body)
        seen.add((method, template))
    assert seen == documented


async def test_a_database_that_is_gone_is_a_503_until_it_is_back(
    postgres: Postgres, model_folder: Path, tmp_path: Path
) -> None:
    url = postgres.new_database()
    async with administered(url, model_folder, tmp_path) as admin:
        postgres.shut_out(url)
        refused = await admin.ask("GET", "tenants", status=503)
        assert refused["error"]["code"] == "unavailable"
        stranger = await admin.use("sk-nobody-knows")
        assert (stranger.status_code, stranger.headers["retry-after"]) == (503, "1")
        postgres.let_in(url)
        assert (await admin.ask("GET", "tenants"))["has_more"] is False
        assert (await admin.use("sk-nobody-knows")).status_code == 401
