"""One trace per request: the gateway's spans, and the context that travels on."""

import json
from pathlib import Path

import pytest
from opentelemetry import trace
from support.running_gateway import CHAT, Start
from support.span_files import read_spans

from pagoda_runtime.configuration.settings import CommonSettings
from pagoda_runtime.telemetry.tracing import setup_telemetry, shutdown_telemetry

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


async def test_spans_of_a_request(
    start: Start, nats_common: CommonSettings, tmp_path: Path
) -> None:
    common = nats_common.model_copy(update={"trace_dir": tmp_path / "traces"})
    setup_telemetry("gateway", common, instance_id="test")
    try:
        async with start() as running:
            answer = await running.http.post(
                "/v1/chat/completions",
                json={**CHAT, "user": "u" * 500, "metadata": {"run": "7"}},
                headers={"traceparent": PARENT},
            )
            bad = await running.chat(temperature=9)
            await running.receipt(answer)
            seen = trace.get_current_span(running.worker.contexts[0]).get_span_context()
    finally:
        shutdown_telemetry()
    written = read_spans(tmp_path / "traces")
    by_name = {span["name"]: span for span in written if span["trace_id"] == TRACE_ID}
    assert set(by_name) == {
        "gateway.request",
        "gateway.admit",
        "gateway.tokenize",
        "gateway.settle",
    }
    root = by_name["gateway.request"]
    assert root["parent_span_id"] == "b7ad6b7169203331"
    for name in ("gateway.admit", "gateway.tokenize", "gateway.settle"):
        assert by_name[name]["parent_span_id"] == root["span_id"]
    assert f"{seen.span_id:016x}" == root["span_id"]  # what the workers hang their spans on
    attributes = root["attributes"]
    assert attributes["pagoda.request_id"] == answer.headers["x-request-id"]
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["enduser.id"] == "u" * 128
    assert json.loads(attributes["pagoda.metadata"]) == {"run": "7"}
    assert attributes["gen_ai.usage.output_tokens"] == 8
    assert attributes["gen_ai.usage.input_tokens"] == answer.json()["usage"]["prompt_tokens"]
    route = next(event for event in root["events"] if event["name"] == "pagoda.route")
    # Written down at the end, it tells when it was.
    settled = by_name["gateway.settle"]["start_unix_seconds"]
    assert root["start_unix_seconds"] < route["unix_seconds"] < settled
    explanation = json.loads(route["attributes"]["pagoda.route.explanation"])
    assert explanation["candidates"][0]["is_chosen"] is True
    failed = [
        span
        for span in read_spans(tmp_path / "traces")
        if span["attributes"].get("pagoda.request_id") == bad.headers["x-request-id"]
    ]
    assert [span["attributes"]["error.type"] for span in failed] == ["invalid_value"]
    assert "error.message" in failed[0]["attributes"]  # no failure of the span: the client's own
