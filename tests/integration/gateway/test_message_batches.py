"""Anthropic's Message Batches by its official client, against a running gateway."""

import asyncio
from typing import Any

import anthropic
import openai
import orjson
import pytest
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse
from pydantic import SecretStr
from support.batch_files import numbered
from support.documented import check, content, document
from support.postgres import Postgres
from support.running_gateway import API_KEY, Running, Start
from support.scripted_worker import ScriptedWorker

from pagoda_gateway.batches import batch_store
from pagoda_gateway.batches.file_store import CHUNK_BYTES
from pagoda_gateway.batches.tables import ANSWERS, BATCHES, FILES, STORAGE
from pagoda_gateway.errors import ModelNotFoundError
from pagoda_gateway.http.app import make_app
from pagoda_gateway.http.server import http_server, listen
from pagoda_runtime.messaging.bus import Bus

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

PATH = "/v1/messages/batches"
PARAMS: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "hello world"}],
}


def request(custom_id: Any, **params: Any) -> Any:
    return {"custom_id": custom_id, "params": {**PARAMS, **params}}


def requests(count: int, **params: Any) -> list[Any]:
    return [request(f"line-{number}", **params) for number in range(count)]


def client_of(running: Running, api_key: str = API_KEY) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=running.url, api_key=api_key, max_retries=0)


async def until_ended(client: anthropic.AsyncAnthropic, batch: MessageBatch) -> MessageBatch:
    num_requests = sum(batch.request_counts.model_dump().values())
    async with asyncio.timeout(60):
        while batch.processing_status != "ended":
            await asyncio.sleep(0.02)  # another's work: there is no event to wait on
            batch = await client.messages.batches.retrieve(batch.id)
            assert sum(batch.request_counts.model_dump().values()) == num_requests
    assert batch.ended_at is not None
    assert batch.request_counts.processing == 0
    return batch


async def results_of(
    client: anthropic.AsyncAnthropic, batch: MessageBatch
) -> list[MessageBatchIndividualResponse]:
    return [line async for line in await client.messages.batches.results(batch.id)]


async def num_kept(running: Running) -> dict[str, int]:
    """Rows of batches and all that is in them, and the bytes that are counted."""
    database = running.gateway.ledger.database
    tables = (FILES, BATCHES, ANSWERS)
    kept = {table.name: len(await database.rows(table.select())) for table in tables}
    storage = await database.rows(STORAGE.select())
    return kept | {"bytes": sum(row["num_bytes"] for row in storage)}


def said(answer: Any) -> str:
    """Return an error's text; checks Anthropic's shape."""
    body = answer.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == answer.headers["request-id"]
    return str(body["error"]["message"])


async def test_a_batch_has_every_result_in_order(running: Running) -> None:
    async with client_of(running) as client:
        batch = await client.messages.batches.create(requests=requests(25, temperature=0))
        assert batch.id.startswith("msgbatch_")
        assert batch.type == "message_batch"
        assert batch.processing_status == "in_progress"
        assert sum(batch.request_counts.model_dump().values()) == 25
        assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
        assert batch.ended_at is batch.results_url is batch.cancel_initiated_at is None
        ended = await until_ended(client, batch)
        assert ended.results_url == f"{running.url}{PATH}/{batch.id}/results"
        assert ended.request_counts.succeeded == 25
        results = await results_of(client, ended)
        direct = await client.messages.create(**PARAMS, extra_body={"temperature": 0})
    assert [line.custom_id for line in results] == [f"line-{i}" for i in range(25)]
    for line in results:
        assert line.result.type == "succeeded"
        assert line.result.message.content == direct.content
        assert line.result.message.usage.output_tokens == 4
    assert results[0].result.type == "succeeded"
    request_id = results[0].result.message.id.removeprefix("msg_")
    receipt = (await running.http.get(f"/v1/receipts/{request_id}")).json()
    assert (receipt["service_tier"], receipt["endpoint"]) == ("batch", "messages")
    row = await running.gateway.batches.get("default", batch.id[3:], of_messages=True)
    assert row["num_output_tokens"] == 100
    usage = direct.usage
    num_prompt_tokens = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert row["num_input_tokens"] == 25 * num_prompt_tokens


async def test_the_client_without_asyncio(running: Running) -> None:
    def run() -> list[str]:
        with anthropic.Anthropic(base_url=running.url, api_key=API_KEY) as client:
            batch = client.messages.batches.create(requests=requests(2))
            while client.messages.batches.retrieve(batch.id).processing_status != "ended":
                pass
            kinds = [line.result.type for line in client.messages.batches.results(batch.id)]
            listed = [item.id for item in client.messages.batches.list(limit=1)]
            assert batch.id in listed
            return [*kinds, client.messages.batches.delete(batch.id).type]

    assert await asyncio.to_thread(run) == ["succeeded", "succeeded", "message_batch_deleted"]


async def test_bad_requests_are_errors_of_their_own(running: Running) -> None:
    bad = request("bad", temperature=-1)
    async with client_of(running) as client:
        batch = await client.messages.batches.create(requests=[request("good"), bad])
        ended = await until_ended(client, batch)
        good, error = await results_of(client, ended)
    counts = ended.request_counts
    assert (counts.succeeded, counts.errored) == (1, 1)
    assert good.result.type == "succeeded"
    assert (error.custom_id, error.result.type) == ("bad", "errored")
    assert error.result.error.type == "error"
    assert error.result.error.error.type == "invalid_request_error"
    assert "temperature" in error.result.error.error.message
    assert str(error.result.error.request_id).startswith("batch_req_")


async def test_a_model_that_vanished_is_the_error_of_each(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start() as running, client_of(running) as client:
        find, asked = running.gateway.catalog.get, []

        def get(name: str) -> Any:
            asked.append(name)
            if len(asked) > 2:
                raise ModelNotFoundError("it is gone")
            return find(name)

        monkeypatch.setattr(running.gateway.catalog, "get", get)
        ended = await until_ended(
            client, await client.messages.batches.create(requests=requests(2))
        )
        results = await results_of(client, ended)
    assert ended.request_counts.errored == 2
    for line in results:
        assert line.result.type == "errored"
        error = line.result.error.error
        assert (error.type, error.message) == ("not_found_error", "it is gone")


async def test_all_that_is_wrong_is_said_at_once_and_nothing_is_kept(running: Running) -> None:
    before = await num_kept(running)
    wrong = [
        request("a"), request("a"), request("b", model="gpt-9"), request("c", stream=True),
        request(7), {"custom_id": "d", "params": "x"}, request("e"),
    ]  # fmt: skip
    answer = await running.http.post(PATH, json={"requests": wrong})
    assert answer.status_code == 400
    message = said(answer)
    for place, reason in {
        "requests[1].custom_id": "that of requests[0] too",
        "requests[2].params.model": "does not exist here",
        "requests[3].params.stream": "not possible in a batch",
        "requests[4].custom_id": "text of 1 to 512 characters, not 7",
        "requests[5].params": "must be an object, not 'x'",
    }.items():
        (told,) = [part for part in message.split("; ") if part.startswith(f"'{place}': ")]
        assert reason in told
    assert "requests[6]" not in message
    for body in ({"requests": []}, {}, {"requests": [{"custom_id": "a"}]}, {"requests": "x"}):
        answer = await running.http.post(PATH, json=body)
        assert answer.status_code == 400
        assert "'requests" in said(answer)
    assert await num_kept(running) == before


async def test_a_key_for_other_models_has_no_batch(running: Running) -> None:
    keys = running.gateway.tenancy.api_keys
    api_key_id, secret = await keys.ensure("narrow", "theirs")
    await keys.update(api_key_id, {"models": ["other"]})
    headers = {"authorization": f"Bearer {secret}"}
    answer = await running.http.post(PATH, json={"requests": requests(1)}, headers=headers)
    assert answer.status_code == 400
    assert "requests[0].params.model" in said(answer)


async def test_limits_are_those_of_batches(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"batch_max_lines": 2, "tenant_file_bytes": CHUNK_BYTES, "max_body_bytes": 1 << 20}
    async with start(**limits) as running:
        before = await num_kept(running)
        many = await running.http.post(PATH, json={"requests": requests(3)})
        full = await running.http.post(
            PATH, json={"requests": [request("a", system="x" * CHUNK_BYTES)]}
        )
        frame = orjson.dumps({"requests": [request("a", system="-")]})
        whole = frame.replace(b'"-"', b'"%s"' % (b"x" * ((1 << 20) - len(frame))))
        json = {"content-type": "application/json"}
        large = await running.http.post(PATH, content=whole, headers=json)
        monkeypatch.setattr(batch_store, "MAX_UNFINISHED", 0)
        unfinished = await running.http.post(PATH, json={"requests": requests(1)})
        assert await num_kept(running) == before | {"bytes": 0}
        assert running.gateway.bodies.num_held_bytes == 0
    assert [many.status_code, full.status_code, large.status_code] == [400, 400, 400]
    assert "has 3 requests; the limit of one batch is 2" in said(many)
    assert "your files would have" in said(full)
    assert "'requests[0].params': the request has" in said(large)
    assert (unfinished.status_code, unfinished.json()["error"]["type"]) == (
        429, "rate_limit_error",
    )  # fmt: skip


async def test_cancel_keeps_what_is_there(start: Start, bus: Bus) -> None:
    worker = ScriptedWorker(bus)
    async with start(worker, batch_concurrency=2) as running, client_of(running) as client:
        worker.token_at = lambda request, _index: 70
        worker.gate_index = 6
        batches = client.messages.batches
        batch = await batches.create(requests=requests(6, max_tokens=9))
        await worker.wait_until(lambda: worker.num_running == 2)
        batch = await batches.cancel(batch.id)
        assert batch.processing_status == "canceling"
        assert batch.cancel_initiated_at is not None
        assert batch.results_url is None
        for ask in (batches.delete, batches.results):
            with pytest.raises(anthropic.AnthropicError):
                await ask(batch.id)
        for method, path in (("DELETE", ""), ("GET", "/results")):
            refused = await running.http.request(method, f"{PATH}/{batch.id}{path}")
            assert refused.status_code == 400
            assert f"{batch.id} has not ended" in said(refused)
        worker.open_gate()
        ended = await until_ended(client, batch)
        results = await results_of(client, ended)
        with pytest.raises(anthropic.BadRequestError, match="has ended"):
            await batches.cancel(batch.id)
    counts = ended.request_counts
    assert (counts.succeeded, counts.canceled, counts.errored) == (2, 4, 0)
    assert [line.result.type for line in results] == ["succeeded"] * 2 + ["canceled"] * 4
    assert [line.custom_id for line in results] == [f"line-{i}" for i in range(6)]


async def test_what_was_not_run_in_time_expires(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_store, "WINDOW_SECONDS", 0.0)
    async with start() as running, client_of(running) as client:
        batch = await client.messages.batches.create(requests=requests(3))
        ended = await until_ended(client, batch)
        results = await results_of(client, ended)
    assert ended.request_counts.expired == 3
    assert {line.result.type for line in results} == {"expired"}


async def test_deletion_gives_all_bytes_back(start: Start) -> None:
    async with start() as running, client_of(running) as client:
        before = await num_kept(running)
        mixed = [*requests(3), request("bad", temperature=-1)]
        batch = await client.messages.batches.create(requests=mixed)
        await until_ended(client, batch)
        kept = await num_kept(running)
        assert (kept["files"], kept["batch_answers"]) == (before["files"] + 3, 4)
        assert kept["bytes"] > before["bytes"]
        deleted = await client.messages.batches.delete(batch.id)
        assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
        assert await num_kept(running) == before | {"bytes": 0}
        for ask in (client.messages.batches.retrieve, client.messages.batches.delete):
            with pytest.raises(anthropic.NotFoundError, match=batch.id):
                await ask(batch.id)


async def test_results_whose_files_are_gone_are_a_404(running: Running) -> None:
    async with client_of(running) as client, running.sdk() as openais:
        batch = await client.messages.batches.create(requests=requests(1))
        await until_ended(client, batch)
        name = f"file-{batch.id.removeprefix('msgbatch_')}-output"
        assert name in [file.id async for file in openais.files.list(purpose="batch_output")]
        await openais.files.delete(name)
        answer = await running.http.get(f"{PATH}/{batch.id}/results")
    assert answer.status_code == 404
    assert "have expired, or their files were deleted" in said(answer)


async def test_pages_have_every_batch_once(start: Start) -> None:
    async with start() as running, client_of(running) as client, running.sdk() as openais:
        made = []
        for number in range(5):
            batch = await client.messages.batches.create(requests=requests(1))
            made.insert(0, batch.id)
            if number == 2:
                file = await openais.files.create(file=numbered(1), purpose="batch")
                other = await openais.batches.create(
                    input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
                )
        batches = client.messages.batches
        assert [batch.id async for batch in batches.list(limit=2)] == made
        page = await batches.list(limit=2, after_id=made[0])
        assert [batch.id for batch in page.data] == made[1:3]
        assert (page.has_more, page.first_id, page.last_id) == (True, made[1], made[2])
        page = await batches.list(limit=2, before_id=made[3])
        assert [batch.id for batch in page.data] == made[1:3]
        assert page.has_more
        backwards = [batch.id async for batch in batches.list(limit=2, before_id=made[4])]
        assert sorted(backwards) == sorted(made[:4])
        assert (await batches.list(before_id=made[0])).data == []
        for wrong in ({"limit": 1001}, {"limit": 0}, {"after_id": other.id}):
            refused = await running.http.get(PATH, params=wrong)
            assert refused.status_code == 400
            assert said(refused)
        assert [batch.id async for batch in openais.batches.list()] == [other.id]


async def test_the_two_apis_do_not_know_each_others_batches(running: Running) -> None:
    async with client_of(running) as client, running.sdk() as openais:
        batch = await client.messages.batches.create(requests=requests(1))
        ulid = batch.id.removeprefix("msgbatch_")
        for name in (batch.id, f"batch_{ulid}"):
            for ask in (openais.batches.retrieve, openais.batches.cancel):
                with pytest.raises(openai.NotFoundError):
                    await ask(name)
        file = await openais.files.create(file=numbered(1), purpose="batch")
        other = await openais.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        for name in (f"batch_{ulid}", other.id, f"msg{other.id}", "msgbatch_\0", "x"):
            for method, path in (
                ("GET", ""), ("POST", "/cancel"), ("DELETE", ""), ("GET", "/results"),
            ):  # fmt: skip
                answer = await running.http.request(
                    method, f"{PATH}/{name.replace(chr(0), '%00')}{path}"
                )
                assert answer.status_code == 404
                assert "no message batch" in said(answer)
        with pytest.raises(openai.BadRequestError):
            await openais.batches.create(
                input_file_id=file.id,
                endpoint="/v1/messages",  # type: ignore[arg-type]
                completion_window="24h",
            )
        ended = await until_ended(client, batch)
        assert ended.request_counts.succeeded == 1


async def test_another_tenants_batches_do_not_exist(running: Running) -> None:
    _, secret = await running.gateway.tenancy.api_keys.ensure("other", "theirs")
    async with client_of(running) as mine, client_of(running, secret) as theirs:
        batch = await mine.messages.batches.create(requests=requests(1))
        batches = theirs.messages.batches
        for ask in (batches.retrieve, batches.cancel, batches.delete, batches.results):
            with pytest.raises(anthropic.NotFoundError):
                await ask(batch.id)
        assert [item.id async for item in batches.list()] == []
        assert (await until_ended(mine, batch)).request_counts.succeeded == 1


async def test_results_of_many_kilobytes_come_in_pieces(running: Running) -> None:
    names = [f"{number}-{'x' * 500}" for number in range(800)]
    bad = [request(name, temperature=-1) for name in names]
    async with client_of(running) as client:
        ended = await until_ended(client, await client.messages.batches.create(requests=bad))
        results = await results_of(client, ended)
    assert [line.custom_id for line in results] == names


async def test_a_proxy_says_how_clients_reach_it(start: Start) -> None:
    async with start() as running, client_of(running) as client:
        batch = await client.messages.batches.create(requests=requests(1))
        await until_ended(client, batch)
        headers = {"x-forwarded-proto": "https", "host": "llm.example"}
        app, listener = make_app(running.gateway), listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}{PATH}/{batch.id}"
        async with http_server(app, listener, trusted_proxies=["127.0.0.1"]):
            answer = await running.http.get(url, headers=headers)
    assert answer.json()["results_url"].startswith(f"https://llm.example{PATH}/msgbatch_")


async def test_answers_fit_the_document(running: Running) -> None:
    found, one = await document(running), f"{PATH}/{{message_batch_id}}"
    paths, http = found["paths"], running.http

    async def checked(method: str, path: str, shown: str, **sent: Any) -> Any:
        answer = await http.request(method, path, **sent)
        assert answer.status_code == 200, answer.text
        media = content(paths[shown][method.lower()])["application/json"]
        check(found, media["schema"], answer.json())
        return answer.json()

    bodies = [request("good"), request("bad", temperature=-1)]
    batch = await checked("POST", PATH, PATH, json={"requests": bodies})
    path = f"{PATH}/{batch['id']}"
    while (await checked("GET", path, one))["processing_status"] != "ended":
        pass
    await checked("GET", PATH, PATH)
    results = await http.get(f"{path}/results")
    assert results.headers["content-type"].startswith("application/x-jsonl")
    assert "application/x-jsonl" in content(paths[f"{one}/results"]["get"])
    for line in results.text.splitlines():
        check(found, {"$ref": "#/components/schemas/MessageBatchLine"}, orjson.loads(line))
    await checked("DELETE", path, one)


async def test_a_database_that_is_gone_is_a_503(start: Start, postgres: Postgres) -> None:
    url = postgres.new_database()
    async with start(ledger_url=SecretStr(url)) as running:
        body = {"requests": requests(1)}
        batch = (await running.http.post(PATH, json=body)).json()
        postgres.shut_out(url)
        refused = [
            await running.http.post(PATH, json=body),
            await running.http.get(PATH),
            await running.http.get(f"{PATH}/{batch['id']}"),
        ]
        postgres.let_in(url)
        assert (await running.http.get(f"{PATH}/{batch['id']}")).status_code == 200
    assert [answer.status_code for answer in refused] == [503] * 3
    assert {answer.json()["error"]["type"] for answer in refused} == {"overloaded_error"}
