"""Rows as Anthropic's objects, and lines of answers as its results. Asks no database."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
from sqlalchemy import RowMapping

from pagoda_gateway.anthropic.errors import messages_error
from pagoda_gateway.batches.file_store import UNFINISHED
from pagoda_gateway.batches.ids import shown_id
from pagoda_gateway.batches.line_request import NOT_RUN
from pagoda_gateway.errors import InternalError

_RESULTS = {"cancelled": "canceled", "expired": "expired"}


def message_batch(row: RowMapping, url: str) -> dict[str, Any]:
    """Return a batch; `url`: under which batches are."""
    name, is_ended = shown_id(row), row["status"] not in UNFINISHED
    done = row["num_completed"] + row["num_failed"]
    not_run = row["num_cancelled"] + row["num_expired"]
    status = "canceling" if row["status"] == "cancelling" else "in_progress"
    return {
        "id": name,
        "type": "message_batch",
        "processing_status": "ended" if is_ended else status,
        "request_counts": {
            "processing": row["num_lines"] - done,
            "succeeded": row["num_completed"],
            "errored": row["num_failed"] - not_run,
            "canceled": row["num_cancelled"],
            "expired": row["num_expired"],
        },
        "created_at": _rfc_3339(row["created_unix_seconds"]),
        "expires_at": _rfc_3339(row["expires_unix_seconds"]),
        "ended_at": _rfc_3339(row[f"{row['status']}_unix_seconds"]) if is_ended else None,
        "cancel_initiated_at": _rfc_3339(row["cancelling_unix_seconds"]),
        "archived_at": None,
        "results_url": f"{url}/{name}/results" if is_ended else None,
    }


def message_batch_list(rows: Sequence[RowMapping], url: str, *, has_more: bool) -> dict[str, Any]:
    """Return some batches as a page."""
    data = [message_batch(row, url) for row in rows]
    return {
        "data": data,
        "has_more": has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def result_lines(answers: bytes) -> bytes:
    """Return lines of a batch's answers as lines of its results."""
    return b"".join(map(_result_line, answers.splitlines()))


def _result_line(text: bytes) -> bytes:
    answer = orjson.loads(text)
    line = {"custom_id": answer["custom_id"], "result": _result(answer)}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    match answer:
        case {"response": {"status_code": 200, "body": message}}:
            return {"type": "succeeded", "message": message}
        case {"response": {"body": dict(body)}}:
            return {"type": "errored", "error": body}
        case {"error": {"code": code}} if code in NOT_RUN:
            return {"type": _RESULTS[NOT_RUN[code]]}
        case {"error": {"message": message}}:
            pass
        case _:
            message = "this request was not answered in time, however often it was asked"
    error = messages_error(InternalError(message), "") | {"request_id": None}
    return {"type": "errored", "error": error}


def _rfc_3339(unix_seconds: float | None) -> str | None:
    if unix_seconds is None:
        return None
    text = datetime.fromtimestamp(unix_seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
