"""Why prompts missed, from the request to the receipt, the trace and the administration."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.batch_files import batch_line, jsonl
from support.running_gateway import Running, Start
from support.scripted_worker import ScriptedWorker
from support.span_files import read_spans

from pagoda.rpc.v1 import route_pb2
from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway.metrics import PREFIX_MISSED_TOKENS
from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.messaging.bus import Bus
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

ADMIN_KEY = "admin-key-0123456789"
RULES = "Answer briefly, never guess, and say which of the documents you have it from."
BLOCK = 16


def chat(*contents: str, **body: Any) -> dict[str, Any]:
    """A system prompt, then turns."""
    roles = ["system", *["user", "assistant"] * len(contents)]
    messages = [
        {"role": role, "content": content} for role, content in zip(roles, contents, strict=False)
    ]
    return {"model": "tiny", "messages": messages, "max_tokens": 2, **body}


async def receipt_of(
    running: Running, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> dict[str, Any]:
    answer = await running.http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return await running.receipt(answer)


async def prefix_of(running: Running, body: dict[str, Any], path: str = "/v1/chat/completions"):  # type: ignore[no-untyped-def]
    return (await receipt_of(running, body, path))["prefix"]


async def test_a_timestamp_in_the_system_prompt(start: Start) -> None:
    async with start(admin_key=ADMIN_KEY) as running:
        before = PREFIX_MISSED_TOKENS.labels("timestamp")._value.get()
        first = await prefix_of(running, chat(f"It is 13:07:18. {RULES}", "Who?"))
        found = await prefix_of(running, chat(f"It is 13:09:55. {RULES}", "Where?"))
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        listed = await running.http.get("/admin/prefixes?tenant=default", headers=admin)
        nobody = await running.http.get("/admin/prefixes?tenant=other", headers=admin)
        refused = await running.http.get("/admin/prefixes?hours=1000", headers=admin)
        keyless = await running.http.get("/admin/prefixes")
    assert (first["class"], first["lost_tokens"]) == ("never_seen", 0)
    assert (found["class"], found["place"], found["role"]) == ("timestamp", "messages[0]", "system")
    assert (found["text"], found["earlier_text"]) == ("13:09:55", "13:07:18")
    assert len(RULES) - BLOCK < found["lost_tokens"] <= len(RULES) + 24  # a token a letter, mostly
    assert found["lost_tokens"] % BLOCK == 0
    assert "round it" in found["advice"]
    lost = PREFIX_MISSED_TOKENS.labels("timestamp")._value.get() - before
    assert lost == found["lost_tokens"]
    (miss,) = listed.json()["data"]
    assert (miss["tenant"], miss["class"], miss["requests"]) == ("default", "timestamp", 1)
    assert miss["lost_tokens_per_hour"] == found["lost_tokens"]
    assert miss["example"]["text"] == "13:09:55"
    assert nobody.json()["data"] == []
    assert (refused.status_code, keyless.status_code) == (400, 401)
    assert "'hours'" in refused.json()["error"]["message"]


async def test_what_was_cached_as_expected_is_no_miss(start: Start, bus: Bus) -> None:
    worker = ScriptedWorker(bus)
    async with start(worker) as running:
        await receipt_of(running, chat(RULES, "Who?"))
        worker.cached = 80
        other = await prefix_of(running, chat(RULES, "Where is it?"))
        more = await prefix_of(running, chat(RULES, "Who?", "Nobody did.", "Sure?"))
    assert other is None
    assert more is None


async def test_blocks_that_are_gone_and_blocks_that_another_worker_had(
    start: Start, bus: Bus
) -> None:
    async with start() as running:
        body = chat(RULES, "Who?")
        await receipt_of(running, body)
        gone = await prefix_of(running, body)
        worker = running.worker
        running.router.answer = route_pb2.RouteResponse(
            status=route_pb2.ROUTE_STATUS_PLACED,
            decode_worker_id=worker.worker_id,
            decode_epoch=worker.epoch,
            candidates=[
                route_pb2.Candidate(decode_worker_id=worker.worker_id, is_chosen=True),
                route_pb2.Candidate(decode_worker_id="busy", num_device_blocks=5),
            ],
        )
        elsewhere = await prefix_of(running, body)
    assert (gone["class"], gone["text"], gone["first_token"]) == ("evicted", "", 0)
    assert gone["lost_tokens"] == gone["expected_tokens"] >= 64
    assert elsewhere["class"] == "other_worker"


async def test_twins_that_are_computed_at_a_time(start: Start, bus: Bus) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker) as running:
        body = chat(RULES, "Who?")
        asked = [asyncio.create_task(receipt_of(running, body)) for _ in range(3)]
        await worker.wait_until(lambda: worker.num_running == 3)
        worker.open_gate()
        found = [(await task)["prefix"]["class"] for task in asked]
    assert sorted(found) == ["concurrent", "concurrent", "never_seen"]


async def test_another_salt(start: Start) -> None:
    async with start() as running:
        await receipt_of(running, chat(RULES, "Who?"))
        found = await prefix_of(running, chat(RULES, "Who?", cache_salt="mine"))
    assert (found["class"], found["place"]) == ("other_salt", None)


@pytest.mark.parametrize(
    ("path", "make", "place"),
    [
        ("/v1/completions", lambda text: {"prompt": f"{text} Who?"}, "prompt"),
        (
            "/v1/messages",
            lambda text: {"system": text, "messages": [{"role": "user", "content": "Who?"}]},
            "messages[0]",
        ),
        ("/v1/responses", lambda text: {"instructions": text, "input": "Who?"}, "messages[0]"),
    ],
)
async def test_every_api(start: Start, path: str, make: Any, place: str) -> None:
    limit = {"max_output_tokens": 16} if path == "/v1/responses" else {"max_tokens": 2}
    async with start() as running:
        for text in ("Visit 7.", "Visit 8."):
            body = {"model": "tiny", **limit, **make(f"{text} {RULES}")}
            found = await prefix_of(running, body, path)
    assert (found["class"], found["place"], found["text"]) == ("counter", place, "8")


async def test_several_prompts_and_several_choices(start: Start) -> None:
    async with start() as running:
        body = {"model": "tiny", "max_tokens": 2, "n": 2}
        prompts = [f"Visit {number}. {RULES}" for number in (1, 2, 3)]
        found = await prefix_of(running, {**body, "prompt": prompts}, "/v1/completions")
        receipt = await receipt_of(running, {**body, "prompt": prompts[0]}, "/v1/completions")
    assert (found["class"], found["place"]) == ("counter", "prompt[1]")
    single = receipt["prompt_tokens"]
    assert receipt["prefix"]["class"] == "evicted"  # the scripted worker caches nothing
    assert receipt["prefix"]["lost_tokens"] <= single  # counted once, whatever n is
    assert found["lost_tokens"] > single // 2


async def test_embeddings_and_scored_prompts_use_no_cache(start: Start) -> None:
    async with start() as running:
        for _ in range(2):
            body = {"model": "tiny", "input": RULES}
            assert await prefix_of(running, body, "/v1/embeddings") is None
            scored = {"model": "tiny", "prompt": RULES, "max_tokens": 1, "prompt_logprobs": 1}
            assert await prefix_of(running, scored, "/v1/completions") is None
        assert running.gateway.prefixes.memory.num_bytes == 0


async def test_lines_of_batches(start: Start) -> None:
    async with start(admin_key=ADMIN_KEY, batch_concurrency=1) as running, running.sdk() as client:
        prompts = [f"Visit {number}. {RULES}" for number in range(3)]
        lines = [batch_line(f"l{i}", prompt=prompt) for i, prompt in enumerate(prompts)]
        file = await client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
        batch = await client.batches.create(
            input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
        )
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        data: list[Any] = []
        async with asyncio.timeout(60):
            while sum(miss["requests"] for miss in data) < 2:
                await asyncio.sleep(0.05)  # another's work: there is no event to wait on
                data = (await running.http.get("/admin/prefixes", headers=admin)).json()["data"]
        assert batch.id
    assert {miss["class"] for miss in data} == {"counter"}


async def test_a_client_that_left_before_the_first_token_is_forgotten(
    start: Start, bus: Bus
) -> None:
    worker = ScriptedWorker(bus, gate_index=0)
    async with start(worker) as running:
        with pytest.raises(httpx.ReadTimeout):
            await running.http.post(
                "/v1/chat/completions", json=chat(RULES, "Who?"), timeout=httpx.Timeout(5, read=0.3)
            )
        await worker.wait_until(lambda: worker.num_running == 0)
        async with asyncio.timeout(60):
            while running.gateway.prefixes.memory.num_bytes:  # noqa: ASYNC110  (its task's end)
                await asyncio.sleep(0.01)
        worker.open_gate()
        assert (await prefix_of(running, chat(RULES, "Who?")))["class"] == "never_seen"


async def test_a_request_cancelled_while_it_is_explained_is_billed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start() as running:
        explaining: asyncio.Future[asyncio.Task[Any]] = asyncio.get_running_loop().create_future()

        async def hang(*_: Any) -> None:
            task = asyncio.current_task()
            assert task is not None
            explaining.set_result(task)
            await asyncio.Event().wait()

        monkeypatch.setattr(running.gateway.prefixes, "explain", hang)
        answer = await running.chat()
        (await asyncio.wait_for(explaining, 30)).cancel()
        headers = running.http.headers  # the connection went with the task
        async with httpx.AsyncClient(base_url=running.url, headers=headers) as http:
            name = answer.headers["x-request-id"]
            receipt = (await http.get(f"/v1/receipts/{name}")).json()
    assert (receipt["status"], receipt["outcome"]) == ("closed", "finished")
    assert receipt["output_tokens"] == 8


async def test_it_can_be_switched_off(start: Start) -> None:
    async with start(prefix_memory_bytes=0) as running:
        for _ in range(2):
            assert await prefix_of(running, chat(RULES, "Who?")) is None


async def test_words_of_the_prompt_are_in_no_log_and_no_trace(
    start: Start,
    nats_common: CommonSettings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    common = nats_common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("gateway", common, instance_id="test")
    try:
        async with start() as running:
            await receipt_of(running, chat(f"For Xaver Zapf. {RULES}", "Who?"))
            found = await prefix_of(running, chat(f"For Yvonne Quist. {RULES}", "Who?"))
            monkeypatch.setattr("pagoda_gateway.accounts.usage.usage_log.CLOSE_SECONDS", -1.0)
            late = UsageClose(request_id="late")
            late.prefix.text = late.prefix.earlier_text = "Zacharias Wurm"
            await running.gateway.usage_log.close(late)
    finally:
        shutdown_telemetry()
    assert found["class"] == "edited"
    assert "Yvonne" in found["text"]
    spans = read_spans(tmp_path / "traces")
    requests = [span["attributes"] for span in spans if span["name"] == "gateway.request"]
    assert [a.get("pagoda.prefix.class") for a in requests] == ["never_seen", "edited"]
    assert "the close record of late waits for the disk" in caplog.text
    assert requests[1]["pagoda.prefix.lost_tokens"] == found["lost_tokens"]
    for word in ("Xaver", "Yvonne", "Zacharias"):
        assert word not in str(spans)
        assert word not in caplog.text
