import orjson
import pytest

from pagoda_gateway.batches.answer import LineUsage
from pagoda_gateway.batches.line_request import LineAnswer, LineRequest

LINE = orjson.dumps({"custom_id": "a", "body": {}})
BATCH = {"batch_id": "batch_1", "tenant": "t", "api_key_id": "k", "endpoint": "/v1/x"}
CHAT = {
    "prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip
RESPONSE = {
    "input_tokens": 5, "output_tokens": 4, "total_tokens": 9,
    "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip
MESSAGE = {
    "input_tokens": 2, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 3,
    "output_tokens": 4, "output_tokens_details": {"thinking_tokens": 2},
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "usage"),
    [
        (200, {"usage": CHAT}, LineUsage(5, 3, 4, 2)),
        (200, {"usage": RESPONSE}, LineUsage(5, 3, 4, 2)),
        (200, {"usage": MESSAGE}, LineUsage(5, 3, 4, 2)),
        (200, {"usage": MESSAGE | {"output_tokens_details": {}}}, LineUsage(5, 3, 4)),
        (200, {"usage": {"prompt_tokens": 5, "total_tokens": 5}}, LineUsage(5)),
        (200, {"usage": None}, LineUsage()),
        (400, {"error": {}, "usage": CHAT}, LineUsage()),
    ],
)
def test_tokens_are_those_that_the_answer_says(
    status: int, body: dict[str, object], usage: LineUsage
) -> None:
    line = LineRequest(BATCH, 1, LINE)  # type: ignore[arg-type]
    answer = line.answered(0, LineAnswer(status, None, orjson.dumps(body)))
    assert answer.usage == usage
    assert answer.has_error == (status != 200)
    assert line.failed("batch_expired", "").usage == LineUsage()


@pytest.mark.parametrize(
    ("code", "not_run"),
    [("batch_expired", "expired"), ("batch_cancelled", "cancelled"), ("answer_lost", None)],
)
def test_what_was_not_run_is_told_from_what_failed(code: str, not_run: str | None) -> None:
    line = LineRequest(BATCH, 1, LINE)  # type: ignore[arg-type]
    assert line.failed(code, "").not_run == not_run
    assert line.answered(0, LineAnswer(400, None, b"{}")).not_run is None
