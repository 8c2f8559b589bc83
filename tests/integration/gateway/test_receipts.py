"""Receipts beside answers, and the ledger's: both say the same, and real clients do not mind."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import pytest_asyncio
from support.batch_files import ENDPOINT, batch_line, jsonl
from support.prices import RATES
from support.running_gateway import API_KEY, CHAT, Running, Start, running_gateway
from support.scripted_worker import ScriptedWorker
from support.servers import nats_server, settings_for

from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"
HEADER = "x-pagoda-receipt"
WANTED = {"include_receipt": True}
CACHED = 3
SPECULATED = (3, 1)  # proposed and accepted for each output token


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def priced(
    model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """A gateway whose model has a price."""
    folder = tmp_path_factory.mktemp("priced")
    with nats_server(folder) as nats:
        common = settings_for(nats, home=folder)
        async with (
            Bus.connect(common, name="workers") as bus,
            running_gateway(
                common,
                bus,
                model_folder,
                ScriptedWorker(bus, cached=CACHED, speculated=SPECULATED),
                admin_key=ADMIN_KEY,
            ) as running,
        ):
            await set_price(running)
            yield running


async def set_price(running: Running) -> None:
    """Give the model its price, and wait until this gateway knows it."""
    await admin(running, "POST", "prices", {"model": "tiny", **RATES})
    async with asyncio.timeout(60):
        while not running.gateway.price_book.price_id_at("tiny", 1e12):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def admin(
    running: Running, method: str, path: str, body: object = None, status: int = 200
) -> dict[str, Any]:
    answer = await running.http.request(
        method, f"/admin/{path}", json=body, headers={"authorization": f"Bearer {ADMIN_KEY}"}
    )
    assert answer.status_code == status, answer.text
    return dict(answer.json())


async def ledgers(running: Running, request_id: str) -> dict[str, Any]:
    """Return the ledger's receipt once it has its cost."""
    async with asyncio.timeout(60):
        while True:
            receipt = (await running.http.get(f"/v1/receipts/{request_id}")).json()
            if "cost" in receipt:
                return dict(receipt)


def check(beside: dict[str, Any], ledger: dict[str, Any]) -> None:
    """Check that the receipt beside an answer is part of the ledger's, word for word."""
    assert {name: ledger[name] for name in beside} == beside
    assert beside["outcome"] == "finished"
    cost = beside["cost"]
    assert sum(line["micros"] for line in cost["lines"]) == cost["micros"]


def expected_micros(prompt: int, output: int, cached: int = CACHED) -> int:
    exact = (prompt - cached) * 1_000_000 + cached * 100_000 + output * 3_000_000
    return (2 * exact + 1_000_000) // 2_000_000


@pytest.mark.parametrize(
    "options", [WANTED, {**WANTED, "include_usage": True}, {**WANTED, "include_usage": False}]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_last_event_of_a_stream_has_the_receipt(
    priced: Running, path: str, options: dict[str, bool]
) -> None:
    body = {} if "chat" in path else {"prompt": "hello world, hello you"}
    *chunks, last = await priced.events(path, **body, n=2, max_tokens=8, stream_options=options)
    assert all("receipt" not in chunk for chunk in chunks)
    assert last["choices"] == []
    assert ("usage" in last) == bool(options.get("include_usage"))
    receipt = last["receipt"]
    assert receipt["output_tokens"] == 16
    assert receipt["cached_tokens"] == {"total": 3, "device": 3, "cpu": 0, "nvme": 0}
    assert receipt["attempts"] == 2
    assert receipt["speculation"] == {"proposed_tokens": 48, "accepted_tokens": 16}
    assert receipt["stages_ms"]["prefill_compute"] == 4.0
    assert receipt["cost"]["micros"] == expected_micros(receipt["prompt_tokens"], 16)
    check(receipt, await ledgers(priced, receipt["request_id"]))


@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_receipt": False}])
async def test_nobody_gets_a_receipt_that_was_not_asked_for(
    priced: Running, options: dict[str, bool] | None
) -> None:
    chunks = await priced.events(stream_options=options)
    assert all("receipt" not in chunk for chunk in chunks)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        (
            "/v1/completions",
            {"model": "tiny", "prompt": ["hello hello", "you you you"], "best_of": 2, "n": 1},
        ),
        ("/v1/responses", {"model": "tiny", "input": "hello", "max_output_tokens": 4}),
        ("/v1/messages", {**CHAT, "max_tokens": 4}),
        ("/v1/embeddings", {"model": "tiny", "input": ["hello hello", "hello you"]}),
    ],
)
async def test_an_answer_that_is_no_stream_has_it_in_a_header(
    priced: Running, path: str, body: dict[str, Any]
) -> None:
    answer = await priced.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    receipt = orjson.loads(answer.headers[HEADER])
    assert receipt["id"] == answer.json().get("id", receipt["id"])
    check(receipt, await ledgers(priced, answer.headers["x-pagoda-request-id"]))
    prompt, output = receipt["prompt_tokens"], receipt["output_tokens"]
    cached = receipt["cached_tokens"]["total"]
    assert receipt["cost"]["micros"] == expected_micros(prompt, output, cached)
    assert (output == 0) == (path == "/v1/embeddings")


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/responses", {"model": "tiny", "input": "hello"}, "response.incomplete"),
        ("/v1/messages", CHAT, "message_stop"),
    ],
)
async def test_streams_of_other_apis_have_it_in_their_last_event(
    priced: Running, path: str, body: dict[str, Any], kind: str
) -> None:
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    sent = {**body, limit: 4, "stream": True, "stream_options": WANTED}
    answer = await priced.http.post(path, json=sent)
    blocks = [block for block in answer.text.split("\n\n") if block.startswith("event: ")]
    events = [orjson.loads(block.partition("\ndata: ")[2]) for block in blocks]
    assert events[-1]["type"] == kind
    assert all("receipt" not in event for event in events[:-1])
    check(events[-1]["receipt"], await ledgers(priced, answer.headers["x-pagoda-request-id"]))


async def test_openais_client_reads_such_a_stream(priced: Running) -> None:
    async with priced.sdk() as client:
        chat: Any = {**CHAT, "temperature": 0}
        text, receipts = "", []
        stream = await client.chat.completions.create(
            **chat, stream=True, stream_options={**WANTED, "include_usage": True}
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
            if receipt := (chunk.model_extra or {}).get("receipt"):
                assert chunk.usage is not None
                receipts.append(receipt)
        assert len(text) == 8
        (receipt,) = receipts
        assert receipt["output_tokens"] == 8
        async with client.chat.completions.stream(**chat, stream_options=WANTED) as parsed:
            deltas = [event.delta async for event in parsed if event.type == "content.delta"]
            assert "".join(deltas) == text
        raw = await client.chat.completions.with_raw_response.create(**chat)
        assert orjson.loads(raw.headers[HEADER])["cost"]["micros"] == receipt["cost"]["micros"]


async def test_a_stream_that_the_client_leaves_is_billed_for_what_it_got(
    start: Start, bus: Any
) -> None:
    worker = ScriptedWorker(bus, gate_index=5)
    async with start(worker, admin_key=ADMIN_KEY) as running:
        await set_price(running)
        body = {**CHAT, "stream": True, "ignore_eos": True}
        async with running.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            request_id = answer.headers["x-pagoda-request-id"]
            await running.tokens_arrived(5, delivered=True)
        receipt = await ledgers(running, request_id)
        assert (receipt["outcome"], receipt["output_tokens"]) == ("disconnected", 5)
        micros = expected_micros(receipt["prompt_tokens"], 5, cached=0)
        assert receipt["cost"]["micros"] == micros


async def test_without_a_price_the_receipt_says_so(running: Running) -> None:
    answer = await running.chat()
    receipt = orjson.loads(answer.headers[HEADER])
    assert receipt["cost"] == {"micros": 0, "price_id": None, "lines": [], "note": "no price"}
    check(receipt, await ledgers(running, receipt["request_id"]))


async def test_a_client_can_check_its_receipts_as_the_document_says(priced: Running) -> None:
    page = (Path(__file__).parents[3] / "docs/howto/prices.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(script, names)
    previous = None
    for _ in range(3):
        answer = await priced.chat()
        receipt = await ledgers(priced, answer.headers["x-pagoda-request-id"])
        assert names["is_whole"](receipt)
        assert not names["is_whole"](receipt | {"output_tokens": 1})
        if previous is not None:
            assert receipt["number"] == previous["number"] + 1
            assert receipt["previous_hash"] == previous["hash"]
        previous = receipt


async def test_a_batch_has_its_discount(priced: Running) -> None:
    async with priced.sdk() as sdk:
        content = jsonl(batch_line("one", max_tokens=8))
        file = await sdk.files.create(file=("in.jsonl", content), purpose="batch")
        batch = await sdk.batches.create(
            input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
        )
        async with asyncio.timeout(60):
            while (batch := await sdk.batches.retrieve(batch.id)).status != "completed":
                pass
        assert batch.output_file_id
        line = orjson.loads((await sdk.files.content(batch.output_file_id)).text)
    receipt = await ledgers(priced, line["response"]["request_id"])
    assert receipt["service_tier"] == "batch"
    *lines, discount = receipt["cost"]["lines"]
    assert discount == {
        "item": "batch_discount", "percent": 50,
        "micros": receipt["cost"]["micros"] - sum(line["micros"] for line in lines),
    }  # fmt: skip
    assert discount["micros"] < 0


async def test_a_batch_of_messages_has_its_discount(priced: Running) -> None:
    path, http = "/v1/messages/batches", priced.http
    requests = [{"custom_id": "one", "params": CHAT}]
    batch = (await http.post(path, json={"requests": requests})).json()
    async with asyncio.timeout(60):
        while batch["processing_status"] != "ended":
            batch = (await http.get(f"{path}/{batch['id']}")).json()
    line = orjson.loads((await http.get(batch["results_url"])).text)
    receipt = await ledgers(priced, line["result"]["message"]["id"].removeprefix("msg_"))
    assert receipt["service_tier"] == "batch"
    discount = receipt["cost"]["lines"][-1]
    assert (discount["item"], discount["percent"]) == ("batch_discount", 50)


async def test_the_administration_sees_all_receipts_and_tenants_their_own(priced: Running) -> None:
    await admin(priced, "POST", "tenants", {"id": "rival"})
    key = await admin(priced, "POST", "keys", {"tenant": "rival"})
    own = {"authorization": f"Bearer {key['key']}"}
    answer = await priced.http.post("/v1/chat/completions", json=CHAT, headers=own)
    request_id = answer.headers["x-pagoda-request-id"]
    async with httpx.AsyncClient(base_url=priced.url, headers=own) as rival:
        while "hash" not in (await rival.get(f"/v1/receipts/{request_id}")).json():
            pass
    others = {"authorization": f"Bearer {API_KEY}"}
    with priced.receipts_waiting(0):
        refused = await priced.http.get(f"/v1/receipts/{request_id}", headers=others)
    assert refused.status_code == 404
    for name in (request_id, answer.json()["id"]):
        receipt = await admin(priced, "GET", f"receipts/{name}")
        assert (receipt["tenant"], receipt["api_key_id"]) == ("rival", key["id"])
    listed = await admin(priced, "GET", "receipts?tenant=rival&limit=1")
    assert [found["request_id"] for found in listed["data"]] == [request_id]
    assert not listed["has_more"]
    (balance,) = (await admin(priced, "GET", "balances?tenant=rival"))["data"]
    assert balance["cost_micros"] == receipt["cost"]["micros"]
    assert (await admin(priced, "GET", "balances?tenant=rival&until=2020-01-01"))["data"] == []
    checked = await admin(priced, "GET", "chains/rival")
    assert (checked["checked"], checked["break"], checked["is_end"]) == (1, None, True)
    await admin(priced, "GET", "chains/nobody", status=404)
    with priced.receipts_waiting(0):
        await admin(priced, "GET", "receipts/nothing", status=404)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "tiny", "input_micros": -1, "output_micros": 1}, "input_micros"),
        ({"model": "tiny", "input_micros": 0.5, "output_micros": 1}, "input_micros"),
        ({"model": "tiny", "input_micros": 10**12 + 1, "output_micros": 1}, "input_micros"),
        ({"model": "tiny", "input_micros": 1}, "output_micros"),
        ({**RATES, "model": "tiny", "cached_cpu_micros": 10**7}, "cached_cpu_micros"),
        ({**RATES, "model": "tiny", "batch_discount_percent": 101}, "batch_discount_percent"),
        ({**RATES, "model": "tiny", "valid_from": 5}, "valid_from"),
    ],
)
async def test_a_wrong_price_is_refused(priced: Running, body: dict[str, Any], param: str) -> None:
    error = (await admin(priced, "POST", "prices", body, status=400))["error"]
    assert error["param"] == param
    assert f"'{param}'" in error["message"]


async def test_a_prices_life(priced: Running) -> None:
    later = {"model": "large", "input_micros": 7, "output_micros": 9, "valid_from": 4_000_000_000}
    made = await admin(priced, "POST", "prices", later)
    assert (made["cached_nvme_micros"], made["batch_discount_percent"]) == (7, 0)
    await admin(priced, "POST", "prices", later, status=409)
    assert await admin(priced, "GET", f"prices/{made['id']}") == made
    assert (await admin(priced, "GET", "prices?model=large"))["data"] == [made]
    assert (await admin(priced, "DELETE", f"prices/{made['id']}"))["withdrawn_at"]
    assert (await admin(priced, "GET", "prices?model=large"))["data"] == []
    (begun,) = (await admin(priced, "GET", "prices?model=tiny"))["data"]
    await admin(priced, "DELETE", f"prices/{begun['id']}", status=409)


async def test_asking_for_receipts_that_are_not_there_keeps_nobody_from_their_work(
    priced: Running,
) -> None:
    with priced.receipts_waiting(1.0):
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(priced.http.get(f"/v1/receipts/nothing-{number}"))
                for number in range(200)
            ]
            answers = [await priced.chat() for _ in range(5)]
    assert {task.result().status_code for task in asked} == {404}
    for answer in answers:
        assert (await ledgers(priced, answer.headers["x-pagoda-request-id"]))["cost"]


async def test_a_name_used_again_means_the_latest_request_at_once(priced: Running) -> None:
    async def ask(max_tokens: int) -> str:
        headers = {"x-request-id": "tried-again"}
        body = {**CHAT, "max_tokens": max_tokens}
        answer = await priced.http.post("/v1/chat/completions", json=body, headers=headers)
        return str(answer.json()["id"])

    first = await ask(2)
    assert (await ledgers(priced, "tried-again"))["id"] == first
    latest = await ask(3)
    with priced.receipts_waiting(60):
        receipt = (await priced.http.get("/v1/receipts/tried-again")).json()
    assert (receipt["id"], receipt["output_tokens"]) == (latest, 3)
