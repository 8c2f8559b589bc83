"""What a receipt's hash is made of, and how receipts of a tenant hang together.

Each has a number, the hash of the one before, and its own: SHA-256 of all that it bills, as JSON
with sorted names and without spaces. Whoever changes, removes or adds one breaks the chain there.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import orjson

from pagoda_gateway.accounts.usage_rows import DEFAULT_TIER

FIRST_PREVIOUS_HASH = "0" * 64  # before a tenant's first receipt
NO_PRICE_NOTE = "no price"  # the model had none then


def billed(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what a receipt bills, but for its price and its place, as receipts name it."""
    return {
        "request_id": row["request_id"],
        "tenant": row["tenant"],
        "api_key_id": row["api_key_id"],
        "model": row["model"],
        "endpoint": row["endpoint"],
        "service_tier": row["service_tier"] or DEFAULT_TIER,
        "opened": row["opened_unix_seconds"],
        "closed": row["closed_unix_seconds"],
        "outcome": row["outcome"],
        "prompt_tokens": row["prompt_tokens"],
        "cached_tokens": cached_tokens(row),
        "output_tokens": row["output_tokens"],
        "attempts": row["attempts"],
    }


def cached_tokens(row: Mapping[Any, Any]) -> dict[str, int]:
    """Return the prompt's tokens that were cached: all, and by tier."""
    device, cpu, nvme = (
        row["cached_device_tokens"], row["cached_cpu_tokens"], row["cached_nvme_tokens"],
    )  # fmt: skip
    return {"total": device + cpu + nvme, "device": device, "cpu": cpu, "nvme": nvme}


def cost(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what a row cost, and by which price."""
    return cost_of(row["cost_micros"], row["price_id"], row["price_lines"])


def cost_of(micros: int, price_id: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a cost as receipts have it; an empty `price_id` is none, which they say."""
    if not price_id:
        return {"micros": micros, "price_id": None, "lines": lines, "note": NO_PRICE_NOTE}
    return {"micros": micros, "price_id": price_id, "lines": lines}


def receipt_hash(row: Mapping[Any, Any]) -> str:
    """Return the hash of a row that has its number, its price and the hash before."""
    content = {
        **billed(row),
        "cost": cost(row),
        "number": row["receipt_number"],
        "previous_hash": row["previous_hash"],
    }
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
