"""Adapters at the gateway's door: names, keys, prices, and workers that refuse."""

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio
from opentelemetry.context import Context
from support.prices import RATES
from support.running_gateway import CHAT, Running, running_gateway
from support.scripted_worker import ScriptedWorker, tiny_card
from support.servers import nats_server, settings_for

from pagoda.rpc.v1 import adapter_pb2, generate_pb2
from pagoda_runtime.messaging import subjects
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN = {"authorization": "Bearer admin-key-0123456789"}
DIGEST, OTHER_DIGEST = b"1" * 16, b"2" * 16


@pytest_asyncio.fixture(loop_scope="module")
async def running(model_folder: Path, tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway whose worker has the adapter `one`, and loads what lies at `good`."""
    card = tiny_card()
    card.adapters.add(name="one", digest=DIGEST)
    with nats_server(tmp_path) as nats:
        common = settings_for(nats, home=tmp_path)
        async with Bus.connect(common, name="workers") as bus:
            worker = ScriptedWorker(bus, card)

            async def change(
                request: adapter_pb2.AdapterRequest, _context: Context
            ) -> adapter_pb2.AdapterResponse:
                if request.path not in ("", "good"):
                    return adapter_pb2.AdapterResponse(
                        status=adapter_pb2.ADAPTER_STATUS_REFUSED, message="no such folder"
                    )
                kept = [a for a in worker.card.adapters if a.name != request.name]
                del worker.card.adapters[:]
                worker.card.adapters.extend(kept)
                if request.path:
                    worker.card.adapters.add(name=request.name, digest=OTHER_DIGEST)
                return adapter_pb2.AdapterResponse(status=adapter_pb2.ADAPTER_STATUS_DONE)

            await bus.serve(subjects.adapters(worker.worker_id), adapter_pb2.AdapterRequest, change)
            key = ADMIN["authorization"].removeprefix("Bearer ")
            async with running_gateway(common, bus, model_folder, worker, admin_key=key) as running:
                yield running


async def admin(running: Running, path: str, status: int = 200, **body: object) -> str:
    answer = await running.http.post(path, json=body, headers=ADMIN)
    assert answer.status_code == status, answer.text
    return answer.text


async def test_what_is_asked_for_with_an_adapter(running: Running) -> None:
    worker = running.worker
    answers = [await running.chat(model=name) for name in ("tiny", "tiny:one", "one")]
    assert [a.json()["model"] for a in answers] == ["tiny", "tiny:one", "tiny:one"]
    assert [r.adapter for r in worker.requests] == [b"", DIGEST, DIGEST]
    assert [r.adapter for r in running.router.requests] == [b"", DIGEST, DIGEST]
    assert {r.model for r in running.router.requests} == {"tiny"}
    roots = [r.cache_root for r in worker.requests]
    assert roots[0] != roots[1] == roots[2]
    assert (await running.receipt(answers[1]))["model"] == "tiny:one"
    unknown = await running.chat(model="tiny:two")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    cards = (await running.http.get("/v1/models")).json()["data"]
    assert [(c["id"], c["root"], c["parent"]) for c in cards] == [
        ("tiny", "tiny", None),
        ("tiny:one", "tiny", "tiny"),
    ]


async def test_an_error_of_an_adapter_names_it(running: Running) -> None:
    """And no other worker is asked, whose adapter is the same."""
    worker = running.worker
    worker.gate_index, worker.finish_error = 2, "its weights are too large"
    worker.finish_reason = generate_pb2.FINISH_REASON_INVALID
    answer = await running.chat(model="one")
    assert answer.status_code == 400
    message = "the output of tiny:one cannot go on: its weights are too large"
    assert answer.json()["error"]["message"] == message
    assert len(worker.requests) == 1


async def test_a_key_names_the_adapter_that_it_may_use(running: Running) -> None:
    await admin(running, "/admin/organisations", id="acme")
    await admin(running, "/admin/tenants", id="t", organisation="acme")
    statuses = {}
    for models in (["tiny"], ["tiny:one"], ["one"]):
        answer = await running.http.post(
            "/admin/keys", json={"tenant": "t", "models": models}, headers=ADMIN
        )
        key = {"authorization": f"Bearer {answer.json()['key']}"}
        for name in ("tiny", "tiny:one", "one"):
            asked = await running.http.post(
                "/v1/chat/completions", json={**CHAT, "model": name}, headers=key
            )
            statuses[models[0], name] = asked.status_code
            if models == ["one"]:
                message = asked.json()["error"]["message"]
                assert ("'one', which it lists, stands for that" in message) == (name == "one")
        listed = (await running.http.get("/v1/models", headers=key)).json()["data"]
        assert [card["id"] for card in listed] == [id_ for id_ in models if id_ != "one"]
    assert statuses == {
        ("tiny", "tiny"): 200, ("tiny", "tiny:one"): 403, ("tiny", "one"): 403,
        ("tiny:one", "tiny"): 403, ("tiny:one", "tiny:one"): 200, ("tiny:one", "one"): 200,
        ("one", "tiny"): 403, ("one", "tiny:one"): 403, ("one", "one"): 403,
    }  # fmt: skip


async def test_an_adapter_costs_what_its_base_does_unless_it_has_a_price(running: Running) -> None:
    book = running.gateway.price_book
    base = await running.http.post("/admin/prices", json={"model": "tiny", **RATES}, headers=ADMIN)
    own_rates = {**RATES, "output_micros": 9_000_000}
    book.replace(await running.gateway.money.prices.all())
    assert book.priced_name(("tiny:one", "tiny"), 2**31) == "tiny"
    answer = await running.chat(model="tiny:one")
    receipt = await running.receipt(answer)
    assert receipt["model"] == "tiny:one"
    assert receipt["cost"]["price_id"] == base.json()["id"]
    own = await running.http.post(
        "/admin/prices", json={"model": "tiny:one", **own_rates}, headers=ADMIN
    )
    refused = await running.http.post(
        "/admin/prices", json={"model": "one", **RATES}, headers=ADMIN
    )
    assert refused.status_code == 400
    assert "'one' stands for 'tiny:one'" in refused.json()["error"]["message"]
    book.replace(await running.gateway.money.prices.all())
    receipt = await running.receipt(await running.chat(model="one"))
    assert receipt["cost"]["price_id"] == own.json()["id"]


async def test_load_use_and_unload(running: Running) -> None:
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    asked = {"lora_name": "two", "lora_path": "good"}
    assert (await running.http.post(load, json=asked)).status_code == 401  # a client's key
    assert "added successfully" in await admin(running, load, **asked)
    await running.chat(model="two")
    assert running.worker.requests[-1].adapter == OTHER_DIGEST
    assert "removed successfully" in await admin(running, unload, lora_name="two")
    assert (await running.chat(model="two")).status_code == 404
    assert "not loaded" in await admin(running, unload, 404, lora_name="two")
    refusal = await admin(running, load, 400, lora_name="two", lora_path="bad")
    assert "no such folder" in refusal
    assert running.worker.worker_id in refusal
    assert "lora_name" in await admin(running, load, 400, lora_name="a b", lora_path="good")
    for path, fields in ((load, asked), (unload, {"lora_name": "one"})):
        missing = await admin(running, path, 404, base_model="none", **fields)
        assert "does not exist" in missing
        assert orjson.loads(missing)["error"]["param"] == "base_model"
