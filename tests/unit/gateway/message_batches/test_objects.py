"""Rows as Anthropic's batches, and answers of lines as its results."""

from typing import Any

import orjson
import pytest

from pagoda_gateway.batches.ids import stored_id
from pagoda_gateway.batches.schemas import MESSAGES
from pagoda_gateway.message_batches.objects import message_batch, result_lines

ROW: dict[str, Any] = {
    "batch_id": "batch_1", "endpoint": MESSAGES, "status": "in_progress",
    "num_lines": 9, "num_completed": 2, "num_failed": 6, "num_cancelled": 3, "num_expired": 1,
    "created_unix_seconds": 0.25, "expires_unix_seconds": 86_400.0,
    "cancelling_unix_seconds": None, "completed_unix_seconds": 5.0, "failed_unix_seconds": 6.0,
    "expired_unix_seconds": 7.0, "cancelled_unix_seconds": 8.0,
}  # fmt: skip
URL = "http://host/v1/messages/batches"
ERROR = {"type": "error", "error": {"type": "x", "message": "m"}, "request_id": "r"}


def batch(**values: Any) -> dict[str, Any]:
    return message_batch(ROW | values, URL)  # type: ignore[arg-type]


def test_a_batch_at_work() -> None:
    assert batch() == {
        "id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress",
        "request_counts": {
            "processing": 1, "succeeded": 2, "errored": 2, "canceled": 3, "expired": 1,
        },
        "created_at": "1970-01-01T00:00:00.250Z", "expires_at": "1970-01-02T00:00:00.000Z",
        "ended_at": None, "cancel_initiated_at": None, "archived_at": None, "results_url": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "second"), [("completed", 5), ("failed", 6), ("expired", 7), ("cancelled", 8)]
)
def test_a_batch_that_has_ended(status: str, second: int) -> None:
    ended = batch(status=status)
    assert ended["processing_status"] == "ended"
    assert ended["ended_at"] == f"1970-01-01T00:00:0{second}.000Z"
    assert ended["results_url"] == f"{URL}/msgbatch_1/results"


def test_a_batch_that_is_being_cancelled() -> None:
    cancelling = batch(status="cancelling", cancelling_unix_seconds=1.0)
    assert cancelling["processing_status"] == "canceling"
    assert cancelling["cancel_initiated_at"] == "1970-01-01T00:00:01.000Z"
    assert cancelling["results_url"] is None


@pytest.mark.parametrize(
    ("shown", "stored"),
    [("msgbatch_1", "batch_1"), ("batch_1", ""), ("msg_1", ""), ("msgmsgbatch_1", "")],
)
def test_ids(shown: str, stored: str) -> None:
    assert stored_id(shown) == stored


@pytest.mark.parametrize(
    ("response", "error", "result"),
    [
        ({"status_code": 200, "body": {"id": "m"}}, None,
         {"type": "succeeded", "message": {"id": "m"}}),
        ({"status_code": 400, "body": ERROR}, None, {"type": "errored", "error": ERROR}),
        (None, {"code": "batch_cancelled", "message": ""}, {"type": "canceled"}),
        (None, {"code": "batch_expired", "message": ""}, {"type": "expired"}),
        (None, {"code": "storage_limit_exceeded", "message": "full"},
         {"type": "errored", "error": {
             "type": "error", "error": {"type": "api_error", "message": "full"},
             "request_id": None,
         }}),
    ],
)  # fmt: skip
def test_results(response: object, error: object, result: object) -> None:
    line = {"id": "i", "custom_id": "a\nb", "response": response, "error": error}
    text = orjson.dumps(line) + b"\n"
    found = [orjson.loads(each) for each in result_lines(text + text).splitlines()]
    assert found == [{"custom_id": "a\nb", "result": result}] * 2


def test_a_line_that_nobody_answered_says_so() -> None:
    line = {"custom_id": "a", "response": {"status_code": 503, "body": None}, "error": None}
    found = orjson.loads(result_lines(orjson.dumps(line)))
    assert found["result"]["error"]["error"]["type"] == "api_error"
    assert "not answered" in found["result"]["error"]["error"]["message"]
