import json

import pytest
from support.router_workers import IDENTITY, SETTINGS, decode, make_request, prefill

from pagoda.rpc.v1 import route_pb2
from pagoda_router import codec
from pagoda_router.errors import InvalidRouteRequestError
from pagoda_router.placement.planner import compare


def test_answer_carries_the_whole_comparison() -> None:
    workers = [prefill("p"), decode("d1"), decode("d2", num_context_tokens=1000)]
    comparison = compare(make_request(160), workers, {}, SETTINGS)
    response = codec.encode_comparison(comparison, router_id="r")
    assert response.status == route_pb2.ROUTE_STATUS_PLACED
    assert (response.decode_worker_id, response.decode_epoch) == ("d1", "e1")
    assert response.prefill_worker_id == "p"
    assert [c.is_chosen for c in response.candidates] == [True, False]
    assert response.predicted_ttft_ms == response.candidates[0].ttft_ms == 170.0


def test_refusal_names_no_worker() -> None:
    response = codec.encode_comparison(compare(make_request(), [], {}, SETTINGS), router_id="r")
    assert response.status == route_pb2.ROUTE_STATUS_NO_WORKER
    assert (response.decode_worker_id, "none is alive" in response.message) == ("", True)


def test_explanation_is_json_best_first() -> None:
    workers = [decode("d1"), decode("d2", num_context_tokens=1000), decode("d3", is_ready=False)]
    explained = json.loads(codec.explain(compare(make_request(), workers, {}, SETTINGS)))
    assert [entry["decode"] for entry in explained] == ["d1", "d2", "d3"]
    assert explained[0]["cost_ms"] < explained[1]["cost_ms"]
    assert explained[2] == {"decode": "d3", "prefill": "", "reason": "draining"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_identity": b"short"}, "length of kv_identity is 5, must be 16 bytes"),
        ({"num_prompt_tokens": 0}, "num_prompt_tokens is 0, must be at least 1"),
        ({"block_hashes": bytes(17)}, "length of block_hashes is 17"),
    ],
)
def test_malformed_request_names_field_and_limit(changes: dict[str, object], message: str) -> None:
    fields = {"kv_identity": IDENTITY, "num_prompt_tokens": 1, **changes}
    with pytest.raises(InvalidRouteRequestError, match=message):
        codec.decode_request(route_pb2.RouteRequest(**fields))  # type: ignore[arg-type]
