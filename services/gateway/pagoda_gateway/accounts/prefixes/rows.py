"""A miss in the ledger: from the close record into columns, and from columns into a receipt."""

from collections.abc import Mapping
from typing import Any

from pagoda.rpc.v1.usage_pb2 import UsageClose
from pagoda_gateway.accounts.prefixes.kinds import ADVICE


def prefix_values(record: UsageClose) -> dict[str, Any]:
    """Return the columns of `USAGE` about the prompt's prefix; empty ones without a miss."""
    if not record.HasField("prefix"):
        return dict.fromkeys(
            ("prefix_class", "prefix_place", "prefix_lost_tokens", "prefix_lost_micros", "prefix")
        )
    miss = record.prefix
    return {
        "prefix_class": miss.kind,
        "prefix_place": miss.place,
        "prefix_lost_tokens": miss.num_lost_tokens,
        "prefix_lost_micros": miss.lost_micros if miss.HasField("lost_micros") else None,
        "prefix": {
            "expected_tokens": miss.num_expected_tokens,
            "first_token": miss.first_token,
            "role": miss.role or None,
            "text": miss.text,
            "earlier_text": miss.earlier_text,
        },
    }


def prefix_section(row: Mapping[Any, Any]) -> dict[str, Any] | None:
    """Return what a receipt says of the prompt's prefix; None: as much was cached as could be."""
    if row["prefix_class"] is None:
        return None
    return {
        "class": row["prefix_class"],
        "lost_tokens": row["prefix_lost_tokens"],
        "lost_micros": row["prefix_lost_micros"],
        "place": row["prefix_place"] or None,
        **row["prefix"],
        "advice": ADVICE.get(row["prefix_class"], ""),
    }
