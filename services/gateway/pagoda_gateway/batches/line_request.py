"""A line of an input file: the request in it, and what its answer looks like in an output file."""

from dataclasses import dataclass, replace
from typing import Any, Protocol

import orjson
from sqlalchemy import RowMapping

from pagoda_gateway.batches.answer import NO_USAGE, Answer, LineUsage, NotRun

# A line whose request was refused for now is asked again, so many times in all.
MAX_TRIES = 20
NOT_RUN: dict[str, NotRun] = {"batch_cancelled": "cancelled", "batch_expired": "expired"}


@dataclass(frozen=True, slots=True)
class LineCall:
    """One attempt of a line, as a request of its batch's tenant.

    Attributes:
        request_id: of the attempt. Whoever runs a batch anew begins with the same ones, so that an
            attempt which ended under a killed gateway is in the ledger once, not twice.
        is_accounted: it ran before, and its tenant pays for it: nothing keeps it from its answer.
        path: the endpoint.
        body: JSON.
    """

    request_id: str
    tenant: str
    api_key_id: str
    path: str
    body: bytes
    is_accounted: bool = False


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What the route answered.

    Attributes:
        retry_after_seconds: the request was refused for now (429, 503), and this is when to ask
            again; None: this is its answer.
        body: JSON.
    """

    status: int
    retry_after_seconds: float | None
    body: bytes


class Ask(Protocol):
    """Who runs lines: the HTTP application, in this process."""

    async def __call__(self, call: LineCall) -> LineAnswer:
        """Return the answer; cancelling the call ends the request."""


class LineRequest:
    """The request in one good line of a batch."""

    def __init__(self, batch: RowMapping, number: int, text: bytes) -> None:
        self.number = number
        self._batch = batch
        value: dict[str, Any] = orjson.loads(text)
        self._custom_id = value["custom_id"]
        self._body = orjson.dumps(value["body"])

    def call(self, attempt: int, *, is_accounted: bool = False) -> LineCall:
        """Return one attempt; the first is 0."""
        batch = self._batch
        return LineCall(
            request_id=f"{self._id}-{attempt}",
            tenant=batch["tenant"],
            api_key_id=batch["api_key_id"],
            path=batch["endpoint"],
            body=self._body,
            is_accounted=is_accounted,
        )

    @property
    def request_ids(self) -> list[str]:
        """Of all attempts that there may be."""
        return [f"{self._id}-{attempt}" for attempt in range(MAX_TRIES)]

    def answered(self, attempt: int, answer: LineAnswer) -> Answer:
        """Return the line of the output or error file."""
        response = {
            "status_code": answer.status,
            "request_id": self.call(attempt).request_id,
            "body": orjson.Fragment(answer.body),
        }
        has_error = answer.status != 200
        usage = NO_USAGE if has_error else _usage(answer.body)
        return self._answer(has_error, usage, response=response, error=None)

    def failed(self, code: str, message: str) -> Answer:
        """Return the line of the error file that says why there is no answer."""
        error = {"code": code, "message": message}
        answer = self._answer(True, NO_USAGE, response=None, error=error)
        return replace(answer, not_run=NOT_RUN.get(code))

    @property
    def _id(self) -> str:
        return f"batch_req_{self._batch['batch_id'].removeprefix('batch_')}-{self.number}"

    def _answer(self, has_error: bool, usage: LineUsage, **values: Any) -> Answer:
        line = {"id": self._id, "custom_id": self._custom_id, **values}
        data = orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
        return Answer(self.number, has_error, data, usage)


def _usage(body: bytes) -> LineUsage:
    """Return what an answer says it took, in the words of whichever API."""
    usage: dict[str, Any] = orjson.loads(body).get("usage") or {}
    if (num_cached := usage.get("cache_read_input_tokens")) is not None:  # a message's
        thinking = usage.get("output_tokens_details", {}).get("thinking_tokens", 0)
        return LineUsage(
            usage["input_tokens"] + num_cached, num_cached, usage["output_tokens"], thinking
        )
    is_response = "input_tokens" in usage
    of_input, of_output = ("input", "output") if is_response else ("prompt", "completion")
    return LineUsage(
        usage.get(f"{of_input}_tokens", 0),
        usage.get(f"{of_input}_tokens_details", {}).get("cached_tokens", 0),
        usage.get(f"{of_output}_tokens", 0),  # embeddings have none
        usage.get(f"{of_output}_tokens_details", {}).get("reasoning_tokens", 0),
    )
