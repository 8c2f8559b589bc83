"""Routing requests and answers <-> the router's own types. Checks everything a peer may send."""

import orjson

from pagoda.rpc.v1 import route_pb2
from pagoda_router.errors import InvalidRouteRequestError
from pagoda_router.placement.candidate import Candidate, Comparison, RouteOutcome, RoutingRequest
from pagoda_runtime.block_hash import HASH_BYTES, split_hashes

_STATUSES = {
    RouteOutcome.PLACED: route_pb2.ROUTE_STATUS_PLACED,
    RouteOutcome.NO_WORKER: route_pb2.ROUTE_STATUS_NO_WORKER,
    RouteOutcome.OVERLOADED: route_pb2.ROUTE_STATUS_OVERLOADED,
}


def decode_request(message: route_pb2.RouteRequest) -> RoutingRequest:
    """Return the request.

    Raises:
        InvalidRouteRequestError: a length is wrong, or there is no token.
    """
    if len(message.kv_identity) != HASH_BYTES:
        length = len(message.kv_identity)
        raise InvalidRouteRequestError("length of kv_identity", length, f"{HASH_BYTES} bytes")
    if message.num_prompt_tokens < 1:
        raise InvalidRouteRequestError("num_prompt_tokens", message.num_prompt_tokens, "at least 1")
    if len(message.block_hashes) % HASH_BYTES:
        length = len(message.block_hashes)
        raise InvalidRouteRequestError(
            "length of block_hashes", length, f"a multiple of {HASH_BYTES}"
        )
    return RoutingRequest(
        request_id=message.request_id,
        sequence_index=message.sequence_index,
        model=message.model,
        kv_identity=message.kv_identity,
        num_prompt_tokens=message.num_prompt_tokens,
        max_tokens=message.max_tokens,
        block_hashes=split_hashes(message.block_hashes),
        excluded_worker_ids=frozenset(message.excluded_worker_ids),
        adapter=message.adapter,
    )


def encode_comparison(comparison: Comparison, *, router_id: str) -> route_pb2.RouteResponse:
    """Return the answer to a RouteRequest."""
    response = route_pb2.RouteResponse(
        status=_STATUSES[comparison.outcome],
        message=comparison.message,
        retry_after_seconds=comparison.retry_after_seconds,
        router_id=router_id,
    )
    for index, candidate in enumerate(comparison.candidates):
        is_chosen = index == 0 and comparison.chosen is not None
        response.candidates.append(_encode_candidate(candidate, is_chosen=is_chosen))
    chosen = comparison.chosen
    if chosen is not None and comparison.decode is not None:
        response.decode_worker_id = chosen.decode_worker_id
        response.decode_epoch = comparison.decode.epoch
        response.prefill_worker_id = chosen.prefill_worker_id
        response.num_fetch_blocks = chosen.num_fetch_blocks
        response.predicted_ttft_ms = chosen.ttft_ms
        response.predicted_tpot_ms = chosen.tpot_ms
    return response


def explain(comparison: Comparison) -> str:
    """Return the candidates as JSON, best first, for the span."""
    return orjson.dumps(
        [_explain_candidate(candidate) for candidate in comparison.candidates]
    ).decode()


def _encode_candidate(candidate: Candidate, *, is_chosen: bool) -> route_pb2.Candidate:
    return route_pb2.Candidate(
        decode_worker_id=candidate.decode_worker_id,
        prefill_worker_id=candidate.prefill_worker_id,
        num_fetch_blocks=candidate.num_fetch_blocks,
        num_device_blocks=candidate.num_device_blocks,
        num_miss_tokens=candidate.num_miss_tokens,
        queue_ms=candidate.queue_ms,
        fetch_ms=candidate.fetch_ms,
        compute_ms=candidate.compute_ms,
        transfer_ms=candidate.transfer_ms,
        ttft_ms=candidate.ttft_ms,
        tpot_ms=candidate.tpot_ms,
        held_up_ms=candidate.held_up_ms,
        cost_ms=candidate.cost_ms,
        is_chosen=is_chosen,
        reason=candidate.reason,
    )


def _explain_candidate(candidate: Candidate) -> dict[str, str | int | float]:
    values: dict[str, str | int | float] = {
        "decode": candidate.decode_worker_id,
        "prefill": candidate.prefill_worker_id,
    }
    if candidate.reason:
        values["reason"] = candidate.reason
    if candidate.cost_ms:
        values |= {
            "cost_ms": round(candidate.cost_ms, 2),
            "ttft_ms": round(candidate.ttft_ms, 2),
            "tpot_ms": round(candidate.tpot_ms, 2),
            "queue_ms": round(candidate.queue_ms, 2),
            "fetch_ms": round(candidate.fetch_ms, 2),
            "compute_ms": round(candidate.compute_ms, 2),
            "transfer_ms": round(candidate.transfer_ms, 2),
            "held_up_ms": round(candidate.held_up_ms, 2),
            "device_blocks": candidate.num_device_blocks,
            "fetch_blocks": candidate.num_fetch_blocks,
            "miss_tokens": candidate.num_miss_tokens,
        }
    return values
