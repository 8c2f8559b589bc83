"""The two usage records of a request, as the two halves of its row in the ledger."""

from typing import Any

from pagoda.rpc.v1.usage_pb2 import UsageClose, UsageOpen
from pagoda_gateway.accounts.fitted import fitted
from pagoda_gateway.accounts.prefixes.rows import prefix_values
from pagoda_gateway.accounts.tables import REQUEST_NAMES, USAGE

DEFAULT_TIER = "default"  # also of records that older gateways wrote
FINISHED, FAILED = "finished", "failed"
RECONCILED, LOST = "reconciled", "lost"  # closed for a dead gateway: from what is known, or nothing


def open_values(record: UsageOpen) -> dict[str, Any]:
    """Return the columns that are known before any token."""
    values = {
        "request_id": record.request_id,
        "object_id": record.object_id,
        "tenant": record.tenant,
        "api_key_id": record.api_key_id,
        "model": record.model,
        "endpoint": record.endpoint,
        "max_output_tokens": record.max_output_tokens,
        "opened_prompt_tokens": record.num_prompt_tokens,
        "opened_unix_seconds": record.opened_unix_seconds,
        "gateway_id": record.gateway_id,
        "service_tier": record.service_tier or DEFAULT_TIER,
        "price_id": record.price_id if record.HasField("price_id") else None,
        "num_choices": record.num_choices or 1,
    }
    return fitted(USAGE, values)


def name_values(record: UsageOpen) -> dict[str, Any]:
    """Return the row that says what a client calls a request, which it does."""
    values = {
        "request_id": record.request_id,
        "tenant": record.tenant,
        "client_request_id": record.client_request_id,
    }
    return fitted(REQUEST_NAMES, values)


def close_values(record: UsageClose) -> dict[str, Any]:
    """Return the columns that are known at the end."""
    stages = {
        "tokenize": record.gateway_tokenize_ms,
        "limits": record.gateway_limits_ms,
        "route": record.gateway_route_ms,
    }
    for name in record.stages.DESCRIPTOR.fields_by_name:
        stages[name.removesuffix("_ms")] = getattr(record.stages, name)
    values = {
        "request_id": record.request_id,
        "prompt_tokens": record.num_prompt_tokens,
        "cached_device_tokens": record.cached.device,
        "cached_cpu_tokens": record.cached.cpu,
        "cached_nvme_tokens": record.cached.nvme,
        "output_tokens": record.num_output_tokens,
        "finish_reasons": list(record.finish_reasons),
        "stages_ms": {name: round(value, 3) for name, value in stages.items()},
        "ttft_ms": record.ttft_ms,
        "e2e_ms": record.e2e_ms,
        "attempts": record.num_attempts,
        "closed_unix_seconds": record.closed_unix_seconds,
        "outcome": record.outcome,
        "worker_ids": list(record.worker_ids),
        "is_cached_answer": record.is_cached_answer,
        "safety_findings": list(record.safety_findings),
        "proposed_tokens": record.num_proposed_tokens,
        "accepted_tokens": record.num_accepted_tokens,
        **prefix_values(record),
    }
    return fitted(USAGE, values)
