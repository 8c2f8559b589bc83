"""One trace per request, across every process, received by a real OTLP server."""

import pytest
from support.otlp_sink import OtlpSink
from support.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EDGES = {
    ("gateway.request", "gateway.admit"),
    ("gateway.request", "gateway.tokenize"),
    ("gateway.request", "router.route"),
    ("router.route", "router.match"),
    ("gateway.request", "prefill.queue"),
    ("gateway.request", "kv.fetch"),
    ("gateway.request", "prefill.compute"),
    ("gateway.request", "kv.transfer"),
    ("gateway.request", "decode.queue"),
    ("gateway.request", "decode.generate"),
    ("gateway.request", "gateway.settle"),
}
SERVICE_OF = {
    "gateway.request": "pagoda-gateway",
    "router.route": "pagoda-router",
    "prefill.compute": "pagoda-prefill",
    "decode.generate": "pagoda-decode",
}


@pytest.mark.parametrize("shared_stack", ["disaggregated"], indirect=True)
def test_every_stage_is_a_child_of_its_request(any_stack: Stack, spans_sink: OtlpSink) -> None:
    answer = any_stack.openai().chat.completions.with_raw_response.create(
        model=any_stack.model,
        messages=[{"role": "user", "content": "What ho!"}],
        max_tokens=8,
        extra_body={"ignore_eos": True},
    )
    request_id = answer.headers["x-request-id"]

    def complete(spans):
        root = [
            s
            for s in spans
            if s.attributes.get("pagoda.request_id") == request_id and s.name == "gateway.request"
        ]
        return bool(root) and {s.name for s in spans if s.trace_id == root[0].trace_id} >= {
            child for _, child in EDGES
        }

    spans = spans_sink.wait_for(complete)
    root = next(
        s
        for s in spans
        if s.name == "gateway.request" and s.attributes.get("pagoda.request_id") == request_id
    )
    trace = {s.span_id: s for s in spans if s.trace_id == root.trace_id}
    edges = {
        (trace[s.parent_span_id].name, s.name) for s in trace.values() if s.parent_span_id in trace
    }
    assert edges == EDGES
    assert sum(1 for s in trace.values() if s.parent_span_id not in trace) == 1
    services = {s.name: s.service for s in trace.values()}
    assert {name: services[name] for name in SERVICE_OF} == SERVICE_OF
