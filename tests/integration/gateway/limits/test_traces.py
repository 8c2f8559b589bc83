"""What a trace and a receipt have of a request that waited for room in its limits."""

import asyncio
from pathlib import Path

import pytest
from support.replicas import running_replicas
from support.running_gateway import CHAT
from support.span_files import read_spans

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


async def test_the_wait_for_room_is_a_span_and_a_stage(
    nats_common: CommonSettings, model_folder: Path, tmp_path: Path
) -> None:
    common = nats_common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("gateway", common, instance_id="test")
    try:
        async with running_replicas(tmp_path, model_folder) as replicas:
            client = await replicas.client(concurrent_requests=1, on_limit="queue")
            for worker in replicas.workers:
                worker.gate_index = 1
            async with client.stream(), asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(
                    replicas.first.http.post(
                        "/v1/chat/completions",
                        json=CHAT,
                        headers={**client.headers, "traceparent": PARENT},
                    )
                )
                async with asyncio.timeout(60):
                    while not replicas.first.gateway.limits.lines.num_waiting(client.tenant):  # noqa: ASYNC110
                        await asyncio.sleep(0)
                for worker in replicas.workers:
                    worker.open_gate()
            assert asking.result().status_code == 200
            for running in (replicas.first, replicas.second):
                assert await running.gateway.admission.drain(60)
            place = f"/v1/receipts/{asking.result().headers['x-request-id']}"
            receipt = (await replicas.first.http.get(place, headers=client.headers)).json()
    finally:
        shutdown_telemetry()
    spans = {s["name"]: s for s in read_spans(tmp_path / "traces") if s["trace_id"] == TRACE_ID}
    waited, root = spans["gateway.limits"], spans["gateway.request"]
    assert waited["parent_span_id"] == root["span_id"]
    (route,) = (event for event in root["events"] if event["name"] == "pagoda.route")
    tokenized = spans["gateway.tokenize"]["end_unix_seconds"]
    assert tokenized <= waited["start_unix_seconds"] < waited["end_unix_seconds"]
    assert waited["end_unix_seconds"] <= route["unix_seconds"]
    milliseconds = 1000 * (waited["end_unix_seconds"] - waited["start_unix_seconds"])
    assert receipt["stages_ms"]["limits"] >= 0.9 * milliseconds > 0
