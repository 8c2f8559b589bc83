"""Usage records of requests that tests make up."""

from typing import Any

from pagoda.rpc.v1.generate_pb2 import CachedTokens
from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen, UsageRecord


def opened(request_id: str, tenant: str = "t", **values: Any) -> UsageRecord:
    """An open record, as a gateway of an earlier version writes it unless it has a price_id."""
    fields: dict[str, Any] = {
        "object_id": f"chatcmpl-{request_id}",
        "api_key_id": "key-1",
        "model": "m",
        "endpoint": "completions",
        "num_prompt_tokens": 10,
        "opened_unix_seconds": 5.0,
    }
    return UsageRecord(open=UsageOpen(request_id=request_id, tenant=tenant, **fields | values))


def closed(
    request_id: str,
    num_output_tokens: int = 3,
    outcome: str = "finished",
    cached: tuple[int, int, int] = (4, 0, 2),
    **values: Any,
) -> UsageRecord:
    """A close record; `cached` is by tier."""
    fields: dict[str, Any] = {
        "num_prompt_tokens": 10,
        "finish_reasons": ["stop"],
        "closed_unix_seconds": 6.0,
        "num_attempts": 1,
        "worker_ids": ["w"],
        "gateway_route_ms": 1.5,
    }
    return UsageRecord(
        close=UsageClose(
            request_id=request_id,
            num_output_tokens=num_output_tokens,
            outcome=outcome,
            cached=CachedTokens(device=cached[0], cpu=cached[1], nvme=cached[2]),
            **fields | values,
        )
    )


def both(request_id: str, tenant: str = "t", **values: Any) -> list[UsageRecord]:
    """Both records; `values` are of the open one."""
    return [opened(request_id, tenant, **values), closed(request_id)]
