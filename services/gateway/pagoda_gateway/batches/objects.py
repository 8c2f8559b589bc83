"""Rows as OpenAI's objects, and a list of them. Asks no database."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import RowMapping

from pagoda_gateway.pages import list_page

_MOMENTS = (
    "created", "in_progress", "expires", "finalizing", "completed", "failed", "expired",
    "cancelling", "cancelled",
)  # fmt: skip


def file_object(row: RowMapping) -> dict[str, Any]:
    """Return a file."""
    return {
        "id": row["file_id"],
        "object": "file",
        "bytes": row["num_bytes"],
        "created_at": int(row["created_unix_seconds"]),
        "expires_at": int(row["expires_unix_seconds"]),
        "filename": row["filename"],
        "purpose": row["purpose"],
        "status": "processed",
    }


def batch_object(row: RowMapping) -> dict[str, Any]:
    """Return a batch."""
    moments = {f"{name}_at": row[f"{name}_unix_seconds"] for name in _MOMENTS}
    errors = row["errors"]
    return {
        "id": row["batch_id"],
        "object": "batch",
        "endpoint": row["endpoint"],
        "model": row["model"],
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": row["input_file_id"],
        "completion_window": row["completion_window"],
        "status": row["status"],
        "output_file_id": row["output_file_id"],
        "error_file_id": row["error_file_id"],
        **{name: None if moment is None else int(moment) for name, moment in moments.items()},
        "request_counts": {
            "total": row["num_lines"],
            "completed": row["num_completed"],
            "failed": row["num_failed"],
        },
        "usage": {
            "input_tokens": row["num_input_tokens"],
            "input_tokens_details": {"cached_tokens": row["num_cached_tokens"]},
            "output_tokens": row["num_output_tokens"],
            "output_tokens_details": {"reasoning_tokens": row["num_reasoning_tokens"]},
            "total_tokens": row["num_input_tokens"] + row["num_output_tokens"],
        },
        "metadata": row["request_metadata"],
    }


def list_object(
    rows: Sequence[RowMapping], limit: int, write: Callable[[RowMapping], dict[str, Any]]
) -> dict[str, Any]:
    """Return the first `limit` of `rows`, which have one more where there is more."""
    return list_page([write(row) for row in rows[:limit]], has_more=len(rows) > limit)
